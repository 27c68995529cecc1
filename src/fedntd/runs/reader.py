"""Runs as their folders tell of them, finished or still going on: for tables, reports and whoever else only reads."""

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
    """A run folder that cannot be read as it is. A table or a report can do without it, if its owner says so."""

    def __str__(self) -> str:
        return f"{self.without_choice}, or leave out this run"

    @property
    def without_choice(self) -> str:
        """Told of a run that was left out already."""
        return f"{super().__str__()}; put a copy back"


def require_sound(condition: bool, what: str) -> None:
    if not condition:
        raise Damaged(what)


@dataclass(frozen=True)
class Run:
    """What a run folder holds. What takes its time to read is read when it is first asked for."""

    path: Path
    config: Config
    status: str  # running, finished, failed, pruned, interrupted
    reason: str

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config, flat: {"federation.rounds": 200, ...}."""
        return tables.flat(self.config)

    @cached_property
    def records(self) -> list[Record]:
        records = looked_at(read_records, self.path / "records.jsonl")
        self.require_all(len(records))
        return records

    @cached_property
    def columns(self) -> dict[str, list[float]]:
        """What tables need of every run, one value a round: accuracy, forgetting, seconds, bytes_up, bytes_down."""
        columns = looked_at(read_columns, self.path / "records.jsonl")
        self.require_all(len(columns["accuracy"]))
        return columns

    def require_all(self, rounds: int) -> None:
        """A run that has finished must not go into a mean without some of its rounds, or without all of them."""
        planned = self.config.federation.rounds
        require_sound(
            self.status != "finished" or rounds >= planned,
            f"{self.path}/records.jsonl has {rounds} of the {planned} rounds that the run has finished",
        )

    @property
    def rounds(self) -> int:
        """How many were played."""
        return len(self.columns["accuracy"])

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        """Where and when it was begun, and gone on with."""
        file = self.path / "environment.json"
        entries = looked_at(read_json, file)
        told = ("started", "device", "torch")  # what is asked for of every run
        last = entries[-1] if isinstance(entries, list) and entries else None
        whole = isinstance(last, dict) and all(isinstance(last.get(key), str) for key in told)
        require_sound(whole, f"{file} is damaged: it has no entry with {', '.join(told)}")
        return entries

    @property
    def environment(self) -> dict[str, Any]:
        return self.starts[-1]

    @property
    def key(self) -> str:
        """The same for as long as the run is, however often it is gone on with; another one if it is trained anew."""
        told = [tables.identity(self.config), self.path.resolve().name, self.starts[0].get("started")]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    @cached_property
    def partition(self) -> dict[str, Any]:
        file = self.path / "partition.json"
        found = table_with(("classes", "counts"), list, file)
        even = all(isinstance(row, list) and len(row) == len(found["classes"]) for row in found["counts"])
        require_sound(even, f"{file} is damaged: a client's counts are not one for each class")
        return found

    @property
    def classes(self) -> list[str]:
        return self.partition["classes"]

    @cached_property
    def counts(self) -> np.ndarray:
        """Samples of each class that each client owns, [client, class]."""
        return np.array(self.partition["counts"])


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among `paths`, and those right inside them: each once, however often and by whatever path."""
    found: list[Path] = []
    for path in paths:
        require(path.exists(), f"there is no folder {path}")
        inside = sorted(config.parent for config in path.glob("*/config.toml"))
        require(
            bool(inside) or (path / "config.toml").exists(),
            f"{path} is neither a run folder nor a folder of run folders",
        )
        found += [path] if (path / "config.toml").exists() else inside
    first: dict[Path, Path] = {}
    for path in found:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def read_runs(places: Sequence[Path], *parts: str, over: Collection[Path] = ()) -> list[Run]:
    """The runs that `find_runs` finds, without those that are `over` with, and damaged ones that were not named."""
    runs = read_sound([path for path in find_runs(places) if path not in over], *parts, named=places)
    require(bool(runs or over), f"there is no run in {', '.join(map(str, places))} that can be read")
    return runs


def read_sound(paths: Iterable[Path], *parts: str, named: Collection[Path] = ()) -> list[Run]:
    """Runs, with these parts of them read. A damaged one is told on stderr and left out, so that the others can be
    looked at; unless it was named itself: who asks for a run shall not get an answer without it."""
    runs = []
    # many runs are millions of numbers, and none becomes garbage: looking through them takes as long as reading them
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
    """The run in a folder, finished or still going on. Nothing that its config names is imported."""
    path = Path(path)
    for name in ("config.toml", "status.json"):
        require_sound((path / name).is_file(), f"{path} has no {name}, so it is no run folder")
    status = table_with(("status", "reason"), str, path / "status.json")
    return Run(
        path=path,
        config=looked_at(read_config, path / "config.toml"),
        status="interrupted" if status["status"] == "running" and not is_locked(path) else status["status"],
        reason=status["reason"],
    )


def table_with(keys: Sequence[str], kind: type, file: Path) -> dict[str, Any]:
    found = looked_at(read_json, file)
    whole = isinstance(found, dict) and all(isinstance(found.get(key), kind) for key in keys)
    require_sound(whole, f"{file} is damaged: it has no {' and '.join(keys)}")
    return found


def looked_at(reader: Callable[[Path], Any], path: Path) -> Any:
    try:
        return reader(path)
    except FedntdError as error:
        raise Damaged(str(error)) from error


def is_locked(path: Path, name: str = ".lock") -> bool:
    """Whether a process is writing to the run folder; by ".sweep-lock", whether a sweep works in a folder of them."""
    if not (path / name).exists():
        return False
    try:
        with FileLock(path / name, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


COLUMNS: dict[str, Callable[[bytes], float]] = {  # in the order of the record
    "accuracy": float,
    "forgetting": float,
    "bytes_down": int,
    "bytes_up": int,
    "seconds": float,
}


def read_columns(file: Path) -> dict[str, list[float]]:
    """Some measures of all rounds, picked out of the lines: whole records of a thousand runs would take seconds."""
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise FedntdError(f"{file} cannot be read: {error.strerror}") from error
    found = a_line().findall(content)
    if len(found) == content.count(b"\n"):
        values = zip(*found, strict=True) if found else [()] * len(COLUMNS)
        with suppress(ValueError):
            return {name: [*map(kind, column)] for (name, kind), column in zip(COLUMNS.items(), values, strict=True)}
    records = read_records(file)  # a half-written line; or written by somebody else, or damaged, which it tells
    columns = {name: [getattr(record, name) for record in records] for name in COLUMNS}
    for name, column in columns.items():
        require(all(isinstance(value, int | float) for value in column), f"{file} is damaged: {name} is no number")
    return columns


@cache
def a_line() -> re.Pattern[bytes]:
    """The beginning of a record as `to_line` writes it, up to the last of the columns; these are its groups."""
    names = [f.name for f in dataclasses.fields(Record)]
    fields = dataclasses.fields(Record)[: names.index(list(COLUMNS)[-1]) + 1]
    values = [
        "([^,]*)" if f.name in COLUMNS else r"\[[^]]*\]" if get_origin(f.type) is list else "[^,]*" for f in fields
    ]
    pairs = ", ".join(f'"{f.name}": {value}' for f, value in zip(fields, values, strict=True))
    return re.compile(rf"^\{{{pairs},.*\}}$".encode(), re.MULTILINE)
