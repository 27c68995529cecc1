"""Proposition 3: the uniform distribution is the most robust one to start from."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.tri import Triangulation

from fedntd.analysis.minimax import relabelled, rotated, worst_distance
from fedntd.paper.item import Item, Plot, Results
from fedntd.paper.items.common import BLUE, GREY, panels
from fedntd.rng import generator

CLASSES = 10
# clients of a federation with rare classes; Pi holds these clients under every permutation of the classes
CONCENTRATION = np.array([2.0, 0.6, 0.2])
STEPS = 24
PATH = np.linspace(0, 1, 21)


def measure(results: Results) -> Mapping[str, Any]:
    """Compute F(p) on a grid and along paths. Needs neither data nor training."""
    rng = generator(0, "proposition 3")
    clients = rng.dirichlet(CONCENTRATION, 200)
    grid = [np.array([i, j, STEPS - i - j]) / STEPS for i in range(STEPS + 1) for j in range(STEPS + 1 - i)]

    populations = rotated(rng.dirichlet(rng.uniform(0.05, 1, CLASSES), 50))
    uniform = np.full(CLASSES, 1 / CLASSES)
    ends = rng.dirichlet(np.full(CLASSES, 0.5), 30)
    paths = [[worst_distance(uniform + t * (end - uniform), populations) for t in PATH] for end in ends]
    return {
        "grid": grid,
        "symmetric": [worst_distance(p, relabelled(clients)) for p in grid],
        "one order": [worst_distance(p, [clients]) for p in grid],
        "paths": paths,
    }


def render(results: Results) -> list[Plot]:
    measured = results.measured
    if not measured:
        return []
    figure, ((left, middle, right),) = panels(1, 3, 9.4, 3.2)
    grid = np.array(measured["grid"])
    simplex(left, grid, np.array(measured["symmetric"]), "Π: the classes in every order")
    simplex(middle, grid, np.array(measured["one order"]), "Π: one order only")
    for path in measured["paths"]:
        right.plot(PATH, path, color=BLUE, linewidth=0.8, alpha=0.6)
    right.axhline(measured["paths"][0][0], color=GREY, linestyle=(0, (2, 1.5)), linewidth=1)
    right.set(title="ten classes", xlabel="from uniform (0) to a random $p$ (1)", ylabel="$F(p)$")
    caption = (
        "F(p), the largest mean distance from p to the clients' distributions over the populations in Π. Left: three "
        "classes; the minimum is at the uniform distribution. Middle: without the symmetry of Π it is elsewhere. "
        "Right: with ten classes, F never falls on the way from the uniform distribution to 30 random ones."
    )
    return [Plot("prop3", figure, caption)]


def simplex(ax: Axes, grid: np.ndarray, values: np.ndarray, title: str) -> None:
    """Draw values over the distributions of three classes, as a triangle."""
    corners = np.array([[0, 0], [1, 0], [0.5, 3**0.5 / 2]])
    x, y = (grid @ corners).T
    shown = ax.tricontourf(Triangulation(x, y), values, levels=14, cmap="viridis")
    best = grid[values.argmin()] @ corners
    centre = corners.mean(0)
    ax.plot(*centre, "o", color="white", markersize=8, markerfacecolor="none", markeredgewidth=1.2)
    ax.plot(*best, "x", color="white", markersize=5, markeredgewidth=1.4)
    for i, (ha, va) in enumerate((("right", "top"), ("left", "top"), ("center", "bottom"))):
        ax.text(corners[i, 0], corners[i, 1], f"class {i + 1}", ha=ha, va=va, fontsize=7)
    ax.set(title=title, xticks=[], yticks=[], aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.08, 0.96))
    ax.set_xlabel("○ uniform   × smallest $F$")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    figure = ax.get_figure()
    assert figure is not None
    figure.colorbar(shown, ax=ax, shrink=0.75, label="$F(p)$")


ITEM = Item(
    name="prop3",
    title="Proposition 3: the minimax of the uniform distribution",
    paper="Proposition 3",
    about="Whatever the clients' distributions are, if any order of the classes is as likely, no starting point has a "
    "smaller worst-case distance to them than the uniform distribution. That needs the symmetry, and class optima "
    "that are equally far from one another.",
    runs={},
    measure=measure,
    render=render,
)
