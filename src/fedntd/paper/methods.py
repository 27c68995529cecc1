"""The paper's names for the methods, and ours."""

from collections.abc import Sequence

from fedntd.paper.item import Cell, Settings, table

# The paper's FedNova is that of its released code: with clients of equal size (sharding), FedNova would equal FedAvg.
METHODS = {
    "FedAvg": "fedavg",
    "FedCurv": "fedcurv",
    "FedProx": "fedprox",
    "FedNova": "fednova-released",
    "SCAFFOLD": "scaffold",
    "MOON": "moon",
    "FedNTD": "fedntd",
}


def method_rows(methods: Sequence[str], columns: dict[str, Settings | str]) -> dict[Cell, Settings]:
    """A row for each method and a column for each set-up (a preset's name, or settings)."""
    return {
        (method, column): {
            **(table(setup) if isinstance(setup, str) else setup),
            "algorithm": {"name": METHODS[method]},
        }
        for method in methods
        for column, setup in columns.items()
    }
