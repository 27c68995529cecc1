"""Learning curves of methods, shared by several items."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedntd.paper.items.common import COLOURS, panels, rounds_axis
from fedntd.runs.ledger import RunResult


class Panel(NamedTuple):
    """One measure of several methods."""

    title: str
    measure: str
    lines: Mapping[str, Sequence[RunResult]]  # method -> its runs


def curves(drawn: Sequence[Panel]) -> Figure:
    """One line per method, the mean over its runs; up to three panels in a row, on one scale."""
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure, axes = panels(rows, columns, 0.4 + 2.5 * max(columns, 2), 0.5 + 2.3 * rows, sharey=True)
    flat = [ax for row in axes for ax in row]
    for ax in flat[len(drawn) :]:
        ax.set_visible(False)
    for ax, panel in zip(flat, drawn, strict=False):
        for name, runs in panel.lines.items():
            mean_curve(ax, runs, panel.measure, label=name, color=COLOURS[name])
            rounds_axis(ax, max(len(run.history["accuracy"]) for run in runs))
        ax.set_title(panel.title)
    for row in axes:
        row[0].set_ylabel("accuracy (%)")
    for ax in axes[-1]:
        ax.set_xlabel("round")
    legend(figure, *flat)
    return figure


def mean_curve(ax: Axes, results: Sequence[RunResult], measure: str, smooth: int = 1, **style: str) -> None:
    """Draw the mean over the runs in %, in rounds that all of them measured, with a band of one standard deviation.

    With more than 50 rounds, draw the running mean of `smooth` rounds, centred.
    """
    shortest = min(len(result.history.get(measure, [])) for result in results)
    values = np.array([result.history.get(measure, [])[:shortest] for result in results], dtype=float)  # None: NaN
    rounds = np.flatnonzero(np.isfinite(values).all(0)) if shortest else np.array([], int)
    values = 100 * values[:, rounds] if shortest else np.empty((len(results), 0))
    if smooth > 1 and len(rounds) > 50:
        values = np.stack([np.convolve(row, np.full(smooth, 1 / smooth), mode="valid") for row in values])
        rounds = rounds[smooth // 2 : smooth // 2 + values.shape[1]]
    mean = values.mean(0)
    markers = {"marker": "o", "markersize": 3} if len(rounds) <= 25 else {}
    ax.plot(rounds + 1, mean, **markers, **style)  # pyright: ignore[reportArgumentType]
    if len(results) > 1:
        std = values.std(0, ddof=1)
        ax.fill_between(rounds + 1, mean - std, mean + std, color=style.get("color"), alpha=0.16, linewidth=0)


def legend(figure: Figure, *axes: Axes) -> None:
    """Put the legend above the panels. A single line is named, too, as others may not be measured yet."""
    named = {name: line for ax in axes for line, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=min(len(named), 7))
