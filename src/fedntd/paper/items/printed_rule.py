"""Which rule turned a run's 200 accuracies into the figure that the paper prints?

The rules are compared on groups of cells. They were not chosen blindly: that means over nearly all rounds come close,
and that round 11 is a good start, was found on FedAvg, FedProx and FedNTD on CIFAR-10 (without LDA 0.05 and 0.1) and
CIFAR-100. Only the other groups are evidence that had no part in that (`SEARCHED`). P, accuracy plus F,
is the mean of the classes' best accuracies. It is the same under every rule, so it tells whether the runs themselves
agree with the paper's, whatever the rule is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedntd.paper import published
from fedntd.paper.item import Cell, Item, Plot, Results, Settings, table
from fedntd.paper.items.common import panels
from fedntd.paper.items.effects import EPOCHS, PARTITIONS, RATIO
from fedntd.paper.items.table1 import PRESETS
from fedntd.paper.published import TABLE1_LDA, TABLE1_SHARDING, Published
from fedntd.paper.tables import Figures, Table
from fedntd.report.charts import PALETTE
from fedntd.runs.ledger import RunResult
from fedntd.runs.measures import moving_average

# FedNova, MOON and FedCurv as the released code runs them, which is what print seems to have.
METHODS: Mapping[str, str] = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedNTD": "fedntd",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova-released",
    "MOON": "moon-released",
    "FedCurv": "fedcurv-released",
}
FIRST_METHODS = ("FedAvg", "FedProx", "FedNTD")  # the others have groups of their own
SETUPS = {column: preset for column, preset in PRESETS.items() if not column.startswith("CINIC")}
RATE = {"lr": 0.01}  # of the released code, whatever protocol is asked for
FIRST = 11  # the round from which the rule that fits takes its mean
FAR = 3.0  # points from print beyond which a cell counts as unexplained


def mean_from(first: int) -> Callable[[Sequence[float]], float]:
    """The mean of rounds `first` to the last; of all, if there are fewer."""
    return lambda values: float(np.mean(values[first - 1 :] or values))


def debiased(keep: float) -> Callable[[Sequence[float]], float]:
    """An exponential moving average that starts at 0, divided by the weight that it has given to values so far.

    >>> round(debiased(0.5)([1.0, 4.0]), 6)  # (0.25 · 1 + 0.5 · 4) / 0.75
    3.0
    """

    def average(values: Sequence[float]) -> float:
        weights = (1 - keep) * keep ** np.arange(len(values))[::-1]
        return float(weights @ np.asarray(values) / weights.sum())

    return average


RULES: dict[str, Callable[[Sequence[float]], float]] = {
    "last round": lambda values: values[-1],
    "mean of the last 10": lambda values: float(np.mean(values[-10:])),
    "moving average 0.6": moving_average,
    "best round": max,
    "mean of all rounds": mean_from(1),
    f"mean from round {FIRST}": mean_from(FIRST),
    "debiased moving average 0.995": debiased(0.995),
    "accuracy after 80 rounds": lambda values: values[min(80, len(values)) - 1],
}
PRINTED_RULE = f"mean from round {FIRST}"


# --- the cells, in groups ----------------------------------------------------------------------------------------


def groups() -> dict[str, dict[Cell, Published]]:
    """The cells of each group that print gives a figure for."""
    main = {(m, s): one for (m, s), one in (TABLE1_SHARDING | TABLE1_LDA).items() if m in METHODS and s in SETUPS}

    def some(methods: Sequence[str], start: str, ends: Sequence[str] = ()) -> dict[Cell, Published]:
        return {
            (m, s): one
            for (m, s), one in main.items()
            if m in methods and s.startswith(start) and (not ends or s.endswith(tuple(ends)))
        }

    others = [method for method in METHODS if method not in FIRST_METHODS]
    effects = {
        (method, f"{column}, {dealt}"): one
        for printed, dealt in (
            (published.EPOCHS_S2 | published.RATIOS_S2, "s=2"),
            (published.EPOCHS_LDA | published.RATIOS_LDA, "α=0.1"),
        )
        for (method, column), one in printed.items()
        if column not in ("E=5", "R=0.1")  # the setting of Table 1
    }
    found = {
        "CIFAR-10, sharding": some(FIRST_METHODS, "CIFAR-10 s"),
        "CIFAR-10, LDA 0.3, 0.5": some(FIRST_METHODS, "CIFAR-10 α", ("0.3", "0.5")),
        "CIFAR-10, LDA 0.05, 0.1": some(FIRST_METHODS, "CIFAR-10 α", ("0.05", "0.1")),
        "CIFAR-100": some(FIRST_METHODS, "CIFAR-100"),
        "MNIST": some(FIRST_METHODS, "MNIST"),
        "other methods, sharding": some(others, "", ("s=2", "s=3", "s=5", "s=10")),
        "other methods, LDA": some(others, "", ("α=0.05", "α=0.1", "α=0.3", "α=0.5")),
        "E and R": effects,
    }
    return {name: {cell: one for cell, one in cells.items() if one.value is not None} for name, cells in found.items()}


GROUPS = groups()
# the cells on which the rules were found, before this item was written: they cannot confirm them
SEARCHED = ("CIFAR-10, sharding", "CIFAR-10, LDA 0.3, 0.5", "CIFAR-100")
PRINTED: dict[Cell, Published] = {cell: one for cells in GROUPS.values() for cell, one in cells.items()}


def settings_of(cell: Cell) -> Settings:
    method, column = cell
    if column in SETUPS:
        return table(SETUPS[column], METHODS[method], optimiser=RATE)
    name, dealt = column.split(", ")
    preset = next(preset for preset, words in PARTITIONS.values() if words.endswith(dealt))
    effect = EPOCHS if name.startswith("E") else RATIO
    return table(preset, METHODS[method], federation={effect.key: effect.values[name]}, optimiser=RATE)


# --- ours beside print -------------------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A rule on a group of cells, in points: print is taken from ours."""

    distance: float  # mean of the absolute differences
    bias: float  # mean of the differences
    cells: int


