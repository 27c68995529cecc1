"""Sweeps as a user starts them: a sweep file, the command in its own process, and the resulting folder."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny

import fedntd
from fedntd import cli
from started import Started


@pytest.fixture(autouse=True)
def _tiny_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def environment() -> dict[str, str]:
    source = str(Path(fedntd.__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parent)]), "COLUMNS": "100"}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Started]]:
    """Start `fedntd ...` in the test's folder."""
    started: list[Started] = []

    def start(*arguments: str) -> Started:
        started.append(Started(*arguments, folder=tmp_path, environment=environment))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:  # a test that failed half-way
            process.kill()
            process.communicate()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `fedntd ...` in this process, without importing torch again. Returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a sweep over the tiny world; `settings` are lines for its [settings], `head` comes before them."""

    def write(rest: str = "", head: str = "", settings: str = "", name: str = "sweep.toml") -> Path:
        (tmp_path / "base.toml").write_text(tiny.BASE)
        file = tmp_path / name
        file.write_text(f'base = "base.toml"\n{head}\n[settings]\n{settings}\n{rest}\n')
        return file

    return write
