"""The settings of a `[search]`, its space of values, and a check that runs can have these values.

[search]
sampler = "tpe"             grid, random or tpe
trials = 30                 not for a grid, which has one trial per point
measure = "last10"          final, best, last10 or ema; the mean over seeds
pruner = "median"           none or median: stop a trial below the median of the others at the same round
warmup = 5                  rounds in which no trial is stopped
batch = 1                   trials trained together
seed = 0                    seed of the sampler
[search.keys]
optimiser.lr = { low = 1e-3, high = 0.1, log = true }
algorithm.beta = [0.1, 0.3, 1.0]
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedntd.config.registry import typed
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import from_table
from fedntd.errors import FedntdError, require, require_known, require_one_of
from fedntd.report.export import need
from fedntd.report.summary import HEADINGS
from fedntd.sweep.jobs import Changes, Sweep, with_changes

KEYS = ("sampler", "trials", "measure", "pruner", "warmup", "batch", "seed", "keys")
RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Search:
    """The settings of a search, checked."""

    space: dict[str, Any]  # key -> list of choices, or a range
    sampler: str = "tpe"
    trials: int = 30
    measure: str = "final"
    pruner: str = "median"
    warmup: int = 5
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("sampler", "pruner", "measure"):
            typed(f"search.{key}", getattr(self, key), str)
        require_one_of("search.sampler", self.sampler, ("grid", "random", "tpe"))
        require_one_of("search.pruner", self.pruner, ("none", "median"))
        require_one_of("search.measure", self.measure, [key for key in HEADINGS if key != "forgetting"])
        for key in ("trials", "warmup", "batch", "seed"):
            value, least = getattr(self, key), 1 if key in ("trials", "batch") else 0
            require(type(value) is int and value >= least, f"search.{key} must be a whole number from {least}")
        require(bool(self.space), "[search.keys] names nothing to search over")
        require("seed" not in self.space, "search.keys: each trial is run with all seeds; list them as seeds = [0, 1]")
        for key, values in self.space.items():
            if isinstance(values, list):
                require(bool(values), f"search.keys: the list of '{key}' is empty")
                plain = all(isinstance(value, str | int | float) for value in values)
                require(plain, f"search.keys: the list of '{key}' may hold only text, numbers, true and false")
                continue
            is_range = isinstance(values, Mapping) and {"low", "high"} <= values.keys() <= set(RANGE)
            require(is_range, f"search.keys: '{key}' must be a list, or a range such as {{ low = 0.001, high = 0.1 }}")
            require(self.sampler != "grid", f"search.keys: a grid needs a list for '{key}', not a range")
            for part, value in values.items():
                typed(f"search.keys.{key}.{part}", value, bool if part == "log" else float)


def read_search(table: Mapping[str, Any]) -> Search:
    for key in table:
        require_known(key, KEYS, f"unknown key 'search.{key}'")
    rest = {key: value for key, value in table.items() if key != "keys"}
    return Search(space_of(table.get("keys", {})), **rest)


def space_of(table: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys. A table with `low` is a range, not a section."""
    require(isinstance(table, Mapping), "[search.keys] is a section")
    space: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and "low" not in value
        part = space_of(value, f"{path}{key}.") if nested else {f"{path}{key}": value}
        twice = next((key for key in part if key in space), None)
        require(twice is None, f"search.keys: '{twice}' is given twice, once as a table and once in quotes")
        space |= part
    return space


def grid_of(settings: Search) -> list[Changes]:
    """All points of a grid, in order; empty for the other samplers."""
    if settings.sampler != "grid":
        return []
    return [dict(zip(settings.space, values, strict=True)) for values in itertools.product(*settings.space.values())]


def distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    """The lists and ranges as Optuna distributions, which Optuna checks."""
    kinds = need("optuna", "sweep", "a search").distributions
    space_distributions = {}
    for key, values in space.items():
        try:
            if isinstance(values, list):
                space_distributions[key] = kinds.CategoricalDistribution(values)
            else:
                whole = all(type(value) is int for part, value in values.items() if part != "log")
                space_distributions[key] = (kinds.IntDistribution if whole else kinds.FloatDistribution)(**values)
        except ValueError as error:
            raise FedntdError(f"search.keys: '{key}' cannot be searched over: {error}") from error
    return space_distributions


def check_values(sweep: Sweep, settings: Search, space: Mapping[str, Any]) -> Config:
    """Check that runs can have the values, and return the first config.

    Checks all points of a grid. Otherwise each choice and both ends of each range, with the first value of the others.
    """
    ends = {key: getattr(kind, "choices", None) or (kind.low, kind.high) for key, kind in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    points = grid_of(settings) or [{**first, key: value} for key, values in ends.items() for value in values]
    tables = [with_changes(sweep.base, {**point, "seed": sweep.seeds[0]}) for point in points]
    configs = [with_own_code(from_table(table)) for table in tables]
    return configs[0]
