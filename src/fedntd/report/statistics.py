"""What many runs say together: differences to a baseline, what it takes to reach a target, two settings against each
other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from fedntd.errors import FedntdError, require_known
from fedntd.report.compare import Extra
from fedntd.report.summary import Group, differing, is_telling, summarise, telling, words
from fedntd.runs.reader import Run
from fedntd.support.wording import count, size


def parse_baseline(text: str, runs: Sequence[Run]) -> tuple[str, str]:
    """ "optimiser.lr=0.01" as its key and value; a value alone is that of algorithm.name. A name may be in full."""
    key, equals, value = text.rpartition("=")
    key = key if equals else "algorithm.name"
    known = dict.fromkeys(k for run in runs for k in run.settings)
    require_known(key, known, f"--baseline {text}: no run has the setting '{key}'")
    wording = words(key, runs)
    value = wording.get(repr(value), value)
    values = wording.values()
    require_known(value, values, f"--baseline {text}: no run has {key} = {value}")
    return key, value


# --- a difference, and whether it could be chance ---------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Of a group to the baseline, over pairs of runs that are alike in all else, the seed included."""

    mean: float
    p: float | None  # of a two-sided paired t-test; None for fewer than two pairs, or where all differ by the same
    n: int  # pairs


class Baseline:
    """The runs with one value of one setting, for others to be paired with."""

    def __init__(self, runs: Sequence[Run], text: str) -> None:
        self.key, self.value = parse_baseline(text, runs)
        own = [self.key.removesuffix("name")] if self.key.endswith(".name") else []
        if self.key == "algorithm.name":
            own.append("auxiliary.")  # data that some methods need, and the baseline may not
        self.alike = [
            key
            for key in differing(runs)
            if key != self.key and is_telling(key, runs) and not key.startswith(tuple(own))
        ]
        self.words = words(self.key, runs)
        self.values = self.mean_values([run for run in runs if self.holds(run)])

    def holds(self, run: Run) -> bool:
        return self.key in run.settings and self.words[repr(run.settings[self.key])] == self.value

    def mean_values(self, runs: Sequence[Run]) -> dict[str, float]:
        """Final accuracy by all settings but the baseline's own; of several runs that are alike in those, the mean."""
        found: dict[str, list[float]] = {}
        for run in runs:
            value = summarise(run).final if run.status == "finished" else None
            if value is not None:
                found.setdefault(repr([run.settings.get(key) for key in self.alike]), []).append(value)
        return {key: float(np.mean(values)) for key, values in found.items()}

    def difference(self, one: Group) -> Difference | None:
        """None for the baseline itself, and where no run has a partner."""
        if all(self.holds(run) for run in one.runs):
            return None
        mine = self.mean_values([run for run in one.runs if not self.holds(run)])
        pairs = [(value, self.values[key]) for key, value in mine.items() if key in self.values]
        if not pairs:
            return None
        ours, theirs = np.array(pairs).T
        return Difference(float((ours - theirs).mean()), paired_p(ours, theirs), len(pairs))


def is_baseline(runs: Sequence[Run], text: str | None) -> Callable[[Run], bool]:
    """Whether a run is one of those that `--baseline` names."""
    return Baseline(runs, text).holds if text is not None else lambda _: False


