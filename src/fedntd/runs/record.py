"""The run folder: what a run writes, and how it is restored.

    config.toml             the resolved settings
    environment.json        versions, device, commit: one entry for each time the run was started or resumed
    partition.json          class names, and how many samples of each class every client owns
    records.jsonl           one record per round
    checkpoint.safetensors  weights, server and client states after some round
    status.json             running, finished, failed or pruned, and why

Every file is complete at any moment: it is written to a temporary file and moved into place, or (records) only appended
to. A resumed run restores its checkpoint and replays the rounds after it, which gives the same records. Code that only
reads run folders uses `reader.py`.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save_file

from fedntd import tree
from fedntd.config import toml as tables
from fedntd.config.registry import resolve_own
from fedntd.config.schema import CHOICES, Config, own_names
from fedntd.errors import FedntdError, require
from fedntd.support.environment import environment
from fedntd.support.files import atomic, read_json, sync
from fedntd.tree import Weights

PATIENCE = 1.0  # seconds to wait for a lock, because `is_locked` holds it for a moment


@dataclass(frozen=True)
class Record:
    """The measures of one round. Accuracies are between 0 and 1; `None` means not measured in this round."""

    round: int
    accuracy: float  # of the global model after the round, on the whole test part
    loss: float
    class_accuracy: list[float]
    similarity: float | None  # cosine of class_accuracy to that of the previous round
    forgetting: float  # F, over the rounds so far
    train_loss: float  # the local objective, mean over steps and clients
    cohort: list[int]
    lr: float
    bytes_down: int  # of the whole cohort
    bytes_up: int
    seconds: float
    # the global model before and after the round, on the cohort's joint in-local and out-local distribution
    global_in_before: float
    global_in_after: float
    global_out_before: float
    global_out_after: float
    # the trained local models, mean and standard deviation over the cohort; in-local is also called personalised
    in_local: float | None = None
    in_local_std: float | None = None
    out_local: float | None = None
    out_local_std: float | None = None
    local_train_accuracy: float | None = None  # on the client's own training samples
    local_train_accuracy_std: float | None = None
    local_train_loss: float | None = None
    local_train_loss_std: float | None = None


def mean_and_std(name: str, values: Sequence[float] | np.ndarray) -> dict[str, float]:
    with np.errstate(invalid="ignore", over="ignore"):  # a run about to diverge may have infinite losses
        return {name: float(np.mean(values)), f"{name}_std": float(np.std(values))}


@dataclass
class State:
    """All that changes from round to round. With the config, it is all that is needed to continue a run."""

    w: Weights
    server: dict[str, Any]
    own: dict[int, dict[str, Any]] = field(default_factory=dict)  # states of the clients that have trained
    round: int = 0
    without_clients: bool = False  # whether it comes from a checkpoint that was written without `own`


class Taken(FedntdError):
    """Another process is writing to the run folder."""


class RunFolder:
    """The folder of a run in progress. While it is open, no other process can write to it."""

    def __init__(self, path: Path, config: Config, resume: bool) -> None:
        self.path, self.config, self.resume = path, config, resume
        self.recorded_round, self.saved_round = 0, 0
        self.notes: list[str] = []
        self.lock = FileLock(path / ".lock")

    def __enter__(self) -> Self:
        if self.resume:
            require(
                (self.path / "config.toml").is_file(),
                f"there is no run to resume in {self.path}; leave out --resume to start",
            )
            check_same(self.config, read_own(self.path / "config.toml", read_config), self.path)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise Taken(f"another process is writing to {self.path}; wait for it or choose another folder") from None
        except OSError as error:
            raise FedntdError(f"{self.path} cannot be written to: {error.strerror}") from error
        if not self.resume and (self.path / "config.toml").exists():
            self.lock.release()
            raise FedntdError(
                f"{self.path} already holds a run; use --resume to go on with it, or choose another --out"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def start(
        self, classes: Sequence[str], counts: np.ndarray, device: torch.device, precision: str, engine: str = ""
    ) -> None:
        """Write the files that are known before the first round."""
        self.put_json("partition.json", {"classes": list(classes), "counts": counts.tolist()})
        file = self.path / "environment.json"
        earlier = read_own(file, read_starts) if file.exists() else []
        self.put_json(
            "environment.json",
            [*earlier, {**environment(device), "precision": precision, **({"engine": engine} if engine else {})}],
        )
        if not (self.path / "records.jsonl").exists():
            self.put("records.jsonl", "")
        self.put_status("running")
        self.put("config.toml", tables.to_toml(self.config))  # last, because it marks the folder as a run

    def restore(self, device: torch.device) -> tuple[State, list[Record]] | None:
        """The state of the last checkpoint and the records up to it; None if there is no checkpoint yet."""
        file = self.path / "checkpoint.safetensors"
        state = load_checkpoint(file, device) if file.exists() else None
        require(
            bool(state or not self.has_finished),
            f"{self.path} has finished, but its checkpoint is gone, so it would be trained again from the start: "
            f"{or_anew(self.path)}",
        )
        kept = state.round if state else 0
        rounds = self.config.federation.rounds
        require(
            kept <= rounds,
            f"{self.path} has played {kept} rounds already, more than federation.rounds = {rounds}; "
            f"ask for at least {kept}",
        )
        require(
            kept == rounds or not (state and state.without_clients),
            f"{self.path} was saved without its clients' states, so no further rounds can be played; start a longer "
            f"run anew with another --out",
        )
        records = read_own(self.path / "records.jsonl", read_records)[:kept]
        require(
            len(records) == kept,
            f"{self.path}/records.jsonl ends at round {len(records)}, before the checkpoint of round {kept}; "
            f"records were lost: {or_anew(self.path)}",
        )
        self.put("records.jsonl", "".join(to_line(r) for r in records))
        self.recorded_round = self.saved_round = kept
        return (state, records) if state else None

    @property
    def has_finished(self) -> bool:
        with suppress(FedntdError, AttributeError):  # a damaged status is rewritten when the run starts
            return read_json(self.path / "status.json").get("status") == "finished"
        return False

    def append(self, record: Record) -> None:
        with writing(self.path), open(self.path / "records.jsonl", "a", encoding="utf-8") as file:
            file.write(to_line(record))
        self.recorded_round = record.round

    def save(self, state: State, with_clients: bool = True) -> None:
        """Write the checkpoint, unless there is one of this round or the round has no record yet.

        Without the clients' own states it is smaller, but no further rounds can be played from it.
        """
        if state.round == self.saved_round or state.round > self.recorded_round:
            return
        own = {str(k): own for k, own in state.own.items()} if with_clients else {}
        tensors = tree.flatten({"w": state.w, "server": state.server, "own": own})
        left_out = {"clients": "left out"} if state.own and not with_clients else {}
        with writing(self.path), atomic(self.path / "checkpoint.safetensors", locked=True, synced=True) as temporary:
            sync(self.path / "records.jsonl")  # a checkpoint must never be ahead of the records on disk
            contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            save_file(contiguous, temporary, metadata={"round": str(state.round), **left_out})
            shutil.copymode(self.path / "records.jsonl", temporary)  # safetensors makes files private to their owner
        self.saved_round = state.round

    def put_notes(self, notes: Sequence[str]) -> None:
        """Write the engine's notes on slower fallbacks into the last entry of environment.json."""
        if list(notes) != self.notes:
            entries = read_own(self.path / "environment.json", read_starts)
            entries[-1]["notes"] = self.notes = list(notes)
            self.put_json("environment.json", entries)

    def put_status(self, status: str, reason: str = "") -> None:
        self.put_json("status.json", {"status": status, "reason": reason})

    def put_json(self, name: str, value: Any) -> None:
        self.put(name, json.dumps(value, indent=1) + "\n")

    def put(self, name: str, text: str) -> None:
        with writing(self.path), atomic(self.path / name, locked=True, synced=True) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_config(file: Path) -> Config:
    table = tables.read(file)
    require(bool(table), f"{file} is damaged: it is empty")  # it would read as a config with all defaults
    return tables.from_table(table)


