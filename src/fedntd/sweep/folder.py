"""The folder of a sweep, locked so that only one command works in it at a time."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedntd.errors import FedntdError, require
from fedntd.runs.record import PATIENCE
from fedntd.support.files import whole


@contextmanager
def working_in(out: Path, file: Path, alone: bool = True) -> Iterator[None]:
    """Create and lock the sweep's folder, and copy the sweep file into it.

    `alone=False` takes no lock: the tasks of a job array share one folder, and each trains its own part.
    """
    lock = FileLock(out / ".sweep-lock")
    require(not out.is_file(), f"{out} is a file, not a folder; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        require(not (out / "config.toml").exists(), f"{out} is the folder of a single run; choose another --out")
        if alone:
            lock.acquire(timeout=PATIENCE)
        if file.resolve() != (out / "sweep.toml").resolve():
            with whole(out / "sweep.toml") as aside:
                shutil.copyfile(file, aside)
    except Timeout:
        raise FedntdError(f"another sweep is working on {out}; wait for it or choose another --out") from None
    except OSError as error:
        raise FedntdError(f"{out} cannot be written to: {error.strerror}; choose another --out") from error
    try:
        yield
    finally:
        lock.release()
