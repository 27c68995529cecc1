"""Atomic writing of files, and errors of files as one sentence."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedntd.errors import FedntdError


@contextmanager
def atomic(file: Path, locked: bool = False, synced: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, which then replaces `file` in one step.

    A reader never sees half a file. If an error is raised, `file` stays as it was and the temporary file is removed.

    Two processes may write the file at once, since each has a temporary path of its own. With `locked`, the caller
    holds a lock: the path is always the same, and overwrites what a killed process has left. `synced` flushes the data
    to disk before replacing the file, so that it survives a power cut.
    """
    # with the same suffix, from which some libraries choose the format
    aside = file.with_name(f"{file.name}.part") if locked else file.with_stem(f"{file.stem}.part-{os.getpid()}")
    try:
        yield aside
        if synced:
            sync(aside)
        os.replace(aside, file)
    finally:
        with suppress(OSError):  # if a parent folder is a file, there is nothing to remove
            aside.unlink(missing_ok=True)


def sync(file: Path) -> None:
    """Flush a file to disk."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def whole(file: Path, locked: bool = False) -> Iterator[Path]:
    """`atomic`, which also creates the parent folders and raises errors as `FedntdError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file, locked) as aside:
            yield aside
    except OSError as error:
        raise FedntdError(f"{file} cannot be written: {error.strerror}") from error


def put(file: Path, text: str) -> None:
    """Write a text file atomically."""
    with whole(file) as aside:
        aside.write_text(text, encoding="utf-8")


def read_json(file: Path) -> Any:
    """Read a JSON file. Raises `FedntdError` if it is missing or damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedntdError(f"{file} cannot be read: {error}") from error
