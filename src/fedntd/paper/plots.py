"""Learning curves of several methods, one panel for each measure, as several items draw them."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedntd.paper.ledger import Result
from fedntd.report.summary import PALETTE


def curves(lines: Mapping[str, Sequence[Result]], measures: Mapping[str, str]) -> Figure:
    """One line a method, the mean over its runs; one panel a measure, whose title is given."""
    figure = Figure(figsize=(2.6 * len(measures), 2.8), layout="constrained")
    row: list[Axes] = list(figure.subplots(1, len(measures), squeeze=False)[0])
    for ax, (measure, title) in zip(row, measures.items(), strict=True):
        for (name, results), colour in zip(lines.items(), PALETTE, strict=False):
            mean_curve(ax, results, measure, label=name, color=colour)
        ax.set(title=title, xlabel="round")
    row[0].set_ylabel("accuracy (%)")
    legend(figure, row[0])
    return figure


def mean_curve(ax: Axes, results: Sequence[Result], measure: str, scale: float = 100, **style: str) -> None:
    """The mean over the runs in the rounds in which all have measured it; the band is one standard deviation."""
    shortest = min(len(result.history.get(measure, [])) for result in results)
    values = np.array([result.history.get(measure, [])[:shortest] for result in results], dtype=float)  # None: NaN
    rounds = np.flatnonzero(np.isfinite(values).all(0)) if shortest else np.array([], int)
    mean = scale * values[:, rounds].mean(0) if shortest else rounds
    few = {"marker": "o", "markersize": 3} if len(rounds) <= 25 else {}
    ax.plot(rounds + 1, mean, **few, **style)  # pyright: ignore[reportArgumentType]
    if len(results) > 1 and shortest:
        std = scale * values[:, rounds].std(0, ddof=1)
        ax.fill_between(rounds + 1, mean - std, mean + std, color=style.get("color"), alpha=0.16, linewidth=0)


def legend(figure: Figure, ax: Axes) -> None:
    """Above the panels, where it can hide nothing."""
    handles, names = ax.get_legend_handles_labels()
    if len(names) > 1:
        figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 7))
