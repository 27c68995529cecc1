"""Figures for papers: each function takes runs and returns a matplotlib Figure; `save_figures` writes all of them."""

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedntd.report.charts import (
    MOST_CURVES,
    Costs,
    Curve,
    best_groups,
    curves,
    distinct_partitions,
    is_number,
    partition_title,
)
from fedntd.report.statistics import HeatMap, heat_map, is_baseline
from fedntd.report.style import BLUES, GREY, bare, colour_bar, plain, save_figure, styled, whole_numbers
from fedntd.report.summary import Group, group, labels
from fedntd.runs.reader import Run

# --- line charts ------------------------------------------------------------------------------------------------


def learning_curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Test accuracy over the rounds."""
    return lines_figure(runs, "accuracy", "test accuracy (%)", 100, by=by)


def forgetting_curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Forgetting F over the rounds."""
    figure = lines_figure(runs, "forgetting", "forgetting $F$", 1, by=by)
    for ax in figure.axes:
        ax.axhline(0, color="#555555", linewidth=0.7, zorder=1)  # below zero, the model is better than ever before
    return figure


def consistency_curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Figure 2b: cosine similarity of the class-wise accuracies of consecutive rounds."""
    return lines_figure(runs, "similarity", "cosine similarity to the round before", 1, top=1, by=by)


def lines_figure(
    runs: Sequence[Run], name: str, label: str, scale: float, top: float | None = None, by: Sequence[str] = ()
) -> Figure:
    """Draw one measure over the rounds: one panel, or one per setting (facet) with a common scale."""
    drawn = [curve for curve in curves(runs, by) if curve.values(name)[0]]
    facets = list(dict.fromkeys(curve.facet for curve in drawn)) or [""]
    columns = len(facets) if len(facets) <= 3 else ceil(len(facets) / 2)
    rows = ceil(len(facets) / columns)
    with styled():
        size = (5.6, 3.3) if len(facets) == 1 else (7.2, 0.5 + 2.3 * rows)
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
        for i, (ax, facet) in enumerate(zip(axes, facets, strict=False)):
            for curve in drawn:
                if curve.facet == facet:
                    rounds, mean, std = curve.values(name)
                    draw(ax, curve, rounds, scale * mean, None if std is None else scale * std)
            ax.set(title=plain(facet), xlabel="round", ylabel="" if i % columns else label)
            all_rounds(ax, runs)
        axes[0].set_ylim(top=top)  # shared by all panels; set last, since it turns autoscaling off
        for ax in axes[len(facets) :]:
            ax.remove()
        legend(figure, drawn)
    return figure


def draw(ax: Axes, curve: Curve, rounds: Sequence[int], mean: np.ndarray, std: np.ndarray | None) -> None:
    markers = {"marker": "o", "markersize": 3} if len(rounds) <= 25 else {}
    style = "solid" if curve.facet else dashes(curve)  # each setting has its own panel
    ax.plot(rounds, mean, color=curve.colour, linestyle=style, label=plain(curve.label), **markers)
    if std is not None:
        ax.fill_between(rounds, mean - std, mean + std, color=curve.colour, alpha=0.16, linewidth=0)
    if curve.runs[0].status == "failed" and len(rounds):
        ax.plot(rounds[-1:], mean[-1:], "X", color=curve.colour, markersize=6, markeredgecolor="white")


# --- figure 4 ---------------------------------------------------------------------------------------------------


def local_curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Figure 4: in-local and out-local accuracy of local models, and of the global model before and after a round."""
    drawn = [curve for curve in curves(runs, by) if curve.values("global_in_before")[0]]
    with styled():
        figure = Figure(figsize=(6.8, 0.6 + 2.1 * max(1, len(drawn))), layout="constrained")
        rows = figure.subplots(max(1, len(drawn)), 2, sharex=True, sharey=True, squeeze=False)
        for curve, row in zip(drawn, rows, strict=False):
            for ax, side in zip(row, ("in", "out"), strict=True):
                rounds, mean, _ = curve.values(f"{side}_local")
                _, spread, _ = curve.values(f"{side}_local_std")
                for when, style in (("before", (0, (2, 1.5))), ("after", "solid")):
                    measured_rounds, values, _ = curve.values(f"global_{side}_{when}")
                    label = f"global {when}"
                    ax.plot(measured_rounds, 100 * values, color=GREY, linestyle=style, linewidth=1, label=label)
                draw(ax, curve, rounds, 100 * mean, 100 * spread)
                ax.set_title(f"{plain(curve.label)}: {side}-local")
                ax.set_ylim(0, 100)
                all_rounds(ax, runs)
            row[0].set_ylabel("accuracy (%)")
        for ax in rows[-1]:
            ax.set_xlabel("round")
        keys = [
            Line2D([], [], color="black", label="local models, mean ± std"),
            Line2D([], [], color=GREY, linewidth=1, linestyle=(0, (2, 1.5)), label="global model before the round"),
            Line2D([], [], color=GREY, linewidth=1, label="after"),
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=3)
    return figure


