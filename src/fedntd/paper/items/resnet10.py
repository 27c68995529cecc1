"""The methods on a larger network, ResNet-10."""

from fedntd.paper.item import Item, Results, table
from fedntd.paper.methods import METHODS
from fedntd.paper.published import RESNET10
from fedntd.paper.tables import Table, accuracy_cells

COLUMNS = ("FedAvg", "SCAFFOLD", "MOON", "FedNTD")
ROWS = {"Sharding s=2": "cifar10-s2", "Sharding s=5": "cifar10-s5", "LDA α=0.1": "cifar10-lda0.1"}


def render(results: Results) -> list[Table]:
    return [
        Table(
            name="resnet10",
            title=ITEM.title,
            caption="Accuracy in %; arrows: against FedAvg.",
            corner="partition",
            rows=list(ROWS),
            columns=COLUMNS,
            cells=accuracy_cells(results, RESNET10),
            baseline="FedAvg",
            compare="columns",
        )
    ]


ITEM = Item(
    name="resnet10",
    title="ResNet-10 on CIFAR-10",
    paper="Appendix G.3",
    about="Four methods with a network of 4.9 million parameters, 2.3 times those of the CNN (the paper says about 10 "
    "times). The paper has FedNTD first on all three partitions.",
    runs={
        (row, column): table(preset, METHODS[column], model={"name": "resnet10"})
        for row, preset in ROWS.items()
        for column in COLUMNS
    },
    render=render,
)