def accuracies(run: RunResult) -> list[float]:
    return [100 * value for value in run.history["accuracy"]]


def by_rule(results: Results, cell: Cell, rule: Callable[[Sequence[float]], float]) -> list[float]:
    """One figure a finished run, in percent."""
    return [rule(accuracies(run)) for run in results.finished(*cell)]


def peaks(results: Results, cell: Cell) -> list[float]:
    """P of each run, in percent: final accuracy plus F."""
    return [accuracies(run)[-1] + 100 * run.forgetting for run in results.finished(*cell)]


def gap(results: Results, cells: Mapping[Cell, Published], rule: Callable[[Sequence[float]], float]) -> Gap | None:
    """None where no cell has been measured."""
    differences = [
        float(np.mean(ours)) - (printed.value or 0.0)
        for cell, printed in cells.items()
        if (ours := by_rule(results, cell, rule))
    ]
    if not differences:
        return None
    return Gap(float(np.mean(np.abs(differences))), float(np.mean(differences)), len(differences))


def unexplained(results: Results) -> list[str]:
    """The measured cells that the rule leaves far from print, the farthest first."""
    far = {
        cell: float(np.mean(ours)) - (printed.value or 0.0)
        for cell, printed in PRINTED.items()
        if (ours := by_rule(results, cell, RULES[PRINTED_RULE]))
    }
    ordered = sorted((cell for cell in far if abs(far[cell]) > FAR), key=lambda cell: -abs(far[cell]))
    return [f"{method} {column} ({far[method, column]:+.1f})" for method, column in ordered]


# --- what is shown -----------------------------------------------------------------------------------------------


def render(results: Results) -> Sequence[Table | Plot]:
    measured = any(by_rule(results, cell, max) for cell in PRINTED)
    shown: list[Table | Plot] = [distances(results), first_rounds(results)] if measured else []
    return [*shown, figures(results), peak_table(results), spreads(results)]


def distances(results: Results) -> Table:
    cells: dict[Cell, Figures | str] = {}
    counted = {}
    for name, group in GROUPS.items():
        for words, rule in RULES.items():
            found = gap(results, group, rule)
            cells[words, name] = Figures([found.distance], [found.bias]) if found else Figures()
            counted[name] = found.cells if found else 0
    counts = ", ".join(f"{name}: {number} of {len(GROUPS[name])}" for name, number in counted.items())
    fresh = [name for name in GROUPS if name not in SEARCHED]
    far = unexplained(results)
    left = f" Farther than {FAR:g} points from print by that rule: {', '.join(far)}." if far else ""
    caption = (
        "Mean distance from print in points, and in parentheses the mean difference (ours minus print), of the mean "
        f"over seeds, at the released learning rate, 0.01. {len(RULES)} rules were compared. The rule with round "
        f"{FIRST} was found on {'; '.join(SEARCHED)}: these columns do not confirm it. {'; '.join(fresh)} had no part "
        "in that search. "
        f"Cells that are measured: {counts}.{left}"
    )
    return Table(
        "printed-rule", "Distance from the printed figures by rule of reporting", caption, list(RULES), list(GROUPS),
        cells, "reported as", second="difference", lower_is_better=True,
    )  # fmt: skip


