"""The effect of local epochs and of the sampling ratio on five methods: CIFAR-10, sharding s=2 and LDA 0.1."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedntd.paper import published
from fedntd.paper.item import Cell, Item, Results, table
from fedntd.paper.methods import method_rows
from fedntd.paper.published import Published
from fedntd.paper.tables import Table, accuracy_cells

ROWS = ("FedAvg", "FedProx", "FedNova", "SCAFFOLD", "FedNTD")
PARTITIONS = {"s2": ("cifar10-s2", "sharding s=2"), "lda": ("cifar10-lda0.1", "LDA α=0.1")}


@dataclass(frozen=True)
class Effect:
    """A setting and the values that it is varied over."""

    name: str
    words: str
    key: str  # in the [federation] section of a config
    values: Mapping[str, float]  # column -> value
    about: str


EPOCHS = Effect(
    "local-epochs",
    "local epochs E",
    "local_epochs",
    {f"E={epochs}": epochs for epochs in (1, 3, 5, 10, 20)},
    "A client makes E passes over its data in a round. The paper: FedNTD's lead over FedAvg grows with E. In print it "
    "is larger at E=10 than at E=1, but largest at E=5 with sharding and at E=3 with LDA.",
)
RATIO = Effect(
    "sampling-ratio",
    "sampling ratio R",
    "ratio",
    {f"R={ratio}": ratio for ratio in (0.05, 0.1, 0.3, 0.5, 1.0)},
    "From 5 to all of the 100 clients train in a round. The paper has FedNTD first throughout. At R=0.3 and 0.5 with "
    "sharding it prints the same figures for FedNova and SCAFFOLD.",
)


def item(effect: Effect, partition: str, paper: str, printed: Mapping[Cell, Published]) -> Item:
    preset, partition_name = PARTITIONS[partition]

    def render(results: Results) -> list[Table]:
        return [
            Table(
                name=results.item.name,
                title=results.item.title,
                caption=f"Accuracy in % and forgetting F by the {effect.words}; arrows: against FedAvg.",
                rows=ROWS,
                columns=list(effect.values),
                cells=accuracy_cells(results, printed),
                second="F",
                baseline="FedAvg",
            )
        ]

    return Item(
        name=f"{effect.name}-{partition}",
        title=f"Effect of the {effect.words}, CIFAR-10, {partition_name}",
        paper=paper,
        about=effect.about,
        runs=method_rows(
            ROWS, {column: table(preset, federation={effect.key: v}) for column, v in effect.values.items()}
        ),
        render=render,
    )


EPOCHS_S2 = item(EPOCHS, "s2", "Table 8", published.EPOCHS_S2)
EPOCHS_LDA = item(EPOCHS, "lda", "Table 9", published.EPOCHS_LDA)
RATIO_S2 = item(RATIO, "s2", "Table 10", published.RATIOS_S2)
RATIO_LDA = item(RATIO, "lda", "Table 11", published.RATIOS_LDA)
