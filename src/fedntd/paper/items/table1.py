"""Table 1: accuracy and forgetting of seven methods on every set-up; and the same with standard deviations."""

from dataclasses import replace

from fedntd.paper.item import Item, Results
from fedntd.paper.methods import METHODS, method_rows
from fedntd.paper.published import LDA, SHARDING, TABLE1_LDA, TABLE1_SHARDING
from fedntd.paper.tables import Table, accuracy_cells

PRESETS = {
    "MNIST s=2": "mnist-s2",
    "MNIST α=0.1": "mnist-lda0.1",
    **{f"CIFAR-10 s={s}": f"cifar10-s{s}" for s in (2, 3, 5, 10)},
    **{f"CIFAR-10 α={alpha}": f"cifar10-lda{alpha}" for alpha in (0.05, 0.1, 0.3, 0.5)},
    "CIFAR-100 s=10": "cifar100-s10",
    "CIFAR-100 α=0.1": "cifar100-lda0.1",
    "CINIC-10 s=2": "cinic10-s2",
    "CINIC-10 α=0.1": "cinic10-lda0.1",
}


def render(results: Results) -> list[Table]:
    cells = accuracy_cells(results, TABLE1_SHARDING | TABLE1_LDA)
    return [
        Table(
            name=f"{results.item.name}-{part.lower()}",
            title=f"{results.item.title}, {part}",
            caption="Accuracy in %, mean ± standard deviation over seeds, and forgetting F; arrows: against FedAvg.",
            rows=list(METHODS),
            columns=columns,
            cells={cell: figures for cell, figures in cells.items() if cell[1] in columns},
            second="F",
            baseline="FedAvg",
        )
        for part, columns in (("Sharding", SHARDING), ("LDA", LDA))
    ]


def render_std(results: Results) -> list[Table]:
    caption = "Accuracy in %, mean ± standard deviation over seeds, here and in the paper; arrows: against FedAvg."
    return [replace(table, second="", published_std=True, caption=caption) for table in render(results)]


TABLE1 = Item(
    name="table1",
    title="Accuracy and forgetting of seven methods",
    paper="Table 1",
    about="Seven methods on four datasets, dealt out in shards or by LDA. The paper: FedNTD is above the others on all "
    "set-ups, and what is more accurate forgets less. FedNova is that of the released code; where that code "
    "runs another method otherwise than the method's own paper, `variants` has both.",
    runs=method_rows(list(METHODS), dict(PRESETS)),
    render=render,
)

STD = replace(
    TABLE1,
    name="table1-std",
    title="Accuracy of seven methods with standard deviations",
    paper="Table 7",
    about="The runs of Table 1, with the paper's standard deviations.",
    render=render_std,
)
