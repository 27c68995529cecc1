"""Items of the paper: the settings of their runs, their results, and how these are rendered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from fedntd.config.presets import preset
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import from_table, with_settings
from fedntd.errors import require_one_of
from fedntd.runs.ledger import RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedntd.paper.tables import Table

Cell = tuple[str, str]  # row, column
Settings = dict[str, Any]  # as in a config file

# The accuracy that tables show under each protocol: the authors print a moving average over the rounds.
RULES = {"released": "final", "published": "ema"}


@dataclass(frozen=True)
class Setting:
    """How the runs of items are made."""

    small: bool = False  # a rehearsal on the packaged images
    seeds: int | None = None  # None: the item's default
    protocol: str = "released"
    settings: tuple[str, ...] = ()  # additional "key=value" settings of all runs

    def __post_init__(self) -> None:
        require_one_of("protocol", self.protocol, RULES)

    @property
    def rule(self) -> str:
        return RULES[self.protocol]


class Plot(NamedTuple):
    """A figure with its caption."""

    name: str  # of its files
    figure: "Figure"
    caption: str


class Results(dict[Cell, "list[RunResult]"]):
    """Results of an item: for each cell, the runs that finished or failed, ordered by seed. Missing cells are []."""

    def __init__(
        self, item: "Item", setting: Setting, found: Mapping[Cell, "list[RunResult]"], measured: Mapping[str, Any]
    ) -> None:
        super().__init__({cell: list(found.get(cell, [])) for cell in item.runs})
        self.item, self.setting, self.measured = item, setting, dict(measured)

    def __missing__(self, cell: Cell) -> "list[RunResult]":
        return []

    def finished(self, row: str, column: str) -> "list[RunResult]":
        return [result for result in self[row, column] if result.status == "finished"]

    def config(self, row: str, column: str, seed: int = 0) -> Config:
        return self.item.config((row, column), seed, self.setting)


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper; `fedntd.paper` explains the fields."""

    name: str
    title: str
    paper: str  # its place in the paper
    about: str
    runs: Mapping[Cell, Settings]
    render: Callable[[Results], "Sequence[Table | Plot]"]
    measure: Callable[[Results], Mapping[str, Any]] | None = None
    seeds: int = 3
    small: Callable[[Settings], Settings] = field(default=lambda settings: shrink(settings))

    def config(self, cell: Cell, seed: int, setting: Setting) -> Config:
        settings = self.runs[cell]
        settings = self.small(settings) if setting.small else settings
        settings = {"protocol": setting.protocol, **settings, "seed": seed}
        return with_own_code(from_table(with_settings(settings, setting.settings)))

    def wanted_seeds(self, setting: Setting) -> int:
        return setting.seeds or (1 if setting.small else self.seeds)


def table(name: str, algorithm: str | Settings = "fedavg", **sections: Settings) -> Settings:
    """The settings of a preset, changed by `sections`. Local models are not measured unless `sections` ask for it.

    >>> table("mnist-s2", "fedprox", federation={"rounds": 9})["federation"]
    {'clients': 100, 'ratio': 0.1, 'local_epochs': 3, 'rounds': 9}
    """
    method = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    settings = {**preset(name), "algorithm": dict(method), "measure": {"local_every": 0}}
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values}
    return settings


def shrink(settings: Settings) -> Settings:
    """Settings for a rehearsal: a few packaged images, a fifth of the clients and local epochs, three rounds."""
    original = settings.get("federation", {})
    clients = max(10, original.get("clients", 100) // 5)
    federation = {
        **original,
        "clients": clients,
        "rounds": 3,
        "local_epochs": ceil(original.get("local_epochs", 5) / 5),
        "batch_size": 10,
    }
    model = settings.get("model", {}).get("name", "")
    images = "thumbnails" if model.startswith("resnet") else "images"
    small = {**settings, "data": {"name": f"fedntd.paper.rehearsal:{images}"}, "federation": federation}
    if model == "resnet56":
        small["model"] = {"name": "fedntd.paper.rehearsal:short_resnet"}
    if settings.get("partition", {}).get("name") == "lda":
        small["partition"] = {**settings["partition"], "min_size": 2}
    return small
