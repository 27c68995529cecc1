"""The paper's names of the methods and of its set-ups, and what they are called here."""

from collections.abc import Sequence

from fedntd.paper.item import Cell, Settings, table

# FedNova of the paper is its released code's: with clients of one size (sharding), plain FedNova would be FedAvg
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
            **(table(given) if isinstance(given, str) else given),
            "algorithm": {"name": METHODS[method]},
        }
        for method in methods
        for column, given in columns.items()
    }