# --- heat maps --------------------------------------------------------------------------------------------------


def class_accuracy(runs: Sequence[Run]) -> Figure:
    """Figure 2a: class-wise accuracy over the rounds, one panel per run, on one colour scale."""
    panels = [(label, run) for label, run in zip(labels(runs), runs, strict=True) if run.rounds]
    columns = min(2, max(1, len(panels)))
    height = sum(panel_height(len(panels[i][1].classes)) + 0.3 for i in range(0, len(panels), columns))
    with styled():
        figure = Figure(figsize=(7.2 if columns == 2 else 5.4, max(2.0, height + 0.8)), layout="constrained")
        axes = list(figure.subplots(ceil(max(1, len(panels)) / columns), columns, squeeze=False).flat)
        norm = Normalize(0, 100)
        for i, (ax, (label, run)) in enumerate(zip(axes, panels, strict=False)):
            first, last = run.records[0].round, run.records[-1].round
            values = np.array([record.class_accuracy for record in run.records], dtype=float).T
            extent = (first - 0.5, last + 0.5, len(run.classes) - 0.5, -0.5)
            ax.imshow(100 * values, aspect="auto", cmap="viridis", norm=norm, interpolation="nearest", extent=extent)
            ax.set(
                title=plain(label), xlabel="round", facecolor="#F2F2F2"
            )  # grey: rounds that this run has not reached
            bare(ax)
            all_rounds(ax, runs)
            name_classes(ax, run.classes)
            if i % columns and run.classes == panels[i - 1][1].classes:
                ax.set(yticks=[], ylabel="")
        for ax in axes[len(panels) :]:
            ax.remove()
        colour_bar(figure, "viridis", norm, "class-wise test accuracy (%)", figure.axes)
    return figure


def partition_map(run: Run) -> Figure:
    """Figure 3: samples of each class per client, for the whole federation."""
    return partition_figure(run.counts, run.classes, partition_title(run.config))


