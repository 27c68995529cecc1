"""The ledger: one small JSON file per run, with its settings, its environment and its results.

Tables and figures of a run can be drawn from its ledger file alone, without the run folder. Measurements of the paper's
items beyond the records are in `measured/` beside the files.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedntd.config.schema import Config, Measure
from fedntd.config.toml import from_table, identity, to_table
from fedntd.errors import FedntdError, require
from fedntd.runs.measures import moving_average
from fedntd.runs.reader import Run, read_run, read_sound
from fedntd.support.files import put, read_json
from fedntd.support.wording import show, thing

# the fields of `Record` that the ledger keeps
KEPT = (
    *("accuracy", "loss", "class_accuracy", "similarity", "forgetting"),
    *("global_in_before", "global_in_after", "global_out_before", "global_out_after"),
    *("in_local", "in_local_std", "out_local", "out_local_std"),
    *("local_train_accuracy", "local_train_accuracy_std"),
)
DIGITS = 4  # enough, as a class of CIFAR-10 has 1,000 test samples
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")  # highest first


@dataclass(frozen=True)
class RunResult:
    """One run. `history` has one list for each of `KEPT`, with one value per round.

    Measures of local models may be absent, or None in rounds that did not measure them.
    """

    config: Config
    status: str  # finished or failed
    reason: str
    history: Mapping[str, list[Any]]
    seconds: float
    environment: Mapping[str, Any]  # device, torch, fedntd, commit, date
    folder: Path | None = None  # with the checkpoint, if the run was made here

    @cached_property
    def accuracies(self) -> dict[str, float]:
        """The run's accuracy by each reporting rule, between 0 and 1."""
        values = self.history["accuracy"]
        return {
            "final": values[-1],
            "best": max(values),
            "last10": float(np.mean(values[-10:])),
            "ema": moving_average(values),
        }

    @property
    def forgetting(self) -> float:
        """F after the last round."""
        return self.history["forgetting"][-1]


@dataclass(frozen=True)
class Recorded(Run):
    """A run that is read from its ledger file."""

    result: RunResult

    @cached_property
    def columns(self) -> dict[str, list[float]]:
        history = {name: self.result.history.get(name, []) for name in ("accuracy", "forgetting")}
        return {**history, "seconds": [self.result.seconds], "bytes_up": [], "bytes_down": []}

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        return [{**self.result.environment, "started": self.result.environment["date"]}]


def result_of(run: Run) -> RunResult:
    """What the ledger keeps of a run folder."""
    history = {name: [getattr(record, name) for record in run.records] for name in KEPT}
    return RunResult(
        config=replace(run.config, precision=run.environment.get("precision", run.config.precision)),
        status=run.status,
        reason=run.reason,
        history={name: values for name, values in history.items() if any(v is not None for v in values)},
        seconds=sum(record.seconds for record in run.records),
        environment={
            **{key: run.environment.get(key) for key in ("device", "torch", "fedntd", "commit")},
            "date": run.environment["started"][:10],
        },
        folder=run.path,
    )


# --- files ------------------------------------------------------------------------------------------------------


def file_name(config: Config) -> str:
    """A run's main settings and its identity: cifar10-sharding-s2-fedntd-seed0-0123456789abcdef."""
    options = "-".join(
        f"{key[:5]}{show(value)}" for key, value in config.partition.options.items() if key != "min_size"
    )
    words = (config.data.name, config.partition.name, options, config.algorithm.name, f"seed{config.seed}")
    return "-".join([*(thing(word) for word in words if word), identity(config)])


