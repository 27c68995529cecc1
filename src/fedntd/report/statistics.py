"""Statistics over many runs: difference to a baseline, rounds and bytes to a target, heat maps of two settings."""

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
    """Split "optimiser.lr=0.01" into key and value. A value alone is an algorithm.name, in short or in full."""
    key, equals, value = text.rpartition("=")
    key = key if equals else "algorithm.name"
    known = dict.fromkeys(k for run in runs for k in run.settings)
    require_known(key, known, f"--baseline {text}: no run has the setting '{key}'")
    wording = words(key, runs)
    value = wording.get(repr(value), value)
    values = wording.values()
    require_known(value, values, f"--baseline {text}: no run has {key} = {value}")
    return key, value


# --- difference to a baseline, and its significance -------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The difference of a group to the baseline, over pairs of runs with otherwise equal settings and seeds."""

    mean: float
    p: float | None  # two-sided paired t-test; None for fewer than two pairs, or if all differ equally
    n: int  # number of pairs


class Baseline:
    """The runs with one value of one setting, with which other runs are paired."""

    def __init__(self, runs: Sequence[Run], text: str) -> None:
        self.key, self.value = parse_baseline(text, runs)
        own = [self.key.removesuffix("name")] if self.key.endswith(".name") else []
        if self.key == "algorithm.name":
            own.append("auxiliary.")  # some methods need auxiliary data, the baseline may not
        self.paired_by = [
            key
            for key in differing(runs)
            if key != self.key and is_telling(key, runs) and not key.startswith(tuple(own))
        ]
        self.words = words(self.key, runs)
        self.values = self.mean_values([run for run in runs if self.holds(run)])

    def holds(self, run: Run) -> bool:
        """Whether a run belongs to the baseline."""
        return self.key in run.settings and self.words[repr(run.settings[self.key])] == self.value

    def mean_values(self, runs: Sequence[Run]) -> dict[str, float]:
        """Mean final accuracy for each combination of the settings by which runs are paired."""
        finals: dict[str, list[float]] = {}
        for run in runs:
            value = summarise(run).final if run.status == "finished" else None
            if value is not None:
                finals.setdefault(repr([run.settings.get(key) for key in self.paired_by]), []).append(value)
        return {key: float(np.mean(values)) for key, values in finals.items()}

    def difference(self, g: Group) -> Difference | None:
        """None for the baseline itself, and if no run can be paired."""
        if all(self.holds(run) for run in g.runs):
            return None
        values = self.mean_values([run for run in g.runs if not self.holds(run)])
        pairs = [(value, self.values[key]) for key, value in values.items() if key in self.values]
        if not pairs:
            return None
        group, baseline = np.array(pairs).T
        return Difference(float((group - baseline).mean()), paired_p(group, baseline), len(pairs))


def is_baseline(runs: Sequence[Run], text: str | None) -> Callable[[Run], bool]:
    """A function that says whether a run belongs to the baseline `text` (of `--baseline`)."""
    return Baseline(runs, text).holds if text is not None else lambda _: False