def partition_figure(counts: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """Draw counts[client, class] as a heat map, with each client's total above it."""
    clients = len(counts)
    with styled():
        figure = Figure(figsize=(7.2, panel_height(len(classes)) + 1.5), layout="constrained")
        sizes, ax = figure.subplots(2, 1, sharex=True, height_ratios=[0.35, panel_height(len(classes))])
        sizes.bar(np.arange(clients), counts.sum(1), width=0.8 if clients <= 200 else 1, color="#9AA5AE")
        sizes.set(title=plain(title), ylabel="total", ylim=(0, None))
        sizes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        # The square root makes small counts distinct from zero.
        norm = PowerNorm(0.5, 0, max(1, counts.max()))
        shown = np.ma.masked_equal(counts.T, 0)
        ax.pcolormesh(np.arange(clients + 1) - 0.5, np.arange(len(classes) + 1) - 0.5, shown, cmap=BLUES, norm=norm)
        ax.invert_yaxis()
        ax.set_xlabel("client")
        ax.set_xlim(-0.5, clients - 0.5)
        ax.xaxis.set_major_locator(whole_numbers())
        bare(ax)
        name_classes(ax, classes)
        colour_bar(figure, BLUES, norm, "samples of the class", [sizes, ax])
    return figure


def panel_height(classes: int) -> float:
    return float(np.clip(0.17 * classes, 1.3, 4.5))


# --- shared helpers, heat map and cost --------------------------------------------------------------------------


def dashes(curve: Curve) -> str | tuple[int, tuple[float, ...]]:
    return (0, tuple(float(part) for part in curve.dash.split())) if curve.dash else "solid"


def all_rounds(ax: Axes, runs: Sequence[Run]) -> None:
    """The same rounds in every panel."""
    ax.set_xlim(0.5, max(run.rounds for run in runs) + 0.5)
    ax.xaxis.set_major_locator(whole_numbers())


def name_classes(ax: Axes, classes: Sequence[str]) -> None:
    """Label the rows with class names if they fit, otherwise with some of the class numbers."""
    if len(classes) <= 30:
        ax.set_yticks(range(len(classes)), [plain(name) for name in classes])
    else:
        ax.set_yticks(range(0, len(classes), 10 * ceil(len(classes) / 150)))
        ax.set_ylabel("class")


def legend(figure: Figure, drawn: Sequence[Curve]) -> None:
    """Put the legend above the axes, in as many columns as the labels allow; a single curve becomes the title."""
    if len(drawn) > 1 and drawn[0].facet:
        methods = {curve.method: Line2D([], [], color=curve.colour, label=plain(curve.method)) for curve in drawn}
        figure.legend(handles=[*methods.values()], loc="outside upper center", ncols=legend_columns(methods, 90))
    elif len(drawn) > 1:
        labels = [curve.label for curve in drawn]
        figure.legend(loc="outside upper center", ncols=min(4, legend_columns(labels, 70)))
    elif drawn:
        figure.axes[0].set_title(plain(drawn[0].label))


def legend_columns(labels: Iterable[str], letters: int) -> int:
    return max(1, letters // (max(map(len, labels), default=0) + 6))


def heat_figure(heat: HeatMap) -> Figure:
    """The mean final accuracy for each pair of values of two settings."""
    with styled():
        rows, columns = heat.values.shape
        figure = Figure(figsize=(1.6 + 0.7 * columns, 1.1 + 0.42 * rows), layout="constrained")
        ax = figure.subplots()
        ax.imshow(100 * heat.values, aspect="auto", cmap="viridis", interpolation="nearest")
        low, high = float(np.nanmin(heat.values)), float(np.nanmax(heat.values))
        for i, j in np.ndindex(rows, columns):
            value = heat.values[i, j]
            bright = value > low + 0.55 * (high - low)
            text = f"{100 * value:.1f}" if np.isfinite(value) else "–"
            ax.text(j, i, text, ha="center", va="center", fontsize=7.5, color="black" if bright else "white")
        ax.set_xticks(range(columns), [plain(v) for v in heat.column_values])
        ax.set_yticks(range(rows), [plain(v) for v in heat.row_values])
        ax.set(xlabel=heat.columns, ylabel=heat.rows, title="final test accuracy (%)", facecolor="#BBBBBB")
        bare(ax)
    return figure


def cost_figure(groups: Sequence[Group], drawn: Sequence[Curve]) -> Figure:
    """Final accuracy of each group against traffic and time: a colour per method, a marker per setting."""
    colours = {id(run): curve.colour for curve in drawn for run in curve.runs}
    facets = list(dict.fromkeys(g.facet for g in groups))
    marks = dict(zip(facets, "os^Dv*", strict=False))
    costs = Costs.of(groups)
    with styled():
        figure = Figure(figsize=(6.8, 3.2), layout="constrained")
        traffic, time = figure.subplots(1, 2, sharey=True)
        for g in groups:
            if not (g.finished and g.values["final"]):
                continue
            sent = (g.means["bytes_up"] + g.means["bytes_down"]) / costs.traffic[1]
            for ax, x in ((traffic, sent), (time, g.means["seconds"] / costs.time[1])):
                colour, spread = colours.get(id(g.finished[0]), GREY), 100 * (g.std("final") or 0)
                style = {"fmt": marks[g.facet], "color": colour, "markersize": 4, "elinewidth": 1}
                ax.errorbar(x, 100 * g.means["final"], spread, **style)
        traffic.set(xlabel=f"{costs.traffic[0]} sent in both directions", ylabel="final test accuracy (%)")
        time.set(xlabel=f"{costs.time[0]} a run")
        for ax in (traffic, time):
            ax.set_xlim(left=0)
        entries = {curve.method or curve.label: ("o", curve.colour) for curve in drawn}
        if len(facets) > 1:
            entries |= {facet: (mark, GREY) for facet, mark in marks.items()}
        handles = [
            Line2D([], [], linestyle="", marker=mark, color=colour, label=plain(name))
            for name, (mark, colour) in entries.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=min(5, legend_columns(entries, 90)))
    return figure


def save_figures(runs: Sequence[Run], folder: Path, by: Sequence[str] = (), baseline: str | None = None) -> list[Path]:
    """Write every figure that has something to show, as PNG and PDF, and return the files.

    If there are too many runs to show, only the best groups are drawn.
    """
    figures: dict[str, Callable[[], Figure]] = {}
    groups = group(runs, by)
    chosen = best_groups(groups, is_baseline(runs, baseline))
    drawn = curves(runs, by, chosen)
    heat = heat_map(runs, by)
    if heat is not None:
        figures["two-settings"] = lambda: heat_figure(heat)
    if len(drawn) > 2:
        figures["cost"] = lambda: cost_figure(groups, drawn)
    if len(groups) > len(chosen) or len(runs) > 2 * MOST_CURVES:
        runs = [run for curve in drawn for run in curve.runs]
    if any(run.rounds for run in runs):
        figures |= {
            "learning-curves": lambda: learning_curves(runs, by),
            "forgetting": lambda: forgetting_curves(runs, by),
            "class-accuracy": lambda: class_accuracy(runs if len(runs) <= MOST_CURVES else [c.runs[0] for c in drawn]),
            "in-and-out-local": lambda: local_curves(runs, by),
        }
    if any(is_number(record.similarity) for run in runs for record in run.records):
        figures["consistency"] = lambda: consistency_curves(runs, by)
    partitions = distinct_partitions(runs)[:MOST_CURVES]
    for i, run in enumerate(partitions, start=1):
        figures["partition" if len(partitions) == 1 else f"partition-{i}"] = lambda run=run: partition_map(run)

    files = [folder / f"{name}.{ending}" for name in figures for ending in ("png", "pdf")]
    for name, make in figures.items():
        save_figure(make(), folder / f"{name}.png", folder / f"{name}.pdf")
    return files
