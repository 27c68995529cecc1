"""Files that are whole or not there, and one sentence for what goes wrong with them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedntd.errors import FedntdError


@contextmanager
def atomic(file: Path, locked: bool = False, synced: bool = False) -> Iterator[Path]:
    """Where to write what shall become `file`: aside, and moved into place when all is written, so that a reader never
    meets half of it. If anything goes wrong, the file stays as it was and nothing else is left.

    Two processes may write it at once, unless the caller holds a lock (`locked`): what a killed process has left aside
    is then overwritten. `synced` puts it on the disk first, for files that must outlive a power cut.
    """
    # with the same ending, by which some programs know what to write
    aside = file.with_name(f"{file.name}.part") if locked else file.with_stem(f"{file.stem}.part-{os.getpid()}")
    try:
        yield aside
        if synced:
            sync(aside)
        os.replace(aside, file)
    finally:
        with suppress(OSError):  # where a folder of its path is a file, there is nothing to remove
            aside.unlink(missing_ok=True)


def sync(file: Path) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def whole(file: Path, locked: bool = False) -> Iterator[Path]:
    """`atomic`, with the folders on the way, and one sentence for what goes wrong."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file, locked) as aside:
            yield aside
    except OSError as error:
        raise FedntdError(f"{file} cannot be written: {error.strerror}") from error


def put(file: Path, text: str) -> None:
    with whole(file) as aside:
        aside.write_text(text, encoding="utf-8")


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedntdError(f"{file} cannot be read: {error}") from error
