"""Find the learning rate and the reporting rule of the paper's numbers. The paper says both 0.1 and 0.01."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedntd.paper.item import Cell, Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, METHODS, panels
from fedntd.paper.items.table1 import PRESETS
from fedntd.paper.published import TABLE1_LDA, TABLE1_SHARDING, Published
from fedntd.paper.tables import Figures, Table, accuracy_cells
from fedntd.report.charts import PALETTE

RATES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.1)
SETUPS = tuple(column for column in PRESETS if column.startswith("CIFAR-10 "))
RULES = {"final": "last round", "best": "best round", "last10": "mean of the last 10", "ema": "moving average 0.6"}
RULES |= {"forgetting": "F"}
FAR = 25  # points; larger distances from the paper are not drawn
PRINTED: Mapping[Cell, Published] = TABLE1_SHARDING | TABLE1_LDA


def row(method: str, rate: float) -> str:
    return f"{method} lr={rate}"


def figures(results: Results, method: str, rate: float, setup: str, rule: str) -> list[float]:
    """Accuracy by a rule, or F, of each run, times 100. The accuracy of a failed run is 0; it has no F."""
    runs = results[row(method, rate), setup]
    if rule == "forgetting":
        return [100 * run.forgetting for run in runs if run.status == "finished"]
    return [100 * run.accuracies[rule] if run.status == "finished" else 0.0 for run in runs]


# --- how well a rate fits ---------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """Distances between our results and the paper's, for each rule and rate."""

    rates: list[float]  # rates with results
    cells: list[Cell]  # (method, set-up) measured at all of these rates, so that rates can be compared
    distance: dict[tuple[str, float], dict[Cell, float]]  # (rule, rate) -> distance of each cell, in points

    def mean(self, rule: str, rate: float, method: str = "") -> float:
        gaps = [gap for (m, _), gap in self.distance[rule, rate].items() if method in ("", m)]
        return float(np.mean(gaps)) if gaps else float("nan")

    def closest(self, method: str = "") -> tuple[str, float]:
        """The rule for accuracies and the rate with the smallest mean distance."""
        candidates = [(rule, rate) for rule in RULES if rule != "forgetting" for rate in self.rates]
        return min(candidates, key=lambda candidate: self.mean(*candidate, method))


def fit(results: Results) -> Fit:
    pairs = [(method, setup) for method in METHODS for setup in SETUPS]
    rates = [rate for rate in RATES if any(results[row(m, rate), setup] for m, setup in pairs)]
    cells = [(m, setup) for m, setup in pairs if rates and all(results[row(m, rate), setup] for rate in rates)]
    distance: dict[tuple[str, float], dict[Cell, float]] = {}
    for rule in RULES:
        for rate in rates:
            distance[rule, rate] = {}
            for cell in cells:
                method, setup = cell
                ours, printed = figures(results, method, rate, setup, rule), PRINTED[cell]
                target = 100 * (printed.second or 0) if rule == "forgetting" else printed.value
                if ours and target is not None:
                    distance[rule, rate][cell] = abs(float(np.mean(ours)) - target)
    return Fit(rates, cells, distance)


def finding(fitted: Fit) -> str:
    """The closest rule and rate, in a sentence."""

    def text(method: str = "") -> str:
        rule, rate = fitted.closest(method)
        return f"lr={rate}, {RULES[rule]}: {fitted.mean(rule, rate, method):.1f} points"

    methods = [method for method in METHODS if any(method == m for m, _ in fitted.cells)]
    alone = "; ".join(f"{method} alone: {text(method)}" for method in methods) if len(methods) > 1 else ""
    return f"Closest over {len(fitted.cells)} cells: {text()}. {alone}{'.' if alone else ''}".strip()


def cells_text(cells: list[Cell]) -> str:
    """Cells as text: "FedAvg on s=2, α=0.1; FedNTD on s=2"."""
    setups = {m: [setup.removeprefix("CIFAR-10 ") for method, setup in cells if method == m] for m in METHODS}
    return "; ".join(f"{method} on {', '.join(names)}" for method, names in setups.items() if names)


# --- rendering --------------------------------------------------------------------------------------------------


def render(results: Results) -> Sequence[Table | Plot]:
    fitted = fit(results)
    comparable = fitted.cells and len(fitted.rates) > 1
    rule = fitted.closest()[0] if comparable else results.setting.rule
    shown: list[Table | Plot] = [accuracies(results, rule)]
    if len(fitted.rates) > 1:
        shown = [against_print(results, fitted.rates, rule), *shown]
    return [distances(fitted), distance_curves(fitted), *shown] if comparable else shown


def distances(fitted: Fit) -> Table:
    cells: dict[Cell, Figures | str] = {}
    for rule, words in RULES.items():
        for rate in fitted.rates:
            gap = fitted.mean(rule, rate)
            cells[words, f"lr={rate}"] = Figures(values=[gap]) if np.isfinite(gap) else "failed"
    caption = (
        f"Mean distance between the mean over seeds and the printed figure, in points (of F: hundredths), over the "
        f"{len(fitted.cells)} cells measured at every rate that was tried ({cells_text(fitted.cells)}). Lower is "
        f"closer; a failed run counts as 0 %, and has no F. {finding(fitted)}"
    )
    title = "Distance from the printed figures by learning rate and rule of reporting"
    columns = [f"lr={rate}" for rate in fitted.rates]
    return Table(
        "learning-rate", title, caption, list(RULES.values()), columns, cells, "reported as", compare="columns",
        lower_is_better=True,
    )  # fmt: skip