def paired_p(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < 2 or np.ptp(a - b) < 1e-12:  # equal differences, up to rounding
        return None
    from scipy.stats import ttest_rel  # slow to import

    return float(ttest_rel(a, b).pvalue)


# --- rounds and bytes to a target -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """What the runs of a group needed to reach an accuracy: means over the runs that did."""

    reached: int  # runs that did
    runs: int  # runs of the group
    rounds: float | None
    bytes: float | None  # in both directions


def to_target(run: Run, target: float) -> tuple[int, int] | None:
    """The first round with at least this accuracy, and the bytes sent up to it; None if it was never reached."""
    columns = run.columns
    for round, accuracy in enumerate(columns["accuracy"], start=1):
        if accuracy >= target:
            return round, int(sum(columns["bytes_down"][:round]) + sum(columns["bytes_up"][:round]))
    return None


def reaching(g: Group, target: float) -> Reached:
    counted = g.finished or g.runs
    needs = [need for run in counted if (need := to_target(run, target))]
    if not needs:
        return Reached(0, len(counted), None, None)
    rounds, sent = np.array(needs).T
    return Reached(len(needs), len(counted), float(rounds.mean()), float(sent.mean()))


def parse_target(percent: float | None) -> float | None:
    if percent is not None and not 0 < percent <= 100:
        raise FedntdError(f"--target is an accuracy in percent, above 0 and at most 100, not {percent:g}")
    # Decimal, since 1.1 / 100 in floats is a little more than 22 of 2,000 correct answers
    return None if percent is None else float(Decimal(str(percent)) / 100)


# --- additional columns -----------------------------------------------------------------------------------------


def extras(runs: Sequence[Run], baseline: str | None, target: float | None) -> list[Extra]:
    """The columns that `--baseline` and `--target` (a fraction of 1) add to the table of runs."""
    columns: list[Extra] = []
    if baseline is not None:
        against = Baseline(runs, baseline)

        def difference_text(g: Group) -> str:
            diff = against.difference(g)
            if diff is None:
                return "–"
            p = "" if diff.p is None else f"p={diff.p:.3f}\n" if diff.p >= 0.001 else "p<0.001\n"
            return f"{100 * diff.mean:+.2f}\n{p}n={diff.n}"

        def difference_values(g: Group) -> dict[str, Any]:
            diff = against.difference(g)
            return {"difference": diff and diff.mean, "p": diff and diff.p, "pairs": diff.n if diff else 0}

        columns.append(Extra(f"vs {against.value}", difference_text, difference_values))
    if target is not None:

        def target_text(g: Group) -> str:
            cost = reaching(g, target)
            if cost.rounds is None or cost.bytes is None:
                return "never"
            share = "" if cost.reached == cost.runs else f"\n{cost.reached}/{cost.runs} runs"
            return f"{count(round(cost.rounds), 'round')}\n{size(cost.bytes)}{share}"

        def target_values(g: Group) -> dict[str, Any]:
            cost = reaching(g, target)
            return {"target_reached": cost.reached, "target_rounds": cost.rounds, "target_bytes": cost.bytes}

        columns.append(Extra(f"to {100 * target:g} %", target_text, target_values))
    return columns


# --- heat map of two settings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeatMap:
    """The mean final accuracy for each pair of values of two settings; NaN without a finished run."""

    rows: str
    columns: str
    row_values: list[str]
    column_values: list[str]
    values: np.ndarray  # [row, column]
    counts: np.ndarray  # finished runs in each cell


def heat_map(runs: Sequence[Run], by: Sequence[str] = ()) -> HeatMap | None:
    """The heat map of the two settings `by`, or of the only two in which runs differ apart from the seed.

    None if there are not exactly two, if they do not form a grid, or if no run has finished.
    """
    keys = list(by) or telling(runs)
    if len(keys) != 2:
        return None
    cells: dict[tuple[str, ...], list[float]] = {}  # keyed by repr, since a setting may be a list
    axes: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # repr -> value
    for run in runs:
        if any(run.settings.get(key) is None for key in keys):
            continue
        pair = tuple(repr(run.settings[key]) for key in keys)
        value = summarise(run).final if run.status == "finished" else None
        cells.setdefault(pair, []).extend([] if value is None else [value])
        for axis, key, place in zip(axes, keys, pair, strict=True):
            axis[place] = run.settings[key]
    rows, columns = map(in_order, axes)
    is_list = len(rows) < 2 or len(columns) < 2 or len(cells) <= max(len(rows), len(columns))
    if is_list or not any(cells.values()):
        return None
    finals = [[cells.get((row, column), []) for column in columns] for row in rows]
    return HeatMap(
        keys[0],
        keys[1],
        [words(keys[0], runs)[row] for row in rows],
        [words(keys[1], runs)[column] for column in columns],
        np.array([[float(np.mean(values)) if values else math.nan for values in row] for row in finals]),
        np.array([[len(values) for values in row] for row in finals]),
    )


def in_order(axis: dict[str, Any]) -> list[str]:
    numbers = all(isinstance(value, int | float) for value in axis.values())
    return sorted(axis, key=axis.__getitem__) if numbers else sorted(axis)
