"""Weight alignment: the share of neurons that prefer the same class before and after local training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from fedntd.analysis.alignment import preferred_classes
from fedntd.analysis.rounds import next_round, reopen
from fedntd.paper.item import Cell, Item, Plot, Results, table
from fedntd.paper.items.common import CLASSES, KEEP, METHODS, folders, key, panels, rehearse
from fedntd.paper.published import ALIGNMENT
from fedntd.paper.tables import Figures, Table
from fedntd.report.style import bare, plain, styled

PARTITIONS = {"IID": "cifar10-iid", "s=2": "cifar10-s2", "α=0.05": "cifar10-lda0.05"}
PICTURE = ("IID", "s=2")  # partitions whose preferences are drawn
MODELS = {"global and locals": "locals", "global and next global": "aggregated"}


def measure(results: Results) -> Mapping[str, Any]:
    """Play the next round from the final model of each run, and compare its models. Needs the run folders."""
    measured: dict[str, Any] = {}
    for cell, paths in folders(results).items():
        measured[key(cell)] = []
        for path in paths:
            federation = reopen(path, engine="sequential")  # a single round is not worth compiling
            inside, engine = next_round(federation), federation.engine
            models = [inside.w_g, *(inside.local(i) for i in range(len(inside.record.cohort))), inside.w]
            prefers = np.stack([preferred_classes(engine.model, w, engine.test_part).cpu().numpy() for w in models])
            same = (prefers == prefers[0]).mean(1)  # share of neurons as in the broadcast model
            measured[key(cell)].append({"locals": same[1:-1].mean(), "aggregated": same[-1]})
            if path == paths[0] and cell[1] in PICTURE:
                measured[f"prefers {key(cell)}"] = prefers
            measured["classes"] = list(federation.dataset.classes)
    return measured


def render(results: Results) -> list[Table | Plot]:
    """The released network has one hidden layer, of 512 units. The paper's second one, of 128, stays open."""
    cells: dict[Cell, Figures | str] = {}
    for (layer_and_models, column), published in ALIGNMENT.items():
        partition, method = column.split()
        units, _, models = layer_and_models.partition(" units, ")
        runs = results.measured.get(key((method, partition)), []) if units == "512" else []
        wanted = results.item.wanted_seeds(results.setting) if units == "512" else 0
        values = [run[MODELS[models]] for run in runs]
        cells[f"{partition}: {models} ({units})", method] = Figures(values, wanted=wanted, published=published)
    tables: list[Table | Plot] = [
        Table(
            name="alignment",
            title=ITEM.title,
            caption="Share of neurons that prefer the same class: in the global model and in the local models that "
            "come of it, and in two global models in a row. In parentheses, the units of the layer: the released "
            "network has no layer of 128. Arrows: against FedAvg.",
            corner="clients: models (units)",
            rows=[f"{p}: {models} ({units})" for units in (512, 128) for p in PARTITIONS for models in MODELS],
            columns=list(METHODS),
            cells=cells,
            digits=3,
            compare="columns",
            baseline="FedAvg",
        )
    ]
    shown = [(m, p) for p in PICTURE for m in METHODS if f"prefers {key((m, p))}" in results.measured]
    return [*tables, preferences(results, shown)] if shown else tables


def preferences(results: Results, shown: list[tuple[str, str]]) -> Plot:
    """One column per neuron, coloured by preferred class and ordered by the preference in the global model."""
    figure, axes = panels(len(shown), 1, 7.4, 1.35 * len(shown) + 0.5)
    classes = results.measured["classes"]
    for (ax,), (method, partition) in zip(axes, shown, strict=True):
        prefers = np.array(results.measured[f"prefers {key((method, partition))}"])  # [model, neuron]
        order = np.argsort(prefers[0], kind="stable")
        colours = ListedColormap(CLASSES[: len(classes)])
        ax.pcolormesh(prefers[:, order], cmap=colours, vmin=-0.5, vmax=len(classes) - 0.5, rasterized=True)
        ax.invert_yaxis()
        ax.axhline(1, color="white", linewidth=1.6)
        ax.axhline(len(prefers) - 1, color="white", linewidth=1.6)
        ax.set_yticks(
            [0.5, len(prefers) / 2, len(prefers) - 0.5], ["global", f"{len(prefers) - 2} locals", "next global"]
        )
        ax.set_title(f"{method}, {partition}")
        ax.set_xticks([])
        bare(ax)
    axes[-1][0].set_xlabel("neurons of the last hidden layer, in the order of what they prefer in the global model")
    with styled():
        keys = [Patch(color=colour, label=plain(name)) for colour, name in zip(CLASSES, classes, strict=False)]
        figure.legend(handles=keys, loc="outside lower center", ncols=5, fontsize=7, handlelength=1.2)
    caption = "The class that each neuron prefers: in the global model, in the local models, and in their average."
    return Plot("alignment-preferences", figure, caption)


ITEM = Item(
    name="alignment",
    title="Alignment of neurons, CIFAR-10",
    paper="Table 2 and Figure 17",
    about="A neuron prefers the class on which its activation is largest. The paper: FedNTD keeps more preferences "
    "through local training where clients differ, and makes little difference where they do not." + KEEP,
    runs={(name, p): table(preset, method) for name, method in METHODS.items() for p, preset in PARTITIONS.items()},
    measure=measure,
    render=render,
    small=rehearse(4, ratio=0.5),
)