def read_starts(file: Path) -> list[dict[str, Any]]:
    entries = read_json(file)
    valid = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    require(valid, f"{file} is damaged: it is not a list of tables")
    return entries


def as_begun(config: Config, folder: Path) -> Config:
    """The config with precision "auto" replaced by the precision of the last start of the run in this folder.

    A run thus keeps its precision when it is resumed on another device.
    """
    if config.precision == "auto" and (folder / "environment.json").is_file():
        entries = read_own(folder / "environment.json", read_starts)
        return replace(config, precision=entries[-1].get("precision", "auto") if entries else "auto")
    return config


def check_same(config: Config, saved: Config, path: Path) -> None:
    """Check that a run is resumed with its own settings. Only rounds, workers and checkpoint_seconds may differ."""
    same = {section for section, name in own_names(config).items() if own_names(saved).get(section) == name}
    # The user's own code may have new settings since; give the saved config their defaults.
    choices = {section: resolve_own(section, getattr(saved, section)) for section in same if section in CHOICES}
    now, then = tables.flat(config), tables.flat(replace(saved, **choices))
    for key in sorted(now.keys() | then.keys()):
        if now.get(key) != then.get(key) and key not in ("federation.rounds", "workers", "checkpoint_seconds"):
            raise FedntdError(
                f"{path} was run with {key} = {then.get(key)!r}, not {now.get(key)!r}; "
                f"resume it with its own settings, or choose another folder"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write (a full disk, no permission) into a FedntdError that says what to do."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        started = os.path.exists(folder / "config.toml")  # false, not an error, if the folder is not readable
        kept = "the last checkpoint is kept: make room, then go on with --resume"
        advice = kept if started else "choose another folder"
        raise FedntdError(f"{folder} cannot be written to: {reason}; {advice}") from error


def or_anew(folder: Path) -> str:
    """What to do about a damaged file. It holds for a single run and for one run of a sweep, whose others stay."""
    return f"put a copy back, or delete {folder} to start this run anew"


def read_own(file: Path, reader: Callable[[Path], Any] = read_json) -> Any:
    """Read a file without which the run cannot continue."""
    try:
        return reader(file)
    except FedntdError as error:
        raise FedntdError(f"{error}; {or_anew(file.parent)}") from error


def load_checkpoint(file: Path, device: torch.device) -> State:
    """The state in a checkpoint, on `device`."""
    try:
        with safetensors.safe_open(file, framework="pt", device=str(device)) as opened:
            flat = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dict)
            metadata = opened.metadata()
            round = int(metadata["round"])
        nested = tree.unflatten(flat)
        own = {int(k): state for k, state in nested.get("own", {}).items()}
        return State(nested["w"], nested.get("server", {}), own, round, without_clients="clients" in metadata)
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FedntdError(f"{file} cannot be read ({error}); {or_anew(file.parent)}") from error


def to_line(record: Record) -> str:
    return json.dumps(dataclasses.asdict(record)) + "\n"


def read_records(file: Path) -> list[Record]:
    """The complete records. A last line without its end, cut off by a kill, is ignored."""
    if not file.exists():
        return []
    try:
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FedntdError(f"{file} cannot be read: {error}") from error
    with suppress(ValueError, TypeError, AttributeError):  # parsing all lines at once takes half the time
        return [as_record(values) for values in json.loads(f"[{','.join(lines)}]")]
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise FedntdError(f"{file}, line {number}, is not a record: {error}") from error
    return records


def as_record(values: dict[str, Any]) -> Record:
    """A record from its values. The slow constructor of a frozen dataclass is avoided if all fields are given."""
    if values.keys() != Record.__dataclass_fields__.keys():
        return Record(**values)
    record = object.__new__(Record)
    record.__dict__.update(values)
    return record
