"""From distillation to not-true distillation: accuracy of server and clients under mixtures of both losses."""

from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.plots import Panel, curves
from fedntd.paper.published import KD_NTD
from fedntd.paper.tables import Table, accuracy_cells

ROWS = {"Sharding s=2": "cifar10-s2", "LDA α=0.1": "cifar10-lda0.1"}
COLUMNS = {
    "KD": {"name": "fedkd"},
    **{f"λ={lam}": {"name": "fedkd-ntd", "lam": lam} for lam in (0.1, 0.3, 0.5, 0.7, 0.9)},
    "NTD": {"name": "fedntd"},
}
LINES = (("FedAvg", {"name": "fedavg"}), ("KD", COLUMNS["KD"]), ("NTD", COLUMNS["NTD"]))
CURVES = {  # measure -> title of its panel
    "accuracy": "server model",
    "local_train_accuracy": "local models, own training samples",
    "in_local": "local models, personalised",
}


def render(results: Results) -> list[Table | Plot]:
    shown = [cell for cell in results if cell[1] != "FedAvg"]
    tables = [
        Table(
            name="kd-ntd",
            title=ITEM.title,
            caption="Accuracy in %: λ is the share of not-true distillation in the mix.",
            corner="partition",
            rows=list(ROWS),
            columns=list(COLUMNS),
            cells=accuracy_cells(results, KD_NTD, shown),
            digits=1,
            compare="columns",
        )
    ]
    lines = {name: runs for name, _ in LINES if (runs := results.finished("Sharding s=2", name))}
    if not lines:
        return [*tables]
    figure = curves([Panel(title, measure, lines) for measure, title in CURVES.items()])
    return [
        *tables,
        Plot("kd-ntd-curves", figure, "Server and local models by distillation and not-true distillation."),
    ]


ITEM = Item(
    name="kd-ntd",
    title="From distillation to not-true distillation, CIFAR-10",
    paper="Table 12 and Figure 11",
    about="The distillation loss moves from all classes (KD) to the not-true classes (NTD). The paper: the nearer to "
    "NTD, the better, and unlike KD it does not hold the local models back.",
    runs={
        **{(row, column): table(preset, method) for row, preset in ROWS.items() for column, method in COLUMNS.items()},
        # The curves need measures of local models.
        **{
            ("Sharding s=2", column): table("cifar10-s2", method, measure={"local_every": 1})
            for column, method in LINES
        },
    },
    render=render,
)
