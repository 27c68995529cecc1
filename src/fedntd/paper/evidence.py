"""Check a claim of the paper against the results.

A claim has its text, its place in the paper, its cases (set-ups, methods, ...), and a function that says whether it
holds in one case, with numbers. The functions ask for results as if all existed. A missing one raises `NotMeasured`,
which leaves the case open.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedntd.paper.item import Cell, Results

T = TypeVar("T")


class NotMeasured(Exception):
    """A result that a claim asks for is missing."""


class Finding(NamedTuple):
    """Whether a claim holds in one case."""

    holds: bool
    numbers: str


class Verdict(NamedTuple):
    """Whether a claim holds over all measured cases."""

    holds: bool | None  # None: no case is measured, or too few to decide
    numbers: str = ""
    good: int = 0  # cases in which the claim holds
    measured: int = 0
    cases: int = 1

    @property
    def words(self) -> str:
        if self.holds is None:
            return "undecided" if self.measured else "not measured yet"
        return ("holds" if self.measured == self.cases else "holds so far") if self.holds else "does not hold"

    @property
    def tally(self) -> str:
        """In how many cases the claim is true, if it has several."""
        if self.cases == 1 or not self.measured:
            return ""
        left = self.cases - self.measured
        return f"true of {self.good} of {self.measured} cases" + (f", {left} open" if left else "")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper."""

    where: str  # section of the paper
    text: str  # in the paper's words, or nearly
    find: Callable[["Evidence", str], Finding]  # checks one case
    cases: Sequence[str] = ("",)  # by default one case without a name
    mostly: bool = False  # True: must hold in more than half of the cases; False: in all

    def verdict(self, evidence: "Evidence") -> Verdict:
        findings = where_measured(self.cases, lambda case: self.find(evidence, case))
        if not findings:
            return Verdict(None, cases=len(self.cases))
        good = sum(finding.holds for finding in findings.values())
        numbers = "; ".join(
            f"{case}: {finding.numbers}" if case else finding.numbers for case, finding in findings.items()
        )
        holds: bool | None = good == len(findings)
        if self.mostly:
            open_cases = len(self.cases) - len(findings)
            holds = True if 2 * good > len(findings) else None if 2 * (good + open_cases) > len(self.cases) else False
        return Verdict(holds, numbers, good, len(findings), len(self.cases))


class Evidence:
    """The results of items under one protocol, as numbers. A missing result raises NotMeasured."""

    def __init__(self, results: Callable[[str], Results], rule: str) -> None:
        self.results, self.rule = results, rule

    def accuracy(self, item: str, row: str, column: str) -> float:
        """Mean accuracy of the finished runs in %; 0 if all failed."""
        results = self.results(item)
        if results[row, column] and not results.finished(row, column):
            return 0.0
        return mean(100 * result.accuracies[self.rule] for result in results.finished(row, column))

    def failed(self, item: str, row: str, column: str) -> str:
        """How many runs failed: "2 of 3", or empty if none did."""
        runs = self.results(item)[row, column]
        failed = sum(result.status == "failed" for result in runs)
        return f"{failed} of {len(runs)}" if failed else ""

    def forgetting(self, item: str, row: str, column: str) -> float:
        return mean(result.forgetting for result in self.results(item).finished(row, column))

    def over_rounds(self, item: str, row: str, column: str, measure: str, last: int = 0) -> float:
        """Mean of a measure over the finished runs and all rounds (or the `last` ones), times 100."""
        return mean(
            100 * value
            for result in self.results(item).finished(row, column)
            for value in result.history.get(measure, [])[-last:]
            if value is not None
        )

    def measured(self, item: str, key: str) -> Any:
        """What an item measured beyond the records."""
        value = self.results(item).measured.get(key)
        if not value:
            raise NotMeasured
        return value

    def side_by_side(self, item: str, cells: Sequence[Cell]) -> list[float]:
        """Mean accuracies of cells over the seeds that finished in all of them, as a seed is also a partition, and some
        partitions are harder. A cell in which all runs failed has accuracy 0 and does not restrict the seeds."""
        results = self.results(item)
        by_seed = [{r.config.seed: 100 * r.accuracies[self.rule] for r in results.finished(*cell)} for cell in cells]
        if not all(results[cell] for cell in cells):
            raise NotMeasured
        seeds = set.intersection(*(set(accuracies) for accuracies in by_seed if accuracies)) if any(by_seed) else set()
        return [mean(accuracies[seed] for seed in seeds) if accuracies else 0.0 for accuracies in by_seed]

    def lead(self, item: str, cell: Cell, baseline: Cell) -> float:
        """The accuracy of a cell minus that of another, in points."""
        accuracy, other = self.side_by_side(item, [cell, baseline])
        return accuracy - other

    def order(self, item: str, cells: dict[str, Cell]) -> dict[str, float]:
        """The accuracies of cells by name, the most accurate first."""
        pairs = zip(cells, self.side_by_side(item, list(cells.values())), strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))


def where_measured(cases: Iterable[str], find: Callable[[str], T]) -> dict[str, T]:
    """`find` of each case that is measured."""
    values = {}
    for case in cases:
        with suppress(NotMeasured):
            values[case] = find(case)
    return values


def mean(values: Any) -> float:
    numbers = [float(value) for value in np.ravel(list(values))]
    if not numbers:
        raise NotMeasured
    return float(np.mean(numbers))


def correlation(x: Any, y: Any) -> float:
    return float(np.corrcoef(np.ravel(x), np.ravel(y))[0, 1])


def correlation_within(x: Any, y: Any) -> float:
    """The correlation among the clients of a round, averaged over the rounds; x and y are [round, client].

    Rounds in which x or y is constant are skipped. A learning rate that falls over the rounds has no influence.

    >>> round(correlation_within([[0, 1], [0, 1], [5, 5]], [[8, 9], [1, 2], [0, 1]]), 6)
    1.0
    """
    rounds = [(a, b) for a, b in zip(x, y, strict=True) if np.ptp(a) and np.ptp(b)]
    return mean(correlation(a, b) for a, b in rounds)


def arrows(values: Sequence[float], digits: int) -> str:
    return " → ".join(f"{value:.{digits}f}" for value in values)
