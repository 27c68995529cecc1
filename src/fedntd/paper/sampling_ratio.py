"""Effect of the share of clients that train in a round, on CIFAR-10 with two shards a client, and by LDA 0.1."""

from fedntd.paper.item import Item, Results, table
from fedntd.paper.methods import method_rows
from fedntd.paper.published import RATIOS_LDA, RATIOS_S2
from fedntd.paper.tables import Table, accuracy_cells

ROWS = ("FedAvg", "FedProx", "FedNova", "SCAFFOLD", "FedNTD")
RATIOS = (0.05, 0.1, 0.3, 0.5, 1.0)


def render(results: Results) -> list[Table]:
    published = RATIOS_S2 if results.item is S2 else RATIOS_LDA
    return [
        Table(
            name=results.item.name,
            title=results.item.title,
            caption="Accuracy in % and forgetting F by the share R of clients in a round; arrows: against FedAvg.",
            rows=ROWS,
            columns=[f"R={ratio}" for ratio in RATIOS],
            cells=accuracy_cells(results, published),
            second="F",
            baseline="FedAvg",
        )
    ]


def item(name: str, number: str, preset: str, words: str) -> Item:
    columns = {f"R={ratio}": table(preset, federation={"ratio": ratio}) for ratio in RATIOS}
    return Item(
        name=name,
        title=f"Effect of the sampling ratio, CIFAR-10, {words}",
        paper=number,
        about="From 5 to all of the 100 clients train in a round. The paper has FedNTD first throughout. At R=0.3 and "
        "0.5 with sharding it prints the same figures for FedNova and SCAFFOLD.",
        runs=method_rows(ROWS, dict(columns)),
        render=render,
    )


S2 = item("sampling-ratio-s2", "Table 10", "cifar10-s2", "sharding s=2")
LDA = item("sampling-ratio-lda", "Table 11", "cifar10-lda0.1", "LDA α=0.1")
