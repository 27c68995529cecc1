"""Methods as defined in their papers and as run by the released code, beside the one row in Table 1."""

from fedntd.paper.item import Cell, Item, Results, table
from fedntd.paper.published import TABLE1_LDA, TABLE1_SHARDING
from fedntd.paper.tables import Table, accuracy_cells

VARIANTS = {  # row -> (row of Table 1, method name)
    "FedAvg": ("FedAvg", "fedavg"),
    "FedCurv, the true diagonal": ("FedCurv", "fedcurv"),
    "FedCurv, released: of minibatches": ("FedCurv", "fedcurv-released"),
    "FedProx, μ=0.1": ("FedProx", "fedprox"),
    "FedProx, released: μ=1": ("FedProx", "fedprox-released"),
    "FedNova": ("FedNova", "fednova"),
    "FedNova, released": ("FedNova", "fednova-released"),
    "SCAFFOLD": ("SCAFFOLD", "scaffold"),
    "SCAFFOLD, released": ("SCAFFOLD", "scaffold-released"),
    "MOON, μ=1": ("MOON", "moon"),
    "MOON, released: μ=0.1": ("MOON", "moon-released"),
    "FedNTD": ("FedNTD", "fedntd"),
}
PRESETS = {"CIFAR-10 s=2": "cifar10-s2", "CIFAR-10 α=0.1": "cifar10-lda0.1"}
CELLS: dict[Cell, Cell] = {
    (row, column): (printed_row, column) for row, (printed_row, _) in VARIANTS.items() for column in PRESETS
}


def render(results: Results) -> list[Table]:
    printed = TABLE1_SHARDING | TABLE1_LDA
    return [
        Table(
            name="variants",
            title=ITEM.title,
            caption="Accuracy in % and forgetting F of one run; arrows: against FedAvg.",
            rows=list(VARIANTS),
            columns=list(PRESETS),
            cells=accuracy_cells(results, {cell: printed[origin] for cell, origin in CELLS.items()}),
            second="F",
            baseline="FedAvg",
        )
    ]


ITEM = Item(
    name="variants",
    title="Methods as defined and as released, CIFAR-10",
    paper="Table 1",
    about="Where the released code runs a method otherwise than its own paper or this one defines it, both, with one "
    "seed: which of the two do the printed figures come from?",
    runs={
        (row, column): table(preset, method)
        for row, (_, method) in VARIANTS.items()
        for column, preset in PRESETS.items()
    },
    seeds=1,
    render=render,
)
