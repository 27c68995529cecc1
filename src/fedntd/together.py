"""Several runs, one after the other."""

from collections.abc import Generator, Hashable, Sequence
from pathlib import Path

from fedntd.config import Config, identity
from fedntd.errors import FedntdError
from fedntd.federation import federate
from fedntd.record import Record, read_run


def federate_together(
    configs: Sequence[Config], outs: Sequence[Path | None], resume: bool = False
) -> Generator[tuple[int, Record | FedntdError]]:
    for i, (config, out) in enumerate(zip(configs, outs, strict=True)):
        held = resume and out is not None and (out / "config.toml").exists()
        if held and out is not None and read_run(out).status == "finished":
            continue
        try:
            for record in federate(config, out=out, resume=held):
                yield i, record
        except FedntdError as error:
            yield i, error


def shape(config: Config) -> Hashable:
    return identity(config)
