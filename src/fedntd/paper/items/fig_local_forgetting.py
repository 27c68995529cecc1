"""What local training gains on the in-local distribution, and what it forgets on the out-local one."""

import numpy as np

from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import BLUE, GREY, MOTIVATION, RED, band, markers, panels, percent, rehearse, rounds_axis

CELL = ("FedAvg", "LDA α=0.1")
SIDES = {"in": "(a) in-local distribution $p$", "out": r"(b) out-local distribution $\tilde{p}$"}


def render(results: Results) -> list[Plot]:
    runs = results.finished(*CELL)
    if not runs:
        return []
    history = runs[0].history
    figure, axes = panels(1, 2, 8.2, 3.0, sharey=True)
    rounds = np.arange(1, len(history["accuracy"]) + 1)
    for ax, (side, title) in zip(axes[0], SIDES.items(), strict=True):
        for when, colour, style in (("before", GREY, (0, (2, 1.5))), ("after", BLUE, "solid")):
            values = percent(history[f"global_{side}_{when}"])
            ax.plot(
                rounds, values, color=colour, linestyle=style, linewidth=1.2, label=f"global model {when} the round"
            )
        mean, std = percent(history[f"{side}_local"]), percent(history[f"{side}_local_std"])
        known = np.isfinite(mean)
        ax.plot(rounds[known], mean[known], color=RED, label="local models, mean ± std", **markers(known.sum()))
        band(ax, rounds[known], mean[known], std[known], RED)
        ax.set(title=title, xlabel="round", ylim=(0, 100))
        rounds_axis(ax, len(rounds))
    axes[0][0].set_ylabel("accuracy (%)")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3)
    caption = (
        "Accuracy of the global model and of the round's local models on the clients' in-local and out-local "
        "distributions (of the global model: on the cohort's joint ones). Spread: over the clients of the round."
    )
    return [Plot("fig-local-forgetting", figure, caption)]


ITEM = Item(
    name="fig-local-forgetting",
    title="Forgetting in local training",
    paper="Figure 4",
    about="The paper: after local training the models fit p well and have lost p̃, and so has their average.",
    runs={CELL: table("cifar10-lda0.1", optimiser=MOTIVATION, measure={"local_every": 1})},
    render=render,
    seeds=1,
    small=rehearse(8, ratio=0.25),
)
