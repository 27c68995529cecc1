"""In-local and out-local distributions of the clients of a round."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm

from fedntd.analysis.rounds import out_of
from fedntd.config.build import deal, load_dataset
from fedntd.config.cohort import cohort
from fedntd.data.partition import class_counts
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import panels, training_of
from fedntd.report.style import BLUES, bare, colour_bar, plain

SETTINGS = table("cifar10-lda0.1")


def measure(results: Results) -> Mapping[str, Any]:
    """Compute p of ten clients. Needs the data, but no training."""
    config = replace(ITEM, runs={("", ""): SETTINGS}).config(("", ""), 0, results.setting)
    dataset = load_dataset(config)
    labels = dataset.train.y.numpy()
    counts = class_counts(labels, deal(config, labels), len(dataset.classes))
    clients = cohort(config.seed, 1, config.federation.clients, 10 / config.federation.clients)
    p = counts[clients] / counts[clients].sum(1, keepdims=True)
    return {"clients": clients, "p": p, "classes": list(dataset.classes), "of": training_of(config)}


def render(results: Results) -> list[Plot]:
    measured = results.measured
    if not measured:
        return []
    p = np.array(measured["p"])
    figure, axes = panels(1, 2, 7.6, 3.3, sharey=True)
    norm = PowerNorm(0.5, 0, 1)
    for ax, values, title in zip(
        axes[0], (p, out_of(p)), ("in-local $p$", r"out-local $\tilde{p} = (1 - p) / (C - 1)$"), strict=True
    ):
        ax.imshow(np.ma.masked_equal(values.T, 0), cmap=BLUES, norm=norm, aspect="auto", interpolation="nearest")
        for (client, c), value in np.ndenumerate(values):
            if value >= 0.005:
                shade = "white" if value > 0.3 else "#222222"
                ax.text(client, c, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=5.5, color=shade)
        ax.set(title=title, xlabel="client")
        ax.set_xticks(range(len(p)), measured["clients"])
        bare(ax)
    axes[0][0].set_yticks(range(p.shape[1]), [plain(name) for name in measured["classes"]])
    colour_bar(figure, BLUES, norm, "share of the class", axes[0])
    return [
        Plot(
            "fig-distributions",
            figure,
            f"The clients of one round, {measured['of']}: what they hold, and what they lack.",
        )
    ]


ITEM = Item(
    name="fig-distributions",
    title="In-local and out-local distributions",
    paper="Figure 3",
    about="What ten clients hold (p) and what they lack (p̃). Of a uniform p, p̃ is uniform too.",
    runs={},
    measure=measure,
    render=render,
)
