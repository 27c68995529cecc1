"""Several runs trained by one process. This stand-in takes them one after the other."""

from collections.abc import Generator, Hashable, Sequence
from pathlib import Path

from fedntd.config import Config, flat
from fedntd.errors import FedntdError
from fedntd.federation import Diverged, federate
from fedntd.record import Record, read_json


def shape(config: Config) -> Hashable:
    """Runs of equal shape can be trained in one step."""
    free = ("seed", "partition_seed", "optimiser.lr", "algorithm.beta", "algorithm.mu", "algorithm.tau")
    return repr({key: value for key, value in flat(config).items() if key not in free})


def federate_together(
    configs: Sequence[Config], outs: Sequence[Path | None], resume: bool = False
) -> Generator[tuple[int, Record | FedntdError]]:
    for i, (config, out) in enumerate(zip(configs, outs, strict=True)):
        begun = out is not None and (out / "config.toml").exists()
        if begun and out is not None and read_json(out / "status.json")["status"] == "finished":
            continue
        try:
            for record in federate(config, out=out, resume=resume and begun):
                yield i, record
        except Diverged as error:
            yield i, error
