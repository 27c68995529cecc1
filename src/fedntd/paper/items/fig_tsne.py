"""t-SNE of test features in the global and the local models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedntd.analysis.features import features, tsne
from fedntd.analysis.rounds import next_round, reopen, start_from
from fedntd.config.registry import Choice
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, KEEP, class_colour, folders, panels, rehearse
from fedntd.report.style import bare, plain
from fedntd.simulation.federation import Federation

CELL = ("FedAvg", "s=2")
LOCALS = 10
SAMPLES = 150  # test samples, the same for every model
CASES = {"homogeneous": ("iid", {}), "heterogeneous": ("sharding", {"s": 2})}


def measure(results: Results) -> Mapping[str, Any]:
    """Lay out the features of local models that start from one global model. Needs its run folder."""
    federation = reopen(folders(results)[CELL][0])
    samples = min(SAMPLES, 60) if results.setting.small else SAMPLES
    features_of = {case: local_features(federation, "fedavg", case, samples) for case in CASES}
    both = [*features_of["heterogeneous"], *local_features(federation, "fedntd", "heterogeneous", samples)[1:]]
    return {
        "labels": federation.engine.test_part.y[:samples].cpu().numpy(),
        "classes": list(federation.dataset.classes),
        **{case: rounded(tsne(sets)) for case, sets in features_of.items()},
        "both": rounded(tsne(both)),
    }


def local_features(trained: Federation, method: str, case: str, samples: int) -> list[np.ndarray]:
    """Features in the trained global model, then in the local models after a round that starts from it."""
    config = replace(trained.config, partition=Choice(*CASES[case]), algorithm=Choice(method))
    federation = start_from(config, trained.state.w, trained.state.round)
    inside = next_round(federation)
    models = [inside.w_g, *(inside.local(i) for i in range(min(LOCALS, len(inside.record.cohort))))]
    return [features(federation.engine.model, w, federation.engine.test_part, samples) for w in models]


def rounded(points: Sequence[np.ndarray]) -> np.ndarray:
    return np.round(np.stack(points).astype(float), 2)


def render(results: Results) -> list[Plot]:
    measured = results.measured
    if not measured:
        return []
    cases = {f"{case} locals": np.array(measured[case]) for case in CASES}  # [model, sample, 2]
    by_class, by_local = panels(1, 2, 7.4, 4.0), panels(1, 2, 7.4, 4.0)
    for (_, ((left, right),)), colours in ((by_class, class_colours), (by_local, local_colours)):
        for ax, (title, points) in zip((left, right), cases.items(), strict=True):
            scatter(ax, points, colours(points, measured["labels"]))
            ax.set_title(title)
    name_classes(by_class[0], measured["classes"])
    locals_ = len(measured["homogeneous"]) - 1
    keys = [("global", "black"), *((f"local {i + 1}", local_colour(i)) for i in range(locals_))]
    dots(by_local[0], keys, columns=6)

    both = np.array(measured["both"])
    by_method, ((first, second),) = panels(1, 2, 7.4, 4.0)
    of_method = ["black", *[COLOURS["FedAvg"]] * locals_, *[COLOURS["FedNTD"]] * locals_]
    scatter(first, both, [[colour] * both.shape[1] for colour in of_method])
    scatter(second, both, class_colours(both, measured["labels"]))
    first.set_title("by method")
    second.set_title("by class")
    dots(first, [("global", "black"), *((method, COLOURS[method]) for method in ("FedAvg", "FedNTD"))], columns=3)
    name_classes(second, measured["classes"])
    of = f"t-SNE of the features of {both.shape[1]} test samples in the global model and {locals_} local models"
    return [
        Plot("fig-tsne-class", by_class[0], f"{of}, coloured by class."),
        Plot("fig-tsne-local", by_local[0], f"{of}, coloured by model."),
        Plot("fig-tsne-method", by_method, f"{of} of either method, trained on heterogeneous clients."),
    ]


def class_colours(points: np.ndarray, labels: Sequence[int]) -> list[list[str]]:
    return [[class_colour(c) for c in labels]] * len(points)


def local_colours(points: np.ndarray, labels: Sequence[int]) -> list[list[str]]:
    return [["black"] * len(labels), *([local_colour(i)] * len(labels) for i in range(len(points) - 1))]


def local_colour(i: int) -> Any:
    return colormaps["tab10"](i % 10)


def scatter(ax: Axes, points: np.ndarray, colours: list[list[Any]]) -> None:
    """Draw points in random order, so that no model lies on top. Stars: the global model."""
    places, shades = points[1:].reshape(-1, 2), [colour for of_model in colours[1:] for colour in of_model]
    order = np.random.default_rng(0).permutation(len(places))
    ax.scatter(*places[order].T, c=[shades[i] for i in order], s=4, alpha=0.6, linewidths=0, rasterized=True)
    ax.scatter(*points[0].T, c=colours[0], s=14, marker="*", linewidths=0, rasterized=True)
    ax.set(xticks=[], yticks=[])
    ax.set_box_aspect(1)
    bare(ax)


def name_classes(where: Figure | Axes, classes: Sequence[str]) -> None:
    dots(where, [(plain(name), class_colour(c)) for c, name in enumerate(classes[:10])], columns=5)


def dots(where: Figure | Axes, keys: Sequence[tuple[str, Any]], columns: int) -> None:
    """A legend below the figure, or below one of its panels."""
    handles = [
        Line2D(
            [], [], linestyle="none", marker="*" if name == "global" else "o", markersize=5, color=colour, label=name
        )
        for name, colour in keys
    ]
    look: dict[str, Any] = {"handles": handles, "ncols": columns, "fontsize": 7, "handletextpad": 0.1}
    if isinstance(where, Figure):
        where.legend(loc="outside lower center", **look)
    else:
        where.legend(loc="upper center", bbox_to_anchor=(0.5, 0), columnspacing=1.0, **look)


ITEM = Item(
    name="fig-tsne",
    title="Features after local training by t-SNE, CIFAR-10 s=2",
    paper="Figures 19, 20 and 21",
    about="A global model of 100 rounds on heterogeneous clients goes to homogeneous and to heterogeneous ones. The "
    "paper: features gather by class in the first case, and by client in the second." + KEEP,
    runs={CELL: table("cifar10-s2", federation={"rounds": 100})},
    measure=measure,
    render=render,
    seeds=1,
    small=rehearse(4, ratio=0.5),
)
