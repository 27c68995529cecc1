"""`fedntd ...` in a process of its own, to be interrupted and killed.

It is forked off a server process that has imported fedntd and done nothing else, which spares each of them the two
seconds that this takes.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["fedntd.cli.run", "fedntd.cli.sweep"])


class Started:
    """As subprocess.Popen has it, but for the pipes: what was printed comes from files."""

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.printed = [tempfile.NamedTemporaryFile(prefix="fedntd-test-") for _ in range(2)]  # noqa: SIM115
        names = [file.name for file in self.printed]
        here = str(folder or Path.cwd())
        paths = list(sys.path)
        self.process = context.Process(target=run, args=(arguments, here, environment or {}, names, before, paths))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"it goes on after {timeout} s"
        out, err = (Path(file.name).read_text(encoding="utf-8") for file in self.printed)
        for file in self.printed:
            file.close()
        return out, err


def run(
    arguments: tuple[str, ...],
    folder: str,
    environment: Mapping[str, str],
    printed: list[str],
    before: Callable[[], None] | None,
    paths: list[str],
) -> None:
    """In the process: as if it had been started from a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(printed, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv, sys.path = ["fedntd", *arguments], paths
    if before:
        before()
    from fedntd.cli import main

    main()
