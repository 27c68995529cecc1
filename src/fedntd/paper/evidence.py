"""How a claim of the paper is judged by the results that there are.

A claim is a sentence of the paper, where it stands, the cases that it is about (set-ups, methods, ...), and a function
that says of one case whether it holds there, with numbers. The functions ask for figures as if all were there: one that
is not makes its case open.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedntd.paper.item import Cell, Results

T = TypeVar("T")


class NotMeasured(Exception):
    """The evidence lacks what a claim asks for."""


class Finding(NamedTuple):
    """Of one case."""

    holds: bool
    numbers: str


class Verdict(NamedTuple):
    """Of all cases that are measured."""

    holds: bool | None  # None: none is measured, or too few to say
    numbers: str = ""
    good: int = 0  # cases in which it holds
    measured: int = 0
    cases: int = 1

    @property
    def words(self) -> str:
        if self.holds is None:
            return "undecided" if self.measured else "not measured yet"
        return ("holds" if self.measured == self.cases else "holds so far") if self.holds else "does not hold"

    @property
    def tally(self) -> str:
        """Of how many cases it is true, if it is about several."""
        if self.cases == 1 or not self.measured:
            return ""
        left = self.cases - self.measured
        return f"true of {self.good} of {self.measured} cases" + (f", {left} open" if left else "")


@dataclass(frozen=True)
class Claim:
    where: str  # in the paper
    text: str  # in its words, or nearly
    find: Callable[["Evidence", str], Finding]  # of one case
    cases: Sequence[str] = ("",)  # a claim about one thing has one case, without a name
    mostly: bool = False  # more than half of the cases are enough; else one that fails is too many

    def verdict(self, of: "Evidence") -> Verdict:
        found = where_measured(self.cases, lambda case: self.find(of, case))
        if not found:
            return Verdict(None, cases=len(self.cases))
        good = sum(finding.holds for finding in found.values())
        numbers = "; ".join(
            f"{case}: {finding.numbers}" if case else finding.numbers for case, finding in found.items()
        )
        holds: bool | None = good == len(found)
        if self.mostly:
            still = len(self.cases) - len(found)
            holds = True if 2 * good > len(found) else None if 2 * (good + still) > len(self.cases) else False
        return Verdict(holds, numbers, good, len(found), len(self.cases))


class Evidence:
    """The results of items under one protocol, as figures. What is not there raises NotMeasured."""

    def __init__(self, results: Callable[[str], Results], rule: str) -> None:
        self.results, self.rule = results, rule

    def accuracy(self, item: str, row: str, column: str) -> float:
        """Mean over the finished runs, in %; 0 where all failed."""
        results = self.results(item)
        if results[row, column] and not results.finished(row, column):
            return 0.0
        return mean(100 * result.accuracies[self.rule] for result in results.finished(row, column))

    def failed(self, item: str, row: str, column: str) -> str:
        """How many of the runs: "2 of 3", or nothing where none did."""
        runs = self.results(item)[row, column]
        failed = sum(result.status == "failed" for result in runs)
        return f"{failed} of {len(runs)}" if failed else ""

    def forgetting(self, item: str, row: str, column: str) -> float:
        return mean(result.forgetting for result in self.results(item).finished(row, column))

    def over_rounds(self, item: str, row: str, column: str, measure: str, last: int = 0) -> float:
        """Mean of a measure of accuracy over the rounds (or the last of them) and the finished runs, in %."""
        return mean(
            100 * value
            for result in self.results(item).finished(row, column)
            for value in result.history.get(measure, [])[-last:]
            if value is not None
        )

    def measured(self, item: str, key: str) -> Any:
        """What an item measured beyond the records."""
        found = self.results(item).measured.get(key)
        if not found:
            raise NotMeasured
        return found

    def side_by_side(self, item: str, cells: Sequence[Cell]) -> list[float]:
        """Accuracies of cells that are all measured, over the seeds that finished in each of them, since a seed is a
        partition, and some are harder. 0 where all runs failed, which leaves the others their seeds."""
        results = self.results(item)
        by_seed = [{r.config.seed: 100 * r.accuracies[self.rule] for r in results.finished(*cell)} for cell in cells]
        if not all(results[cell] for cell in cells):
            raise NotMeasured
        seeds = set.intersection(*(set(found) for found in by_seed if found)) if any(by_seed) else set()
        return [mean(found[seed] for seed in seeds) if found else 0.0 for found in by_seed]

    def lead(self, item: str, ahead: Cell, behind: Cell) -> float:
        """How many points one cell is above another."""
        mine, other = self.side_by_side(item, [ahead, behind])
        return mine - other

    def order(self, item: str, cells: dict[str, Cell]) -> dict[str, float]:
        """The accuracies of cells that are all measured, by their names, the most accurate first."""
        found = zip(cells, self.side_by_side(item, list(cells.values())), strict=True)
        return dict(sorted(found, key=lambda one: -one[1]))


def where_measured(cases: Iterable[str], find: Callable[[str], T]) -> dict[str, T]:
    found = {}
    for case in cases:
        with suppress(NotMeasured):
            found[case] = find(case)
    return found


def mean(values: Any) -> float:
    known = [float(value) for value in np.ravel(list(values))]
    if not known:
        raise NotMeasured
    return float(np.mean(known))


def correlation(x: Any, y: Any) -> float:
    return float(np.corrcoef(np.ravel(x), np.ravel(y))[0, 1])


def correlation_within(x: Any, y: Any) -> float:
    """Of [round, client]: among the clients of a round, on average over the rounds in which both differ. So a learning
    rate that falls over the rounds is left out of it.

    >>> round(correlation_within([[0, 1], [0, 1], [5, 5]], [[8, 9], [1, 2], [0, 1]]), 6)
    1.0
    """
    rounds = [(a, b) for a, b in zip(x, y, strict=True) if np.ptp(a) and np.ptp(b)]
    return mean(correlation(a, b) for a, b in rounds)


def arrows(values: Sequence[float], digits: int) -> str:
    return " → ".join(f"{value:.{digits}f}" for value in values)