def paired_p(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < 2 or np.ptp(a - b) < 1e-12:  # 0.2 - 0.1 is not quite 0.9 - 0.8
        return None
    from scipy.stats import ttest_rel  # takes its time to import

    return float(ttest_rel(a, b).pvalue)


# --- rounds and bytes to a target -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """What it took the runs of a group to reach an accuracy; means over those that did."""

    reached: int
    runs: int
    rounds: float | None
    bytes: float | None  # in both directions


def to_target(run: Run, target: float) -> tuple[int, int] | None:
    """The first round with at least this accuracy, and the bytes sent until then; None if it never came to that."""
    columns = run.columns
    for round, accuracy in enumerate(columns["accuracy"], start=1):
        if accuracy >= target:
            return round, int(sum(columns["bytes_down"][:round]) + sum(columns["bytes_up"][:round]))
    return None


def reaching(one: Group, target: float) -> Reached:
    counted = one.finished or one.runs
    found = [got for run in counted if (got := to_target(run, target))]
    if not found:
        return Reached(0, len(counted), None, None)
    rounds, sent = np.array(found).T
    return Reached(len(found), len(counted), float(rounds.mean()), float(sent.mean()))


def parse_target(percent: float | None) -> float | None:
    if percent is not None and not 0 < percent <= 100:
        raise FedntdError(f"--target is an accuracy in percent, above 0 and at most 100, not {percent:g}")
    # as it was written: 1.1 / 100 is a little more than 22 right answers of 2,000
    return None if percent is None else float(Decimal(str(percent)) / 100)


# --- as columns of a table --------------------------------------------------------------------------------------


def extras(runs: Sequence[Run], baseline: str | None, target: float | None) -> list[Extra]:
    """What `--baseline` and `--target` (a share of 1) add to the table of runs."""
    columns: list[Extra] = []
    if baseline is not None:
        against = Baseline(runs, baseline)

        def told(g: Group) -> str:
            found = against.difference(g)
            if found is None:
                return "–"
            p = "" if found.p is None else f"p={found.p:.3f}\n" if found.p >= 0.001 else "p<0.001\n"
            return f"{100 * found.mean:+.2f}\n{p}n={found.n}"

        def numbers(g: Group) -> dict[str, Any]:
            found = against.difference(g)
            return {"difference": found and found.mean, "p": found and found.p, "pairs": found.n if found else 0}

        columns.append(Extra(f"vs {against.value}", told, numbers))
    if target is not None:

        def reached(g: Group) -> str:
            got = reaching(g, target)
            if got.rounds is None or got.bytes is None:
                return "never"
            share = "" if got.reached == got.runs else f"\n{got.reached}/{got.runs} runs"
            return f"{count(round(got.rounds), 'round')}\n{size(got.bytes)}{share}"

        def both(g: Group) -> dict[str, Any]:
            got = reaching(g, target)
            return {"target_reached": got.reached, "target_rounds": got.rounds, "target_bytes": got.bytes}

        columns.append(Extra(f"to {100 * target:g} %", reached, both))
    return columns


# --- two settings against each other ----------------------------------------------------------------------------


@dataclass(frozen=True)
class HeatMap:
    """The mean final accuracy for each pair of values of two settings; NaN where there is no finished run."""

    rows: str
    columns: str
    row_values: list[str]
    column_values: list[str]
    values: np.ndarray  # [row, column]
    counts: np.ndarray  # finished runs


def heat_map(runs: Sequence[Run], by: Sequence[str] = ()) -> HeatMap | None:
    """Of the two settings `by`, or of the only two in which the runs differ, the seed aside; else None, as where no run
    has finished."""
    keys = list(by) or telling(runs)
    if len(keys) != 2:
        return None
    cells: dict[tuple[str, ...], list[float]] = {}  # by repr, since a setting may be a list
    axes: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # repr -> value
    for run in runs:
        if any(run.settings.get(key) is None for key in keys):
            continue
        at = tuple(repr(run.settings[key]) for key in keys)
        value = summarise(run).final if run.status == "finished" else None
        cells.setdefault(at, []).extend([] if value is None else [value])
        for axis, key, place in zip(axes, keys, at, strict=True):
            axis[place] = run.settings[key]
    rows, columns = map(in_order, axes)
    is_list = len(rows) < 2 or len(columns) < 2 or len(cells) <= max(len(rows), len(columns))
    if is_list or not any(cells.values()):
        return None
    found = [[cells.get((row, column), []) for column in columns] for row in rows]
    return HeatMap(
        keys[0],
        keys[1],
        [words(keys[0], runs)[row] for row in rows],
        [words(keys[1], runs)[column] for column in columns],
        np.array([[float(np.mean(values)) if values else math.nan for values in row] for row in found]),
        np.array([[len(values) for values in row] for row in found]),
    )


def in_order(axis: dict[str, Any]) -> list[str]:
    numbers = all(isinstance(value, int | float) for value in axis.values())
    return sorted(axis, key=axis.__getitem__) if numbers else sorted(axis)
