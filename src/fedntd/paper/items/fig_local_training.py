"""In-local and out-local accuracy at each step of local training."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedntd.analysis.rounds import next_cohort, reopen, trace_client
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, KEEP, METHODS, band, folders, key, markers, panels, percent, rehearse

COLUMN = "s=2"
SIDES = {"in_local": "in-local distribution $p$", "out_local": r"out-local distribution $\tilde{p}$"}


def measure(results: Results) -> Mapping[str, Any]:
    """Trace the clients of the next round, from the final model of each run. Needs the run folders."""
    measured = {}
    for cell, (folder, *_) in folders(results).items():
        federation = reopen(folder)
        every = 1 if results.setting.small else 2
        traces = [trace_client(federation, k, every) for k in next_cohort(federation)[:10]]
        measured[key(cell)] = {
            "steps": traces[0].steps,  # the same for all clients, thanks to sharding
            **{side: [getattr(trace, side) for trace in traces] for side in SIDES},
        }
    return measured


def render(results: Results) -> list[Plot]:
    by_method = {method: m for method in METHODS if (m := results.measured.get(key((method, COLUMN))))}
    if not by_method:
        return []
    figure, axes = panels(1, 2, 6.6, 2.9, sharey=True)
    for ax, (side, title) in zip(axes[0], SIDES.items(), strict=True):
        for method, traces in by_method.items():
            values = percent(traces[side])  # [client, step]
            mean, std = values.mean(0), values.std(0)
            ax.plot(traces["steps"], mean, color=COLOURS[method], label=method, **markers(len(mean)))
            band(ax, traces["steps"], mean, std, COLOURS[method])
        ax.set(title=title, xlabel="local step")
    axes[0][0].set(ylabel="accuracy (%)", ylim=(0, 100))
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    clients = np.shape(next(iter(by_method.values()))["in_local"])[0]
    caption = (
        f"Test accuracy of {clients} clients during local training, from each method's final global model: mean ± std."
    )
    return [Plot("fig-local-training", figure, caption)]


ITEM = Item(
    name="fig-local-training",
    title="Accuracy during local training, CIFAR-10 s=2",
    paper="Figure 6",
    about="The paper: fitting the local distribution quickly forgets what is outside of it; FedNTD keeps more of "
    "that, and learns the local distribution no worse." + KEEP,
    runs={(name, COLUMN): table("cifar10-s2", method) for name, method in METHODS.items()},
    measure=measure,
    render=render,
    seeds=1,
    small=rehearse(6, ratio=0.25),
)
