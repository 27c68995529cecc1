"""Weight divergence in local training against the distance between a client's classes and the model's accuracies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from fedntd.analysis.divergence import correlation, distances
from fedntd.analysis.rounds import watch
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, METHODS, key, markers, panels, rehearse, rounds_axis
from fedntd.paper.plots import legend
from fedntd.simulation.federation import Federation

COLUMN = "s=2"
RUNS = {(name, COLUMN): table("cifar10-s2", method) for name, method in METHODS.items()}


def measure(results: Results) -> Mapping[str, Any]:
    """Train both runs here and measure every round: records hold no weights, and run folders only the last ones."""
    measured = {}
    for cell in RUNS:
        federation = Federation(replace(ITEM, runs=RUNS).config(cell, 0, results.setting))
        rounds = [distances(inside, federation.p) for inside in watch(federation)]
        measured[key(cell)] = {
            "weights": [d.weights for d in rounds],
            "distributions": [d.distributions for d in rounds],
        }
    return measured


def render(results: Results) -> list[Plot]:
    by_method = {method: m for method in METHODS if (m := results.measured.get(key((method, COLUMN))))}
    if not by_method:
        return []
    figure, axes = panels(1, 4, 10.4, 3.0)
    for ax, (method, m) in zip(axes[0], by_method.items(), strict=False):
        w, p = np.array(m["weights"]), np.array(m["distributions"])  # [round, client]
        colours = np.tile(to_rgba(COLOURS[method]), (w.size, 1))
        colours[:, 3] = np.repeat(np.linspace(0.12, 0.8, len(w)), w.shape[1])  # later rounds are darker
        ax.scatter(p.ravel(), w.ravel(), s=9, c=colours, linewidths=0)
        pearson, spearman = correlation(p.ravel(), w.ravel())
        ax.set_title(f"{method}: $r$ = {pearson:.2f}, ρ = {spearman:.2f}")
        ax.set(xlabel=r"$\|A_G - p_k\|_1$")
    same_scale(axes[0][:2])
    axes[0][0].set_ylabel(r"$\|w - w_k\|_1$")
    for ax, name, title in (
        (axes[0][2], "distributions", r"distribution distance $\|A_G - p_k\|_1$"),
        (axes[0][3], "weights", r"weight distance $\|w - w_k\|_1$"),
    ):
        for method, m in by_method.items():
            values = np.array(m[name])
            rounds, mean, std = np.arange(1, len(values) + 1), values.mean(1), values.std(1)
            ax.plot(rounds, mean, color=COLOURS[method], label=method, linewidth=1.2, **markers(len(rounds)))
            ax.fill_between(rounds, mean - std, mean + std, color=COLOURS[method], alpha=0.15, linewidth=0)
            rounds_axis(ax, len(rounds))
        ax.set(title=title, xlabel="round")
    legend(figure, axes[0][3])
    caption = (
        "One point a client and round, darker in later rounds, with Pearson's and Spearman's correlation; then both "
        "distances over the rounds, mean ± std over the clients of the round."
    )
    return [Plot("fig-divergence", figure, caption)]


def same_scale(axes: list[Axes]) -> None:
    for get, put in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        limits = [getattr(ax, get)() for ax in axes]
        for ax in axes:
            getattr(ax, put)(min(low for low, _ in limits), max(high for _, high in limits))


ITEM = Item(
    name="fig-divergence",
    title="Weight divergence and distribution distance, CIFAR-10 s=2",
    paper="Figure 8",
    about="A_G is the global model's class-wise accuracy scaled to sum to 1. The paper: the farther a client's "
    "classes are from A_G, the farther its weights move; FedNTD steadies that. Records hold no weights, so "
    "both runs are trained when the item is measured.",
    runs={},
    measure=measure,
    render=render,
    small=rehearse(8, ratio=0.25),
)
