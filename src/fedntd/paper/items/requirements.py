"""What each method asks for beyond FedAvg: found out from the definitions, beside the paper's table."""

from functools import cache

from fedntd.algorithms import ALGORITHMS
from fedntd.algorithms.requirements import requirements
from fedntd.models.cnn import CNN
from fedntd.models.functional import Model
from fedntd.paper.item import Item, Results
from fedntd.paper.methods import METHODS
from fedntd.paper.published import REQUIREMENTS
from fedntd.paper.tables import Table

# FedEnsemble is FedDF
ALL = {**METHODS, "FedEnsemble": "feddf", "FedBE": "fedbe"}
COLUMNS = ("no state", "no further communication", "no auxiliary data")


@cache
def does_without() -> dict[str, tuple[bool, bool, bool]]:
    """Of each method of the paper that is here, on its CIFAR-10 network: state, communication, auxiliary data."""
    w = Model(CNN((3, 32, 32), 10)).weights()
    found = {}
    for method, name in ALL.items():
        if name not in ALGORITHMS:
            continue
        needs = requirements(ALGORITHMS[name](), w)
        # a few bytes, such as a count of steps, are no burden
        extra = max(needs.extra_up_bytes, needs.extra_down_bytes)
        found[method] = (needs.state_bytes == 0, extra < 100, not needs.auxiliary_data)
    return found


def render(results: Results) -> list[Table]:
    here = does_without()
    rows = [*here, *(method for method in REQUIREMENTS if method not in here)]
    cells = {}
    for method in rows:
        ours, paper = here.get(method), REQUIREMENTS.get(method)
        for i, column in enumerate(COLUMNS):
            told = [f"{'✓' if ours[i] else '✗'}"] if ours else []
            told += [f"paper {'✓' if paper[i] else '✗'}"] if paper else []
            cells[method, column] = ", ".join(told)
    caption = (
        "✓: the method asks for no more than FedAvg. Found out by letting one client train for a step and counting."
    )
    return [Table("requirements", ITEM.title, caption, rows, COLUMNS, cells)]


ITEM = Item(
    name="requirements",
    title="Additional requirements compared to FedAvg",
    paper="Table 6",
    about="State that a client keeps between rounds, bytes beyond the weights, data that belongs to no client.",
    runs={},
    render=render,
)
