"""Learning curves of FedAvg and FedNTD: local models in and out of their distribution, and the global model."""

from matplotlib.ticker import MaxNLocator

from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, METHODS, panels, rounds_axis
from fedntd.paper.plots import mean_curve

SPLITS = {f"s={s}": f"cifar10-s{s}" for s in (10, 5, 3, 2)}
EPOCHS = (1, 10)
MEASURES = {"in_local": "local, on $p$ (%)", "out_local": r"local, on $\tilde{p}$ (%)", "accuracy": "global (%)"}


def render(results: Results) -> list[Plot]:
    columns = [f"{split}, E={epochs}" for epochs in EPOCHS for split in SPLITS]
    columns = [c for c in columns if any(results.finished(method, c) for method in METHODS)]
    if not columns:
        return []
    figure, axes = panels(len(MEASURES), len(columns), 1.35 * len(columns) + 0.6, 4.6, sharex=True, sharey="row")
    for row, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        for ax, column in zip(row, columns, strict=True):
            for method in METHODS:
                runs = results.finished(method, column)
                if runs:
                    mean_curve(ax, runs, measure, color=COLOURS[method], label=method)
                    rounds_axis(ax, len(runs[0].history["accuracy"]))
        row[0].set_ylabel(label)
        row[0].set_ylim(0, 100 if measure == "in_local" else None)
    for ax, column in zip(axes[0], columns, strict=True):
        ax.set_title(column)
    for ax in axes[-1]:
        ax.set_xlabel("round")
        ax.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    handles, names = axes[-1][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    caption = "From left to right, for each number of local epochs E: clients that differ more and more."
    return [Plot("fig-curves", figure, caption)]


ITEM = Item(
    name="fig-curves",
    title="Learning curves by heterogeneity and local epochs, CIFAR-10",
    paper="Figure 7",
    about="The paper: on p both methods are alike; on p̃ the local models of FedNTD are better, and so is the global "
    "model, the more so the more local epochs there are.",
    runs={
        (name, f"{split}, E={epochs}"): table(
            preset, method, federation={"local_epochs": epochs}, measure={"local_every": 1}
        )
        for name, method in METHODS.items()
        for split, preset in SPLITS.items()
        for epochs in EPOCHS
    },
    render=render,
    seeds=1,
)
