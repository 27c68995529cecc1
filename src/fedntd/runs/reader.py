"""Read-only access to run folders, finished or still running: for tables and reports."""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_origin

import numpy as np
from filelock import FileLock, Timeout

from fedntd.config import toml as tables
from fedntd.config.schema import Config
from fedntd.errors import FedntdError, require
from fedntd.runs.record import Record, read_config, read_records
from fedntd.support.collector import collector_paused
from fedntd.support.files import read_json


class Damaged(FedntdError):
    """A run folder that cannot be read. The user may leave it out of a table or a report."""

    def __str__(self) -> str:
        return f"{self.without_choice}, or leave out this run"

    @property
    def without_choice(self) -> str:
        """The message for a run that was left out already."""
        return f"{super().__str__()}; put a copy back"


def require_sound(condition: bool, message: str) -> None:
    if not condition:
        raise Damaged(message)


@dataclass(frozen=True)
class Run:
    """The contents of a run folder. Large files are read when they are first needed."""

    path: Path
    config: Config
    status: str  # running, finished, failed, pruned, interrupted
    reason: str

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config by full key: {"federation.rounds": 200, ...}."""
        return tables.flat(self.config)

    @cached_property
    def records(self) -> list[Record]:
        """One record per round."""
        records = read_or_damaged(read_records, self.path / "records.jsonl")
        self.require_all(len(records))
        return records

    @cached_property
    def columns(self) -> dict[str, list[float]]:
        """What tables need of every run, one value per round: accuracy, forgetting, seconds, bytes_up, bytes_down."""
        columns = read_or_damaged(read_columns, self.path / "records.jsonl")
        self.require_all(len(columns["accuracy"]))
        return columns

    def require_all(self, rounds: int) -> None:
        """Check that no rounds of a finished run are missing: it would silently distort a mean."""
        planned = self.config.federation.rounds
        require_sound(
            self.status != "finished" or rounds >= planned,
            f"{self.path}/records.jsonl has {rounds} of the {planned} rounds that the run has finished",
        )

    @property
    def rounds(self) -> int:
        """The number of rounds played."""
        return len(self.columns["accuracy"])

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        """The environment of each time the run was started or resumed: when, on which device, with which versions."""
        file = self.path / "environment.json"
        entries = read_or_damaged(read_json, file)
        required = ("started", "device", "torch")
        last = entries[-1] if isinstance(entries, list) and entries else None
        complete = isinstance(last, dict) and all(isinstance(last.get(key), str) for key in required)
        require_sound(complete, f"{file} is damaged: it has no entry with {', '.join(required)}")
        return entries

    @property
    def environment(self) -> dict[str, Any]:
        """The environment of the last start."""
        return self.starts[-1]

    @property
    def key(self) -> str:
        """A hash that stays the same when the run is resumed, and changes when it is trained anew."""
        parts = [tables.identity(self.config), self.path.resolve().name, self.starts[0].get("started")]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @cached_property
    def partition(self) -> dict[str, Any]:
        """Class names, and how many samples of each class every client owns."""
        file = self.path / "partition.json"
        table = table_with(("classes", "counts"), list, file)
        complete = all(isinstance(row, list) and len(row) == len(table["classes"]) for row in table["counts"])
        require_sound(complete, f"{file} is damaged: a client does not have one count for each class")
        return table

    @property
    def classes(self) -> list[str]:
        return self.partition["classes"]

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of samples of each class that each client owns, [client, class]."""
        return np.array(self.partition["counts"])


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among `paths` and directly inside them, each once, even if it is reached by two paths."""
    folders: list[Path] = []
    for path in paths:
        require(path.exists(), f"there is no folder {path}")
        inside = sorted(config.parent for config in path.glob("*/config.toml"))
        require(
            bool(inside) or (path / "config.toml").exists(),
            f"{path} is neither a run folder nor a folder of run folders",
        )
        folders += [path] if (path / "config.toml").exists() else inside
    unique: dict[Path, Path] = {}
    for path in folders:
        unique.setdefault(path.resolve(), path)
    return list(unique.values())


def read_runs(places: Sequence[Path], *parts: str, over: Collection[Path] = ()) -> list[Run]:
    """The runs that `find_runs` finds, without those in `over` and without damaged ones that were not named themselves.

    parts: attributes of `Run` to read at once, such as "records"
    """
    runs = read_sound([path for path in find_runs(places) if path not in over], *parts, named=places)
    require(bool(runs or over), f"there is no run in {', '.join(map(str, places))} that can be read")
    return runs


def read_sound(paths: Iterable[Path], *parts: str, named: Collection[Path] = ()) -> list[Run]:
    """The runs in `paths`, with these `parts` read.

    A damaged run is reported on stderr and left out, so that the others can be used. If it is one of `named`, it is an
    error: a run that the user asked for must not be left out.
    """
    runs = []
    # Many runs are millions of numbers, none of them garbage. The collector would take as long as the reading.
    with collector_paused():
        for path in paths:
            try:
                run = read_run(path)
                for part in parts:
                    getattr(run, part)
                runs.append(run)
            except Damaged as error:
                if path in named:
                    raise
                print(f"left out: {error.without_choice}", file=sys.stderr)
    return runs


def read_run(path: str | Path) -> Run:
    """The run in a folder, finished or still running. Code that its config names is not imported."""
    path = Path(path)
    for name in ("config.toml", "status.json"):
        require_sound((path / name).is_file(), f"{path} has no {name}, so it is not a run folder")
    status = table_with(("status", "reason"), str, path / "status.json")
    return Run(
        path=path,
        config=read_or_damaged(read_config, path / "config.toml"),
        status="interrupted" if status["status"] == "running" and not is_locked(path) else status["status"],
        reason=status["reason"],
    )


def table_with(keys: Sequence[str], kind: type, file: Path) -> dict[str, Any]:
    """The JSON table in `file`, whose `keys` must have values of type `kind`."""
    table = read_or_damaged(read_json, file)
    complete = isinstance(table, dict) and all(isinstance(table.get(key), kind) for key in keys)
    require_sound(complete, f"{file} is damaged: it has no {' and '.join(keys)}")
    return table


def read_or_damaged(reader: Callable[[Path], Any], path: Path) -> Any:
    try:
        return reader(path)
    except FedntdError as error:
        raise Damaged(str(error)) from error


def is_locked(path: Path, name: str = ".lock") -> bool:
    """Whether a process is writing to the run folder; with ".sweep-lock", whether a sweep works in a folder of runs."""
    if not (path / name).exists():
        return False
    try:
        with FileLock(path / name, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


COLUMNS: dict[str, Callable[[bytes], float]] = {  # in the order of Record's fields
    "accuracy": float,
    "forgetting": float,
    "bytes_down": int,
    "bytes_up": int,
    "seconds": float,
}


def read_columns(file: Path) -> dict[str, list[float]]:
    """The `COLUMNS` of all rounds, picked out of the lines: parsing whole records of a thousand runs takes seconds."""
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise FedntdError(f"{file} cannot be read: {error.strerror}") from error
    rows = line_pattern().findall(content)
    if len(rows) == content.count(b"\n"):
        values = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        with suppress(ValueError):
            return {name: [*map(kind, column)] for (name, kind), column in zip(COLUMNS.items(), values, strict=True)}
    # The last line is unfinished, another program wrote the file, or it is damaged, which read_records reports.
    records = read_records(file)
    columns = {name: [getattr(record, name) for record in records] for name in COLUMNS}
    for name, column in columns.items():
        require(all(isinstance(value, int | float) for value in column), f"{file} is damaged: {name} is not a number")
    return columns


@cache
def line_pattern() -> re.Pattern[bytes]:
    """Matches a record as `to_line` writes it. Its groups are the values of `COLUMNS`."""
    names = [f.name for f in dataclasses.fields(Record)]
    fields = dataclasses.fields(Record)[: names.index(list(COLUMNS)[-1]) + 1]
    values = [
        "([^,]*)" if f.name in COLUMNS else r"\[[^]]*\]" if get_origin(f.type) is list else "[^,]*" for f in fields
    ]
    pairs = ", ".join(f'"{f.name}": {value}' for f, value in zip(fields, values, strict=True))
    return re.compile(rf"^\{{{pairs},.*\}}$".encode(), re.MULTILINE)