def first_rounds(results: Results) -> Plot:
    """How well a mean over rounds fits, by the round that it begins with."""
    figure, ((ax,),) = panels(1, 1, 6.4, 3.4)
    starts = list(range(1, 101, 2))
    for (name, group), colour in zip(list(GROUPS.items())[:5], PALETTE, strict=False):
        found = [gap(results, group, mean_from(first)) for first in starts]
        if all(found):
            width = 1.2 if name in SEARCHED else 2.0  # thick: had no part in finding the rule
            ax.plot(starts, [one.distance for one in found if one], color=colour, label=name, linewidth=width)
    ax.axvline(FIRST, color="#555555", linewidth=0.8, linestyle=(0, (2, 1.5)))
    ax.set(xlabel="first round of the mean", ylabel="mean distance from print (points)", ylim=(0, None), xlim=(1, 99))
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    caption = (
        f"How far the mean of all rounds from some round on is from print, by that round (dashed: {FIRST}); FedAvg, "
        "FedProx and FedNTD. Thick: groups that had no part in finding the rule."
    )
    return Plot("printed-rule-first", figure, caption)


def figures(results: Results) -> Table:
    """Every cell of Table 1 under the rule."""
    cells: dict[Cell, Figures | str] = {}
    for method in METHODS:
        for setup in SETUPS:
            cell = method, setup
            ours = by_rule(results, cell, RULES[PRINTED_RULE])
            rest = [(peak - mean) / 100 for peak, mean in zip(peaks(results, cell), ours, strict=True)]
            failed = sum(run.status == "failed" for run in results[cell])
            wanted = results.item.wanted_seeds(results.setting)
            cells[cell] = Figures(ours, rest, failed, wanted, (TABLE1_SHARDING | TABLE1_LDA)[cell])
    caption = (
        f"Accuracy in % as the {PRINTED_RULE}, with F as the mean of the classes' best accuracies minus that, beside "
        "print. FedNova, MOON and FedCurv as the released code runs them."
    )
    return Table(
        "printed-rule-table1", "Table 1 under the rule that fits", caption, list(METHODS), list(SETUPS), cells,
        second="F", compare="",
    )  # fmt: skip


def peak_table(results: Results) -> Table:
    """P of every cell of Table 1."""
    cells: dict[Cell, Figures | str] = {}
    for method in METHODS:
        for setup in SETUPS:
            printed = (TABLE1_SHARDING | TABLE1_LDA)[method, setup]
            known = printed.value is not None and printed.second is not None
            value = Published((printed.value or 0) + 100 * (printed.second or 0)) if known else Published(None)
            wanted = results.item.wanted_seeds(results.setting)
            cells[method, setup] = Figures(peaks(results, (method, setup)), wanted=wanted, published=value)
    caption = "P, accuracy plus F, in %: the mean of the classes' best accuracies. It depends on no rule of reporting."
    return Table(
        "printed-rule-peaks", "The classes' best accuracies, P", caption, list(METHODS), list(SETUPS), cells, compare=""
    )


def spreads(results: Results) -> Table:
    """Whether figures by a rule vary over seeds as the printed ones do."""
    cells: dict[Cell, Figures | str] = {}
    printed = TABLE1_SHARDING | TABLE1_LDA
    for words, rule in RULES.items():
        pairs = [
            (float(np.std(ours, ddof=1)), std)
            for cell in PRINTED
            if (std := printed.get(cell, Published(None)).std) and len(ours := by_rule(results, cell, rule)) > 1
        ]
        for column, values in (("ours", [ours for ours, _ in pairs]), ("print", [std for _, std in pairs])):
            cells[words, column] = Figures([float(np.median(values))]) if values else Figures()
        cells[words, "cells"] = str(len(pairs))
    caption = (
        "Median over cells of the standard deviation over seeds, in points. The printed figures vary little, as a mean "
        "over many rounds does; the last round varies far more."
    )
    return Table(
        "printed-rule-spread", "Standard deviations by rule of reporting", caption, list(RULES),
        ["ours", "print", "cells"], cells, "reported as", compare="",
    )  # fmt: skip


ITEM = Item(
    name="printed-rule",
    title="Which rule of reporting the printed figures follow",
    paper="not in the paper",
    about="The paper prints one accuracy a run, and does not say how it comes from 200 rounds. Eight rules on the runs "
    "of Table 1 and of the tables of E and R: which comes closest to "
    "print, and does it hold where it was not looked for?",
    runs={cell: settings_of(cell) for cell in PRINTED},
    render=render,
)