def to_text(result: RunResult) -> str:
    """The text of a ledger file. Numbers have four decimals; each measure is one line, which keeps diffs short."""
    entry = {
        "config": to_table(replace(result.config, data=replace(result.config.data, path=""))),  # paths are local
        "status": result.status,
        "reason": result.reason,
        "environment": dict(result.environment),
        "seconds": round(result.seconds, 1),
        "figures": rounded({**result.accuracies, "F": result.forgetting}) if result.history else {},
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    history = [f"  {json.dumps(name)}: {compact(rounded(values))}" for name, values in result.history.items()]
    return "{\n" + ",\n".join([*lines, ' "history": {\n' + ",\n".join(history) + "\n }"]) + "\n}\n"


def rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, float):
        return round(value, DIGITS) if np.isfinite(value) else None  # the loss of a run about to fail
    return value


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_result(file: Path) -> RunResult:
    entry = read_json(file)
    try:
        config = from_table(entry["config"])
        if entry["status"] == "finished":  # without these, the run would be missing from a mean unnoticed
            _ = entry["history"]["accuracy"], [entry["environment"][key] for key in ("device", "torch", "date")]
        return RunResult(
            config=config,
            status=entry["status"],
            reason=entry["reason"],
            history=entry["history"],
            seconds=entry["seconds"],
            environment=entry["environment"],
        )
    except (KeyError, TypeError, FedntdError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise FedntdError(f"{file} is not a ledger file: {reason}; `fedntd paper record` writes them") from error


def find_runs(place: Path) -> list[Path]:
    """The run folders that have finished or failed: `place` itself if it is one, else those in it and in its runs/."""
    require(place.exists(), f"there is no folder {place}")
    if (place / "config.toml").exists():
        return [place]
    inside = [file.parent for where in (place, place / "runs") for file in sorted(where.glob("*/config.toml"))]
    # Some of the paper's items train nothing.
    require(bool(inside) or (place / "measured").is_dir(), f"{place} has no run folders in it")
    return [run.path for run in read_sound(inside, "records", "starts") if run.status in ("finished", "failed")]


def record(runs: Iterable[Path], folder: Path) -> list[Path]:
    """Add finished and failed runs to the ledger in `folder`. Returns their files."""
    results = [result_of(read_run(path)) for path in runs]
    for result in results:
        require(
            result.status in ("finished", "failed"),
            f"{result.folder} is {result.status}; only a finished or failed run can be recorded",
        )
    # A later version may have more settings, and so another file name for the same run.
    known = {identity(read_result(file).config): file for file in sorted(folder.glob("*.json"))}
    files = [known.get(identity(r.config), folder / f"{file_name(r.config)}.json") for r in results]
    for file, result in zip(files, results, strict=True):
        put(file, to_text(result))
    return files


# --- finding a run ----------------------------------------------------------------------------------------------


class Store:
    """All known runs, from run folders and ledgers, found by what they compute."""

    def __init__(self, results: Iterable[RunResult]) -> None:
        self.by_kind: dict[str, list[RunResult]] = {}
        for result in results:
            self.by_kind.setdefault(kind(result.config), []).append(result)

    def find(self, config: Config) -> RunResult | None:
        """A run that stands for `config`, or None.

        Runs with a folder are preferred, then those of the highest precision, then those with the most measurements.
        All tables must show the same run, because two runs of one setting differ by some tenths on a GPU.
        """
        candidates = [r for r in self.by_kind.get(kind(config), []) if stands_for(r.config, config)]
        return min(candidates, key=preference, default=None)


def preference(result: RunResult) -> tuple:
    every = result.config.measure.local_every
    return result.folder is None, PRECISIONS.index(result.config.precision), every or math.inf


def kind(config: Config) -> str:
    """The identity without precision and measurement settings."""
    return identity(replace(config, precision="auto", measure=Measure(0)))


def stands_for(existing: Config, wanted: Config) -> bool:
    """Whether an existing run of the same kind has all that is wanted.

    It may have measured local models in more rounds, and it may have any precision if none is asked for.
    """
    every, needed = existing.measure.local_every, wanted.measure.local_every
    measured = needed == 0 or (every > 0 and needed % every == 0)
    return measured and wanted.precision in ("auto", existing.precision)


def distinct(configs: Sequence[Config]) -> list[Config]:
    """The configs without those for which another of them stands, such as the same run with fewer measurements."""
    kept: dict[str, list[Config]] = {}
    for config in configs:
        peers = kept.setdefault(kind(config), [])
        if not any(stands_for(peer, config) for peer in peers):
            peers[:] = [peer for peer in peers if not stands_for(config, peer)] + [config]
    return [config for peers in kept.values() for config in peers]


def read_store(out: Path, ledger: Path | None) -> Store:
    """The runs of the run folders in `out` and `out`/runs, and of the ledger's files."""
    results = []
    for place in (out, out / "runs"):
        paths = [file.parent for file in sorted(place.glob("*/config.toml"))]
        ended = [run for run in read_sound(paths, "records", "starts") if run.status in ("finished", "failed")]
        results += map(result_of, ended)
    return Store(results + (read_results(ledger) if ledger else []))


def read_results(ledger: Path) -> list[RunResult]:
    return [run.result for run in read_recorded(ledger)]


def read_recorded(ledger: Path) -> list[Recorded]:
    results = [(file, read_result(file)) for file in sorted(ledger.glob("*.json"))]
    return [Recorded(file, result.config, result.status, result.reason, result) for file, result in results]


def is_ledger(place: Path) -> bool:
    """Whether a folder holds ledger files and is neither a run folder nor a folder of run folders."""
    has_runs = (place / "config.toml").exists() or any(place.glob("*/config.toml"))
    return not has_runs and any(place.glob("*.json"))
