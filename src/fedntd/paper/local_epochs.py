"""Effect of the local epochs: five methods, E from 1 to 20, on CIFAR-10 with two shards a client, and by LDA 0.1."""

from fedntd.paper.item import Item, Results, table
from fedntd.paper.methods import method_rows
from fedntd.paper.published import EPOCHS_LDA, EPOCHS_S2
from fedntd.paper.tables import Table, accuracy_cells

ROWS = ("FedAvg", "FedProx", "FedNova", "SCAFFOLD", "FedNTD")
EPOCHS = (1, 3, 5, 10, 20)


def render(results: Results) -> list[Table]:
    published = EPOCHS_S2 if results.item is S2 else EPOCHS_LDA
    return [
        Table(
            name=results.item.name,
            title=results.item.title,
            caption="Accuracy in % and forgetting F by local epochs E; arrows: against FedAvg.",
            rows=ROWS,
            columns=[f"E={epochs}" for epochs in EPOCHS],
            cells=accuracy_cells(results, published),
            second="F",
            baseline="FedAvg",
        )
    ]


def item(name: str, number: str, preset: str, words: str) -> Item:
    columns = {f"E={epochs}": table(preset, federation={"local_epochs": epochs}) for epochs in EPOCHS}
    return Item(
        name=name,
        title=f"Effect of local epochs, CIFAR-10, {words}",
        paper=number,
        about="A client makes E passes over its data in a round. The paper: FedNTD's lead over FedAvg grows with E.",
        runs=method_rows(ROWS, dict(columns)),
        render=render,
    )


S2 = item("local-epochs-s2", "Table 8", "cifar10-s2", "sharding s=2")
LDA = item("local-epochs-lda", "Table 9", "cifar10-lda0.1", "LDA α=0.1")
