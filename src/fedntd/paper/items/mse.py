"""Not-true distillation with a squared error instead of the KL divergence, for several beta."""

from fedntd.paper.item import Item, Results, table
from fedntd.paper.published import MSE
from fedntd.paper.tables import Table, accuracy_cells

ROW = "Sharding s=2"
METHODS = {
    "FedAvg": {"name": "fedavg"},
    **{f"MSE β={beta}": {"name": "fedntd-mse", "beta": beta} for beta in (0.001, 0.005, 0.01, 0.05, 0.1, 0.3)},
    "FedNTD β=1": {"name": "fedntd"},
}


def render(results: Results) -> list[Table]:
    return [
        Table(
            name="mse",
            title=ITEM.title,
            caption="Accuracy in % and forgetting F; arrows: against FedAvg.",
            corner="partition",
            rows=[ROW],
            columns=list(METHODS),
            cells=accuracy_cells(results, MSE),
            second="F",
            baseline="FedAvg",
            compare="columns",
        )
    ]


ITEM = Item(
    name="mse",
    title="Squared error in place of the divergence, CIFAR-10, sharding s=2",
    paper="Table 14",
    about="The not-true logits are matched by a squared error. The paper: better and less forgetful as β grows, until "
    "the model diverges; it cannot reach FedNTD.",
    runs={(ROW, column): table("cifar10-s2", method) for column, method in METHODS.items()},
    render=render,
)
