"""The settings of each method in the released code of Lee et al. 2022 (github.com/Lee-Gihun/FedNTD, its config
folder). `algorithm.name = "fedprox-released"` is fedprox with these settings."""

from typing import Any

RELEASED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedntd": {"beta": 1.0, "tau": 1.0},
    "fedcurv": {"lam": 1.0, "s": 500, "per_sample": False},
    "fedprox": {"mu": 1.0},
    "fednova": {"name": "fednova-released"},  # a method of its own, in fednova_released.py
    "scaffold": {"adaptive": True, "uniform": True},
    "moon": {"mu": 0.1, "tau": 0.5},
    "fedkd": {"beta": 1.0, "tau": 3.0},
    "fedavgm": {"beta": 0.7},
    "feddyn": {"alpha": 0.1, "uniform": True},
}
# methods whose released variant differs by its settings alone
NAMES = [f"{method}-released" for method, values in RELEASED.items() if "name" not in values]


def released_values(algorithm: str) -> dict[str, Any]:
    """The released code's settings of a method; empty for a method that it does not have.

    >>> released_values("moon")
    {'mu': 0.1, 'tau': 0.5}
    """
    return dict(RELEASED.get(algorithm, {}))


def without_suffix(name: str) -> str | None:
    """The method whose released variant `name` is; None unless that variant differs by its settings alone.

    >>> without_suffix("moon-released"), without_suffix("moon"), without_suffix("fednova-released")
    ('moon', None, None)
    """
    return name.removesuffix("-released") if name in NAMES else None
