"""The look that all figures share, and how they are saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedntd.errors import FedntdError
from fedntd.support.files import whole

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so figures look the same everywhere
    "text.usetex": False,  # whatever a matplotlibrc in the current folder says: no TeX is run on names of runs
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,  # TrueType: text stays text, and publishers accept it
}
GREY = "#777777"
BLUES = LinearSegmentedColormap.from_list("blues", ["#E3EFF7", "#7DB7DB", "#0072B2", "#00304D"]).with_extremes(
    bad="none"
)


@contextmanager
def styled() -> Iterator[None]:
    """Apply our style while a figure is built or saved, and restore the caller's settings afterwards."""
    with matplotlib.rc_context(STYLE):
        yield


def whole_numbers() -> MaxNLocator:
    return MaxNLocator(8, integer=True, steps=[1, 2, 5, 10])


def bare(ax: Axes) -> None:
    ax.grid(False)
    ax.spines[:].set_visible(False)


def plain(text: str) -> str:
    """Escape dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")


def colour_bar(figure: Figure, cmap: str | Colormap, norm: Normalize, label: str, axes: list[Axes]) -> None:
    bar = figure.colorbar(ScalarMappable(norm, cmap), ax=axes, location="bottom", aspect=40, shrink=0.45, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def save_figure(figure: Figure, *files: Path) -> None:
    """Write a figure to each file, in the format of its extension."""
    for file in files:
        try:
            with whole(file) as aside, styled():
                figure.savefig(aside, dpi=200)
        except ValueError as error:  # an extension that matplotlib does not know
            raise FedntdError(f"{file} cannot be written: {str(error).splitlines()[0]}") from error
