"""Which learning rate and rule of reporting do the printed figures come from? The paper says 0.1 and 0.01."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedntd.paper.item import Cell, Item, Plot, Results, table
from fedntd.paper.plots import legend
from fedntd.paper.published import TABLE1_LDA, TABLE1_SHARDING, Published
from fedntd.paper.table1 import PRESETS
from fedntd.paper.tables import Figures, Table
from fedntd.report.summary import HEADINGS, PALETTE

RATES = (0.001, 0.002, 0.003, 0.005, 0.01)
SETUPS = tuple(column for column in PRESETS if column.startswith("CIFAR-10 "))
METHODS = {"FedAvg": "fedavg", "FedNTD": "fedntd"}
RULES = ("final", "best", "last10", "ema")
PRINTED: Mapping[Cell, Published] = TABLE1_SHARDING | TABLE1_LDA


def distances(results: Results) -> dict[tuple[str, float], list[float]]:
    """For each rule (and F) and rate: how far, in points, every cell that is measured at all rates is from print."""
    whole = [
        (method, setup)
        for method in METHODS
        for setup in SETUPS
        if all(results.finished(f"{method} lr={rate}", setup) for rate in RATES)
    ]
    found: dict[tuple[str, float], list[float]] = {
        (rule, rate): [] for rule in (*RULES, "forgetting") for rate in RATES
    }
    for (rule, rate), gaps in found.items():
        for method, setup in whole:
            runs, printed = results.finished(f"{method} lr={rate}", setup), PRINTED[method, setup]
            shares = [run.forgetting if rule == "forgetting" else run.accuracies[rule] for run in runs]
            print_share = printed.second if rule == "forgetting" else (printed.value or 0) / 100
            gaps.append(100 * abs(float(np.mean(shares)) - (print_share or 0)))
    return found


def render(results: Results) -> list[Table | Plot]:
    found: list[Table | Plot] = []
    for rule in RULES:
        cells = {
            cell: Figures(
                values=[100 * result.accuracies[rule] for result in results.finished(*cell)],
                seconds=[result.forgetting for result in results.finished(*cell)],
                failed=sum(result.status == "failed" for result in results[cell]),
                wanted=ITEM.wanted_seeds(results.setting),
                published=PRINTED[cell[0].split()[0], cell[1]],
            )
            for cell in results
        }
        caption = f"Accuracy in %, {HEADINGS[rule]}, and F beside Table 1's."
        rows = [f"{method} lr={rate}" for method in METHODS for rate in RATES]
        name, title = f"learning-rate-{rule}", f"CIFAR-10 by learning rate, reported as {HEADINGS[rule]}"
        found.append(Table(name, title, caption, rows, SETUPS, cells, corner="method and rate", second="F", compare=""))

    distance = distances(results)
    cells_told = max(map(len, distance.values()))
    if not cells_told:
        return found
    table = {
        (HEADINGS[rule], f"lr={rate}"): Figures(values=[float(np.mean(distance[rule, rate]))])
        for rule in (*RULES, "forgetting")
        for rate in RATES
    }
    caption = f"Mean distance from the printed accuracy and F over {cells_told} cells, in points; lower is closer."
    columns, rows = [f"lr={rate}" for rate in RATES], [HEADINGS[rule] for rule in (*RULES, "forgetting")]
    title = "Distance from the printed figures by learning rate and rule"
    whole = Table(
        "learning-rate", title, caption, rows, columns, table, "reported as", compare="columns", lower_is_better=True
    )
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    for rule, colour in zip((*RULES, "forgetting"), PALETTE, strict=False):
        means = [np.mean(distance[rule, rate]) for rate in RATES]
        ax.plot(RATES, means, marker="o", markersize=4, color=colour, label=HEADINGS[rule])
    ax.set(xscale="log", xlabel="learning rate", ylabel="mean distance (points)", ylim=(0, None))
    ax.set_xticks(RATES, [str(rate) for rate in RATES])
    ax.minorticks_off()
    legend(figure, ax)
    return [whole, Plot("learning-rate-distance", figure, caption), *found]


ITEM = Item(
    name="learning-rate",
    title="Which learning rate the printed figures come from, CIFAR-10",
    paper="Section 4.1 and Appendix B.3 disagree",
    about="The paper gives an initial learning rate of 0.1 in one place and 0.01 in another. FedAvg and FedNTD at "
    "several rates and by several rules of reporting, and how far each is from Table 1.",
    runs={
        (f"{method} lr={rate}", setup): table(PRESETS[setup], name, optimiser={"lr": rate})
        for method, name in METHODS.items()
        for rate in RATES
        for setup in SETUPS
    },
    seeds=1,
    render=render,
)
