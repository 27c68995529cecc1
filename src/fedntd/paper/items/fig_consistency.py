"""Consistency of the global model's predictions from round to round."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import (
    BLUE,
    COLOURS,
    GREEN,
    METHODS,
    MOTIVATION,
    PINK,
    RED,
    panels,
    rehearse,
    rounds_axis,
)
from fedntd.report.style import bare, colour_bar
from fedntd.runs.ledger import RunResult

LEVELS = {"IID": "iid", "α=0.5": "lda0.5", "α=0.3": "lda0.3", "α=0.1": "lda0.1", "α=0.05": "lda0.05"}
DATASETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
# appendix: set-ups of Table 1, both methods
SETUPS = {"s=2": "cifar10-s2", "s=5": "cifar10-s5", "LDA α=0.05": "cifar10-lda0.05", "LDA α=0.1": "cifar10-lda0.1"}


def render(results: Results) -> list[Plot]:
    plots = []
    servers = {
        "IID server": results.finished("CIFAR-10", "IID"),
        "NIID server (α=0.1)": results.finished("CIFAR-10", "α=0.1"),
    }
    if all(servers.values()):
        plots.append(forgetting({name: runs[0] for name, runs in servers.items()}, results))
    if any(results.finished(method, setup) for method in METHODS for setup in SETUPS):
        plots.append(normalised(results))
    return plots


def forgetting(servers: dict[str, RunResult], results: Results) -> Plot:
    """Figure 2: class-wise accuracy, similarity to the previous round, and F against heterogeneity."""
    figure, axes = panels(1, 4, 10.2, 2.9, width_ratios=[1.35, 1.35, 1.3, 1.2])
    (first, second, similarity, against) = axes[0]
    for ax, (name, result) in zip((first, second), servers.items(), strict=True):
        heat_map(ax, 100 * np.array(result.history["class_accuracy"], dtype=float), 0, 100)
        ax.set(title=name, xlabel="round")
    first.set_ylabel("class")
    colour_bar(figure, "viridis", Normalize(0, 100), "test accuracy (%)", [first, second])
    for (name, result), colour in zip(servers.items(), (BLUE, RED), strict=True):
        values = np.array(result.history["similarity"], dtype=float)
        similarity.plot(
            np.arange(1, len(values) + 1), values, color=colour, label=name.replace(" server", ""), linewidth=1.1
        )
        rounds_axis(similarity, len(values))
    similarity.set(title="similarity to the round before", xlabel="round", ylabel="cosine", ylim=(None, 1.01))
    below(similarity)
    for name, colour in zip(DATASETS, (GREEN, PINK), strict=True):
        runs = [results.finished(name, level) for level in LEVELS]
        x = [i for i, of_level in enumerate(runs) if of_level]
        if not x:
            continue
        means = [np.mean([result.forgetting for result in of_level]) for of_level in runs if of_level]
        against.plot(x, means, "o-", color=colour, label=name, markersize=4)
    against.set_xticks(range(len(LEVELS)), [level.replace("α=", "") for level in LEVELS])
    against.set(title="forgetting", xlabel="IID, or α: more heterogeneous →", ylabel="$F$")
    against.set_ylim(bottom=0)
    below(against)
    caption = (
        "Class-wise test accuracy of the global model with IID and with heterogeneous clients; its cosine similarity "
        "to that of the round before; forgetting F at several levels of heterogeneity. FedAvg, a rate that does not "
        "fall."
    )
    return Plot("fig-consistency", figure, caption)


def normalised(results: Results) -> Plot:
    """Figure 10: class-wise accuracies, scaled to sum to 1 in each round. Equal colours mean equal accuracies."""
    setups = [setup for setup in SETUPS if any(results.finished(method, setup) for method in METHODS)]
    figure, axes = panels(len(METHODS), len(setups), 1.2 + 2.1 * max(len(setups), 2), 3.9, sharey=True)
    top = 0.3
    for row, method in zip(axes, METHODS, strict=True):
        for ax, setup in zip(row, setups, strict=True):
            runs = results.finished(method, setup)
            if not runs:
                ax.set_visible(False)
                continue
            values = np.array(runs[0].history["class_accuracy"], dtype=float)
            heat_map(ax, values / np.maximum(values.sum(1, keepdims=True), 1e-9), 0, top)
            ax.set_title(f"{method}, {setup}", color=COLOURS[method])
        row[0].set_ylabel("class")
    for ax in axes[-1]:
        ax.set_xlabel("round")
    flat = [ax for row in axes for ax in row]
    colour_bar(figure, "viridis", Normalize(0, top), "share of the round's accuracy (even: 0.1)", flat)
    return Plot("fig-consistency-normalised", figure, "Class-wise test accuracy, each round scaled to sum to 1.")


def below(ax: Axes) -> None:
    """Put the legend below the axes, where it hides no line."""
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def heat_map(ax: Axes, values: np.ndarray, low: float, high: float) -> None:
    """Draw values [round, class], rounds from left to right."""
    rounds, classes = values.shape
    extent = (0.5, rounds + 0.5, classes - 0.5, -0.5)
    ax.imshow(values.T, aspect="auto", cmap="viridis", vmin=low, vmax=high, extent=extent, interpolation="nearest")
    rounds_axis(ax, rounds)
    bare(ax)


ITEM = Item(
    name="fig-consistency",
    title="Consistency of the global model's answers",
    paper="Figures 2 and 10",
    about="The paper: with IID clients the global model answers evenly well in every round; with heterogeneous ones "
    "classes that it knew are lost from one round to the next, the more so the more clients differ. FedNTD answers "
    "evenly after fewer rounds.",
    runs={
        (name, level): table(f"{dataset}-{split}", optimiser=MOTIVATION)
        for name, dataset in DATASETS.items()
        for level, split in LEVELS.items()
    }
    | {(name, setup): table(preset, method) for name, method in METHODS.items() for setup, preset in SETUPS.items()},
    render=render,
    seeds=1,
    small=rehearse(4),
)
