"""Shared by the figures: colours of the methods, a longer rehearsal, folders of checkpoints, and panels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedntd.config.schema import Config
from fedntd.paper.item import Cell, Results, Settings, shrink
from fedntd.report.charts import PALETTE
from fedntd.report.style import styled, whole_numbers

BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY = PALETTE
COLOURS = {
    "FedAvg": BLUE,
    "FedNTD": RED,
    "FedCurv": PINK,
    "FedProx": SKY,
    "FedNova": ORANGE,
    "SCAFFOLD": GREEN,
    "MOON": GREY,
    "FedAlign": GREEN,
    "KD": GREEN,
    "NTD": RED,
}
METHODS = {"FedAvg": "fedavg", "FedNTD": "fedntd"}  # compared by most figures
# ten colours for ten classes; neighbours also differ in brightness
CLASSES = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#999999", "#E69F00", "#332288", "#882255")
# appended to the `about` of items that measure weights
KEEP = " Measured from the last checkpoints of the runs: their folders must be kept."
# section 2 of the paper uses a constant learning rate
MOTIVATION: Settings = {"lr": 0.01, "decay": 1.0}


def rehearse(rounds: int = 6, ratio: float | None = None) -> Callable[[Settings], Settings]:
    """`item.shrink` with enough rounds and clients per round for a figure."""

    def small(settings: Settings) -> Settings:
        reduced = shrink(settings)
        federation = {**reduced["federation"], "rounds": rounds}
        return {**reduced, "federation": federation | ({"ratio": ratio} if ratio else {})}

    return small


def class_colour(c: int) -> str:
    return CLASSES[c % len(CLASSES)]


# --- runs -------------------------------------------------------------------------------------------------------


def folders(results: Results) -> dict[Cell, list[Path]]:
    """The folders of each cell's finished runs, which hold the checkpoints; cells without any are left out."""
    paths_of = {cell: [run.folder for run in results.finished(*cell) if run.folder is not None] for cell in results}
    return {cell: paths for cell, paths in paths_of.items() if paths}


def key(cell: Cell) -> str:
    """The key of a cell's measurements."""
    return "/".join(cell)


def training_of(config: Config) -> str:
    """The dataset and partition of a config, in short: "CIFAR-10, α=0.1"."""
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "cinic10": "CINIC-10"}
    options = config.partition.options
    split = {"sharding": f"s={options.get('s')}", "lda": f"α={options.get('alpha')}"}.get(config.partition.name, "IID")
    return f"{names.get(config.data.name, config.data.name)}, {split}"


# --- panels -----------------------------------------------------------------------------------------------------


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure in the style of the reports, and its axes [row][column]."""
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def percent(values: Sequence[float | None]) -> np.ndarray:
    """A measure of every round in percent; NaN where it was not measured."""
    return 100 * np.array(values, dtype=float)


def rounds_axis(ax: Axes, rounds: int) -> None:
    ax.set_xlim(0.5, rounds + 0.5)
    ax.xaxis.set_major_locator(whole_numbers())


def markers(count: int) -> dict[str, Any]:
    """Line style: markers if there are few points."""
    return {"marker": "o", "markersize": 3} if count <= 25 else {}


def band(ax: Axes, x: Any, mean: np.ndarray, std: np.ndarray, colour: str) -> None:
    """Draw error bars, or a band if there are too many points."""
    if len(mean) <= 60:
        ax.errorbar(x, mean, std, fmt="none", ecolor=colour, elinewidth=0.9, capsize=1.8, alpha=0.75)
    else:
        ax.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
