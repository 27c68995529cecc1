"""The loss around the trained models: under noise, and over the plane of the two sharpest directions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from fedntd.analysis.landscape import Loss, landscape
from fedntd.analysis.rounds import reopen
from fedntd.paper.item import Item, Plot, Results, Settings
from fedntd.paper.items import fedalign
from fedntd.paper.items.common import COLOURS, KEEP, folders, key, rehearse
from fedntd.report.style import styled

ROW = "16 clients, α=0.5"
REACH = 0.5  # along each eigenvector (of length 1)
SIGMAS = (0.0, 0.002, 0.004, 0.006, 0.008, 0.01)


def measure(results: Results) -> Mapping[str, Any]:
    """Measure the test loss around the final model of each run, on the CPU. Needs the run folders."""
    small, measured = results.setting.small, {}
    for cell, (folder, *_) in folders(results).items():
        engine = (federation := reopen(folder, device="cpu", precision="fp32")).engine
        batches = Loss.on(engine.model, engine.test_part, 10 if small else 500).batches
        size = {"draws": 2, "points": 7, "tolerance": 0.05} if small else {"draws": 10, "points": 21}
        around = landscape(engine.model, federation.state.w, batches, SIGMAS, reach=REACH, **size)
        measured[key(cell)] = {**around._asdict(), "perturbed": around.perturbed - around.loss}
    return measured


def render(results: Results) -> list[Plot]:
    by_method = {method: m for method in fedalign.METHODS if (m := results.measured.get(key((ROW, method))))}
    if not by_method:
        return []
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.0 + 2.5 * len(by_method), 3.0), layout="constrained")
        grid = figure.add_gridspec(1, 1 + len(by_method), width_ratios=[1.15, *[1] * len(by_method)])
        change = figure.add_subplot(grid[0, 0])
        for method, m in by_method.items():
            values = np.array(m["perturbed"])
            mean, std = values.mean(1), values.std(1)
            change.plot(m["sigmas"], mean, "o-", color=COLOURS[method], label=method, markersize=3)
            change.fill_between(m["sigmas"], mean - std, mean + std, color=COLOURS[method], alpha=0.15, linewidth=0)
        change.set(title="change of the loss under noise", xlabel=r"$\sigma$ of the noise on the weights")
        change.legend(loc="best")
        low = min(np.min(m["surface"]) for m in by_method.values())
        high = max(np.max(m["surface"]) for m in by_method.values())
        for i, (method, m) in enumerate(by_method.items(), start=1):
            ax: Any = figure.add_subplot(grid[0, i], projection="3d")
            b, a = np.meshgrid(m["at"], m["at"])
            ax.plot_surface(
                a,
                b,
                np.array(m["surface"]),
                cmap="viridis",
                norm=LogNorm(low, high),
                linewidth=0.2,
                edgecolor="#FFFFFF40",
            )
            first, second = m["eigenvalues"]
            ax.set_title(f"{method}\n$\\lambda_0$ = {first:.3g}, $\\lambda_1$ = {second:.3g}", loc="center", fontsize=8)
            ends = [-REACH, 0, REACH]
            ax.set(zlim=(0, high), xticks=ends, yticks=ends)
            ax.set_xlabel(r"$\epsilon_0$", labelpad=-8)
            ax.set_ylabel(r"$\epsilon_1$", labelpad=-8)
            ax.zaxis.set_major_locator(MaxNLocator(4))
            ax.tick_params(labelsize=6, pad=-3)
            ax.view_init(elev=28, azim=-55)
    caption = (
        "Left: change of the test loss under Gaussian noise on all weights, mean ± std over draws. Right: the test "
        "loss over the plane of the Hessian's first two eigenvectors, with their eigenvalues, on one scale."
    )
    return [Plot("fig-landscape", figure, caption)]


def small(settings: Settings) -> Settings:
    """A rehearsal with one step at a few clients."""
    reduced = rehearse(1, ratio=0.2)(settings)
    return {**reduced, "federation": {**reduced["federation"], "local_epochs": 1, "batch_size": 25}}


ITEM = Item(
    name="fig-landscape",
    title="Loss landscape of the learned models, CIFAR-10, 16 clients, LDA α=0.5",
    paper="Figure 14",
    about="The runs of the comparison to FedAlign. The paper: FedNTD smooths the loss around the model as FedAlign "
    "does." + KEEP,
    runs={cell: settings for cell, settings in fedalign.ITEM.runs.items() if cell[0] == ROW},
    measure=measure,
    render=render,
    seeds=1,
    small=small,
)
