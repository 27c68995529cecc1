"""What each method needs beyond FedAvg, derived from its definition, beside the paper's table."""

from functools import cache

from fedntd.algorithms import ALGORITHMS
from fedntd.algorithms.requirements import requirements
from fedntd.models.cnn import CNN
from fedntd.models.functional import Model
from fedntd.paper.item import Item, Results
from fedntd.paper.methods import METHODS
from fedntd.paper.published import REQUIREMENTS
from fedntd.paper.tables import Table

# the paper calls FedDF FedEnsemble
ALL = {**METHODS, "FedEnsemble": "feddf", "FedBE": "fedbe"}
COLUMNS = ("no state", "no further communication", "no auxiliary data")


@cache
def does_without() -> dict[str, tuple[bool, bool, bool]]:
    """For each method: whether it needs no state, no additional communication, no auxiliary data (CIFAR-10 network)."""
    w = Model(CNN((3, 32, 32), 10)).weights()
    needs_none = {}
    for method, name in ALL.items():
        if name not in ALGORITHMS:
            continue
        needs = requirements(ALGORITHMS[name](), w)
        # A few bytes, such as a number of steps, do not count.
        extra = max(needs.extra_up_bytes, needs.extra_down_bytes)
        needs_none[method] = (needs.state_bytes == 0, extra < 100, not needs.auxiliary_data)
    return needs_none


def render(results: Results) -> list[Table]:
    derived = does_without()
    rows = [*derived, *(method for method in REQUIREMENTS if method not in derived)]
    cells = {}
    for method in rows:
        ours, paper = derived.get(method), REQUIREMENTS.get(method)
        for i, column in enumerate(COLUMNS):
            marks = [f"{'✓' if ours[i] else '✗'}"] if ours else []
            marks += [f"paper {'✓' if paper[i] else '✗'}"] if paper else []
            cells[method, column] = ", ".join(marks)
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