def distance_curves(fitted: Fit) -> Plot:
    figure, ((ax,),) = panels(1, 1, 5.6, 3.2)
    for rule, colour in zip(RULES, PALETTE, strict=False):
        means = [fitted.mean(rule, rate) for rate in fitted.rates]
        dashes = (0, (2, 1.5)) if rule == "forgetting" else "solid"
        ax.plot(range(len(means)), means, "o", linestyle=dashes, markersize=4, color=colour, label=RULES[rule])
    rate_axis(ax, fitted.rates)
    ax.set(ylabel="mean distance from print (points)", ylim=(0, min(FAR, ax.get_ylim()[1])))
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    caption = f"How far each rule of reporting is from print, by learning rate. {finding(fitted)}"
    return Plot("learning-rate-distance", figure, caption)


def against_print(results: Results, rates: list[float], rule: str) -> Plot:
    """One panel per set-up with several rates: our results, and a band for the paper's."""
    setups = [s for s in SETUPS if sum(any(results[row(m, rate), s] for m in METHODS) for rate in rates) > 1]
    columns = min(4, len(setups))
    lines = -(-len(setups) // columns)
    figure, axes = panels(lines, columns, 0.8 + 2.3 * max(columns, 2), 0.8 + 2.1 * lines, sharey=True, sharex=True)
    flat = [ax for line in axes for ax in line]
    for ax in flat[len(setups) :]:
        ax.set_visible(False)
    for ax, setup in zip(flat, setups, strict=False):
        for method in METHODS:
            colour, printed = COLOURS[method], PRINTED[method, setup]
            measured = {rate: figures(results, method, rate, setup, rule) for rate in rates}
            measured = {rate: values for rate, values in measured.items() if values}
            means = [float(np.mean(values)) for values in measured.values()]
            spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in measured.values()]
            at = [rates.index(rate) for rate in measured]
            ax.errorbar(at, means, spread, fmt="o-", color=colour, markersize=4, capsize=2, linewidth=1.2)
            failed = [i for i in at if any(run.status == "failed" for run in results[row(method, rates[i]), setup])]
            if failed:  # an empty, unclipped line would break the layout
                ax.plot(failed, [0] * len(failed), "X", color=colour, markersize=6, clip_on=False)
            if printed.value is not None:
                ax.axhline(printed.value, color=colour, linestyle=(0, (2, 1.5)), linewidth=1)
                std = printed.std or 0
                ax.axhspan(printed.value - std, printed.value + std, color=colour, alpha=0.15, linewidth=0)
        rate_axis(ax, rates)
        ax.set_title(setup)
        ax.label_outer()
    flat[0].set_ylim(bottom=0)
    for line in axes:
        line[0].set_ylabel("accuracy (%)")
    looks: dict[str, Any] = {
        "measured": {"marker": "o", "markersize": 4},
        "printed": {"linestyle": (0, (2, 1.5))},
    }
    keys = [
        Line2D([], [], color=COLOURS[method], label=f"{method}, {words}", **look)
        for method in METHODS
        for words, look in looks.items()
    ]
    figure.legend(handles=keys, loc="outside upper center", ncols=2 if columns < 3 else 4)
    caption = (
        f"Accuracy ({RULES[rule]}) by learning rate, beside what Table 1 prints (dashed; band: its standard "
        "deviation). Where the dots meet their dashed line, the rate fits. ✕: a run failed."
    )
    return Plot("learning-rate", figure, caption)


def rate_axis(ax: Axes, rates: list[float]) -> None:
    """Space the rates evenly: on a logarithmic axis, 0.1 would be far from the others."""
    ax.set_xlabel("learning rate")
    ax.set_xticks(range(len(rates)), [f"{rate:g}".removeprefix("0") for rate in rates])


def accuracies(results: Results, rule: str) -> Table:
    printed = {
        (row(method, rate), setup): PRINTED[method, setup] for method in METHODS for rate in RATES for setup in SETUPS
    }
    return Table(
        name="learning-rate-accuracy",
        title="CIFAR-10 by learning rate",
        caption=f"Accuracy in % ({RULES[rule]}) and F, beside those of Table 1.",
        corner="method and rate",
        rows=[row(method, rate) for method in METHODS for rate in RATES],
        columns=SETUPS,
        cells=accuracy_cells(results, printed, rule=rule),
        second="F",
        compare="",
    )


ITEM = Item(
    name="learning-rate",
    title="Which learning rate the printed figures come from, CIFAR-10",
    paper="Section 4.1 and Appendix B.3 disagree",
    about="The paper gives an initial learning rate of 0.1 in one place and 0.01 in another. FedAvg and FedNTD at "
    "several rates and by several rules of reporting, and how far each is from Table 1.",
    runs={
        (row(method, rate), setup): table(PRESETS[setup], name, optimiser={"lr": rate})
        for method, name in METHODS.items()
        for rate in RATES
        for setup in SETUPS
    },
    seeds=1,
    render=render,
)
