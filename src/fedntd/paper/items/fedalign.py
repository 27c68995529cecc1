"""Comparison to FedAlign in its own setting: ResNet-56, 16 of 16 or 64 clients per round, 20 local epochs."""

from fedntd.paper.item import Item, Plot, Results, Settings, shrink, table
from fedntd.paper.plots import Panel, curves
from fedntd.paper.published import FEDALIGN
from fedntd.paper.tables import Table, accuracy_cells

METHODS = {"FedAvg": "fedavg", "FedAlign": "fedalign", "FedNTD": "fedntd"}
ROWS = {f"{clients} clients, α={alpha}": (clients, alpha) for clients in (16, 64) for alpha in (0.05, 0.1, 0.5)}


def small(settings: Settings) -> Settings:
    """Steps of this network are expensive: a rehearsal has two of them per round, at one or two clients."""
    original = settings["federation"]
    reductions = {"ratio": 0.1 if original["ratio"] == 1 else 0.2, "rounds": 2, "local_epochs": 1, "batch_size": 50}
    reduced = shrink(settings)
    return {**reduced, "federation": {**reduced["federation"], **reductions}}


def render(results: Results) -> list[Table | Plot]:
    shown: list[Table | Plot] = [
        Table(
            name="fedalign",
            title=ITEM.title,
            caption="Accuracy in %; arrows: against FedAvg.",
            corner="clients",
            rows=list(ROWS),
            columns=list(METHODS),
            cells=accuracy_cells(results, FEDALIGN),
            baseline="FedAvg",
            compare="columns",
        )
    ]
    lines = {row: {m: runs for m in METHODS if (runs := results.finished(row, m))} for row in ROWS}
    drawn = [Panel(row, "accuracy", methods) for row, methods in lines.items() if methods]
    if drawn:
        shown.append(Plot("fedalign-curves", curves(drawn), "Learning curves: accuracy of the global model."))
    return shown


ITEM = Item(
    name="fedalign",
    title="Comparison to FedAlign, CIFAR-10",
    paper="Table 13 and Figure 13",
    about="FedAlign smooths the local loss by a term on the last block of the network. The paper: it gains at α=0.5 "
    "and loses where clients differ more, while FedNTD gains everywhere.",
    runs={
        # Gradients are clipped only for FedAlign, as in its code.
        (row, column): table(
            "fedalign",
            method,
            partition={"alpha": alpha},
            federation={"clients": clients, "ratio": 16 / clients},
            optimiser={"clip": 10.0 if method == "fedalign" else 0.0},
        )
        for row, (clients, alpha) in ROWS.items()
        for column, method in METHODS.items()
    },
    seeds=1,
    small=small,
    render=render,
)
