"""Local training, personalised and global accuracy of all methods."""

from fedntd.paper.item import Item, Plot, Results
from fedntd.paper.item import table as settings
from fedntd.paper.items.common import COLOURS, panels, rounds_axis
from fedntd.paper.methods import METHODS, method_rows
from fedntd.paper.plots import legend, mean_curve

COLUMNS = {"s=2": "cifar10-s2", "s=5": "cifar10-s5", "LDA α=0.1": "cifar10-lda0.1"}
MEASURES = {
    "local_train_accuracy": "local train (%)",
    "in_local": "personalised (%)",
    "accuracy": "global (%)",
}


def render(results: Results) -> list[Plot]:
    columns = [c for c in COLUMNS if any(results.finished(method, c) for method in METHODS)]
    if not columns:
        return []
    figure, axes = panels(len(MEASURES), len(columns), 2.5 * max(len(columns), 2), 5.4, sharex=True, sharey="row")
    for row, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        for ax, column in zip(row, columns, strict=True):
            for method in METHODS:
                runs = results.finished(method, column)
                if runs:
                    thick = "1.6" if method in ("FedAvg", "FedNTD") else "0.9"
                    mean_curve(ax, runs, measure, smooth=5, color=COLOURS[method], label=method, linewidth=thick)
                    rounds_axis(ax, len(runs[0].history["accuracy"]))
        row[0].set_ylabel(label)
    for ax, column in zip(axes[0], columns, strict=True):
        ax.set_title(column)
    for ax in axes[-1]:
        ax.set_xlabel("round")
    legend(figure, *(ax for row in axes for ax in row))
    caption = (
        "Local models on the client's own training samples and on test samples of its own class distribution "
        "(personalised); the global model on all test samples. Of more than 50 rounds, means over five in a row."
    )
    return [Plot("fig-personalized", figure, caption)]


ITEM = Item(
    name="fig-personalized",
    title="Personalised performance of the methods, CIFAR-10",
    paper="Figure 12",
    about="The paper: FedNTD improves personalised accuracy too; SCAFFOLD has much lower local accuracy and yet a "
    "good global model.",
    runs=method_rows(
        list(METHODS), {column: settings(preset, measure={"local_every": 1}) for column, preset in COLUMNS.items()}
    ),
    render=render,
    seeds=1,
)
