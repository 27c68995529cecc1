"""Files that are whole or not there, and one sentence for what goes wrong with them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedntd.errors import FedntdError


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Where to write what shall become `file`: aside, under a name of the same ending, and moved into place when all is
    written, so that a reader never meets half of it. Two processes may write it at once."""
    aside = file.with_stem(f"{file.stem}.part-{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        os.replace(aside, file)
    except OSError as error:
        raise FedntdError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):  # what is left of it if something went wrong
            aside.unlink(missing_ok=True)


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedntdError(f"{file} cannot be read: {error}") from error
