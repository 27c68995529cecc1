"""Accuracy and forgetting of FedNTD over its temperature tau and its strength beta."""

import numpy as np

from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import GREEN, RED, panels

TAUS, BETAS = (0.1, 0.5, 1.0, 2.0, 5.0), (0.1, 0.3, 0.5, 1.0, 2.0, 3.0)
ROWS = {"Sharding s=2": ("cifar10-s2", RED), "LDA α=0.1": ("cifar10-lda0.1", GREEN)}
SWEEPS = {"τ": TAUS, "β": BETAS}
NAMES = {"τ": "tau", "β": "beta"}


def render(results: Results) -> list[Plot]:
    swept = [[v for v in values if results.finished(row, column(s, v))] for row in ROWS for s, values in SWEEPS.items()]
    if max(map(len, swept)) < 2:
        return []  # a line needs two points
    figure, axes = panels(1, 4, 10.4, 2.8)
    for left, right in ((0, 1), (2, 3)):
        axes[0][right].sharey(axes[0][left])
    rule = results.setting.rule
    figures = {"accuracy": "test accuracy (%)", "forgetting": "forgetting $F$"}
    for ax, (measure, sweep) in zip(axes[0], ((m, s) for m in figures for s in SWEEPS), strict=True):
        for row, (_, colour) in ROWS.items():

            def values_of(column: str, row: str = row, measure: str = measure) -> list[float]:
                runs = results.finished(row, column)
                return [100 * r.accuracies[rule] if measure == "accuracy" else r.forgetting for r in runs]

            points = {i: values_of(column(sweep, value)) for i, value in enumerate(SWEEPS[sweep])}
            points = {i: values for i, values in points.items() if values}
            mean = np.array([np.mean(values) for values in points.values()])
            std = np.array([np.std(values, ddof=1) if len(values) > 1 else 0 for values in points.values()])
            ax.errorbar(
                list(points), mean, std, fmt="o-", color=colour, label=f"FedNTD, {row}", markersize=4, capsize=2
            )
            if fedavg := values_of("FedAvg"):
                ax.axhline(float(np.mean(fedavg)), color=colour, linestyle=(0, (2, 1.5)), label=f"FedAvg, {row}")
        ax.set_xticks(range(len(SWEEPS[sweep])), [f"{value:g}" for value in SWEEPS[sweep]])
        ax.set(xlabel=f"${chr(92)}{NAMES[sweep]}$", title=figures[measure])
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)
    return [Plot("fig-hyper", figure, "τ is varied at β=1, β at τ=1. Dashed: FedAvg.")]


def column(sweep: str, value: float) -> str:
    return f"{sweep}={value:g}"


ITEM = Item(
    name="fig-hyper",
    title="Hyper-parameters of FedNTD, CIFAR-10",
    paper="Figures 15 and 16",
    about="The paper: FedNTD is not much sensitive to β; too small a τ costs accuracy.",
    runs={(row, "FedAvg"): table(preset) for row, (preset, _) in ROWS.items()}
    | {
        (row, column(sweep, value)): table(preset, {"name": "fedntd", NAMES[sweep]: value})
        for row, (preset, _) in ROWS.items()
        for sweep, values in SWEEPS.items()
        for value in values
    },
    render=render,
    seeds=1,
)
