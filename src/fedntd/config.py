"""The settings of a run: frozen dataclasses, read from TOML and written back resolved.

Sections whose `name` picks a function or class (`partition`, `model`, `algorithm`, `server`, `robust`) take its own
parameters as further keys (`choices.py`), so that a new method's hyper-parameters are config keys without being listed
here.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from fedntd.algorithms import FedAvg
from fedntd.algorithms.composed import Composed
from fedntd.choices import Choice, call, parameters, resolve, target, typed
from fedntd.data.download import SOURCES
from fedntd.errors import FedntdError, did_you_mean, require, require_one_of
from fedntd.plan import cohort_size

CHOICES = ("partition", "model", "algorithm", "server", "robust")  # sections that are a `Choice`
NAMES = tuple(f"{section}.name" for section in CHOICES)


@dataclass(frozen=True)
class Data:
    name: str = "fashion-mini"  # a known dataset, or an import path "package.module:function" that returns a Dataset
    path: str = ""  # where the files are; empty: in the data folder (FEDNTD_DATA)
    augment: bool = True  # crop, flip and Cutout as the dataset has them
    train_size: int = 0  # only the first so many training samples; 0: all

    def __post_init__(self) -> None:
        require(self.train_size >= 0, f"data.train_size must be at least 0, not {self.train_size}")


@dataclass(frozen=True)
class Auxiliary:
    """Samples that belong to no client, without labels: for methods whose server learns from them."""

    name: str = ""  # as data.name; the last samples of that dataset's training part are used
    path: str = ""  # as data.path
    samples: int = 0  # how many; 0: the whole training part

    def __post_init__(self) -> None:
        require(self.samples >= 0, f"auxiliary.samples must be at least 0, not {self.samples}")
        require(
            self.name != "" or not (self.path or self.samples),
            "auxiliary.name must say which dataset is meant by auxiliary.path and auxiliary.samples",
        )


@dataclass(frozen=True)
class Federation:
    clients: int = 100  # K, how many clients share the training data
    ratio: float = 0.1  # share of the clients that train in a round
    rounds: int = 200
    local_epochs: int = 5  # E, passes over its own data that a client makes in a round
    batch_size: int = 50
    drop_last: bool = False  # leave out the short last batch of an epoch, unless it is the only one
    aggregation: str = "size"  # a client's weight in the mean: "size" (eq. 2) or "uniform" (Algorithm 1)

    def __post_init__(self) -> None:
        for key in ("clients", "rounds", "local_epochs", "batch_size"):
            value = getattr(self, key)
            require(value >= 1, f"federation.{key} must be at least 1, not {value}")
        require(
            0 < self.ratio <= 1,
            f"federation.ratio must be above 0 and at most 1, not {self.ratio}; "
            f"{1 / self.clients:g} trains one of the {self.clients} clients a round",
        )
        require_one_of("federation.aggregation", self.aggregation, ("size", "uniform"))


@dataclass(frozen=True)
class Optimiser:
    """SGD at the clients; its momentum starts at zero in every round."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    decay: float = 0.99  # the learning rate is multiplied by this after each round
    nesterov: bool = False  # Nesterov's momentum
    proximal: float = 0.0  # mu of FedProx: a spring to the global weights, added to any method's gradient
    clip: float = 0.0  # scale a gradient down to this norm where it is larger; 0: never

    def __post_init__(self) -> None:
        require(self.lr > 0, f"optimiser.lr must be above 0, not {self.lr}")
        require(0 <= self.momentum < 1, f"optimiser.momentum must be at least 0 and below 1, not {self.momentum}")
        require(self.weight_decay >= 0, f"optimiser.weight_decay must be at least 0, not {self.weight_decay}")
        require(0 < self.decay <= 1, f"optimiser.decay must be above 0 and at most 1, not {self.decay}")
        require(not self.nesterov or self.momentum > 0, "optimiser.nesterov needs optimiser.momentum above 0")
        require(self.proximal >= 0, f"optimiser.proximal must be at least 0, not {self.proximal}")
        require(self.clip >= 0, f"optimiser.clip must be at least 0, not {self.clip}; 0 does not clip")


@dataclass(frozen=True)
class Measure:
    local_every: int = 1  # measure the trained local models every so many rounds; 0: never

    def __post_init__(self) -> None:
        require(self.local_every >= 0, f"measure.local_every must be at least 0, not {self.local_every}")


@dataclass(frozen=True)
class Config:
    seed: int = 0
    engine: str = "auto"  # "sequential": clients one by one; "vectorised": all in one step; auto: by the device
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto: a GPU if there is one
    # of forward and backward passes; weights and optimiser stay in fp32 ("fp64": all of it); auto: by the device
    precision: str = "auto"
    workers: int = 0  # clients trained side by side on a CPU, one thread each; 0: as many as cores
    together: int = 0  # clients that the vectorised engine trains in one step; 0: the whole cohort
    checkpoint_seconds: float = 10.0  # save the state when this long has passed since the last time; 0: every round
    partition_seed: int | None = None  # deal the data by this seed instead of `seed`: one partition for all seeds
    data: Data = Data()
    auxiliary: Auxiliary = Auxiliary()
    partition: Choice = Choice("sharding")
    model: Choice = Choice("cnn")
    algorithm: Choice = Choice("fedntd")
    server: Choice = Choice("none")  # what the server makes of the step that the algorithm arrives at
    robust: Choice = Choice("none")  # what is done to updates among which some may be wrong
    federation: Federation = Federation()
    optimiser: Optimiser = Optimiser()
    measure: Measure = Measure()

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed must be at least 0, not {self.seed}")
        require(
            self.partition_seed is None or self.partition_seed >= 0,
            f"partition_seed must be at least 0, not {self.partition_seed}",
        )
        require(self.workers >= 0, f"workers must be at least 0, not {self.workers}")
        require(self.together >= 0, f"together must be at least 0, not {self.together}")
        require(self.checkpoint_seconds >= 0, f"checkpoint_seconds must be at least 0, not {self.checkpoint_seconds}")
        require_one_of("engine", self.engine, ("auto", "sequential", "vectorised"))
        require_one_of("precision", self.precision, ("auto", "fp32", "tf32", "bf16", "fp64"))
        target("data", self.data.name)
        if self.auxiliary.name:
            target("auxiliary", self.auxiliary.name)
        for section in CHOICES:
            object.__setattr__(self, section, resolve(section, getattr(self, section)))
        require(
            {"up", "p"} <= parameters(target("robust", self.robust.name)).keys(),
            f"robust.name = '{self.robust.name}' is no rule for uploads: it must be a function of up and p",
        )
        algorithm = make_algorithm(self)  # its own checks of its values
        require(
            not (self.optimiser.nesterov and algorithm.heavy_ball),
            f"algorithm '{self.algorithm.name}' counts steps as plain momentum makes them; "
            f"it cannot be used with optimiser.nesterov",
        )

    @property
    def dealing_seed(self) -> int:
        """Of the partition."""
        return self.seed if self.partition_seed is None else self.partition_seed


def make_algorithm(config: Config) -> FedAvg:
    """The method that the sections `algorithm` and `server` name together."""
    clients = config.federation.clients
    taking_part = cohort_size(clients, config.federation.ratio) / clients
    algorithm = make_method("algorithm", config.algorithm).with_values({"ratio": taking_part})
    if config.server.name == "none":
        return algorithm
    try:
        rule = make_method("server", config.server)
    except FedntdError as error:  # a rule does not know in which section it stands
        raise FedntdError(str(error).replace("algorithm.", "server.")) from None
    return Composed(algorithm, rule)


def make_method(section: str, choice: Choice) -> FedAvg:
    made = call(section, choice)
    require(
        isinstance(made, FedAvg),
        f"{section}.name = '{choice.name}' gives a {type(made).__name__}, not a method: a class derived from FedAvg",
    )
    taken = " and ".join(name for name in ("ratio", "auxiliary") if name in choice.options)
    told = f"{section} '{choice.name}' has a setting '{taken}', which is the federation's name for something else"
    require(not taken, f"{told}; give it another name")
    return made


# --- from tables ------------------------------------------------------------------------------------------------


def build(cls: type, table: Mapping[str, Any], path: str = "") -> Any:
    """The dataclass `cls` from a TOML table; an unknown key is an error that names the nearest known one."""
    hints = type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise FedntdError(f"unknown key '{path}{key}'; {in_another_section(key) or did_you_mean(key, hints)}")
        kind = hints[key]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                first = next(iter(type_hints(kind)))
                raise FedntdError(
                    f"'{path}{key}' is a section, written [{path}{key}], not a single value; one of its keys is "
                    f"{path}{key}.{first}"
                )
            if kind is Choice:
                rest = dict(value)
                default = cls.__dataclass_fields__[key].default
                name = typed(f"{path}{key}.name", rest.pop("name", default.name), str)
                values[key] = Choice(name, rest)
            else:
                values[key] = build(kind, value, f"{path}{key}.")
        else:
            values[key] = typed(f"{path}{key}", value, kind)
    return cls(**values)


def in_another_section(key: str) -> str:
    """Where a key belongs that was written without its section, or in another: `rounds`, `federation.lr`."""
    keys = [known for known in flat(Config()) if known.endswith(f".{key}")]
    return f"did you mean '{keys[0]}'?" if keys and key != "name" else ""  # most sections have a name


@cache
def type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


# `protocol` in a table stands for these settings, over which the table's own go; a Config has only the settings.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "released": {"optimiser": {"lr": 0.01}},  # as the authors' code
    "published": {"optimiser": {"lr": 0.003}},  # comes closest to the printed figures: docs/results.md
}


def from_table(table: Mapping[str, Any]) -> Config:
    table = dict(table)
    protocol = typed("protocol", table.pop("protocol", "released"), str)
    require_one_of("protocol", protocol, PROTOCOLS)
    for section, values in PROTOCOLS[protocol].items():
        given = table.get(section, {})
        table[section] = {**values, **given} if isinstance(given, Mapping) else given
    return build(Config, table)


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        raise FedntdError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FedntdError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise FedntdError(f"{path} is not valid TOML: {error}") from error


def with_settings(table: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The table with each "section.key=value" of `settings` put in; a value is read as TOML, else as a plain string.

    Another partition, model or algorithm does not take over the keys of the one before; the same one keeps its own.

    >>> with_settings({"seed": 0, "algorithm": {"beta": 0.3}}, ["seed=3", "algorithm.name=fedavg"])
    {'seed': 3, 'algorithm': {'name': 'fedavg'}}
    >>> with_settings({"algorithm": {"beta": 0.3}}, ["algorithm.name=fedntd"])
    {'algorithm': {'beta': 0.3, 'name': 'fedntd'}}
    """
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for setting in sorted(settings, key=lambda s: s.partition("=")[0].strip() not in NAMES):  # names first
        key, equals, text = setting.partition("=")
        require(bool(equals and key.strip()), f"--set takes key=value, such as seed=3, not '{setting}'")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        *sections, last = key.strip().split(".")
        if key.strip() in NAMES and value != name_in(result, sections[0]):
            result[sections[0]] = {}
        node = result
        for section in sections:
            node = node.setdefault(section, {})
            require(isinstance(node, dict), f"--set {setting}: '{section}' is a single value, not a section")
        node[last] = value
    return result


def name_in(table: Mapping[str, Any], section: str) -> Any:
    """What the table chooses in this section, if only by default."""
    chosen = table.get(section, {})
    return chosen.get("name", getattr(Config, section).name) if isinstance(chosen, Mapping) else None


# --- and back ---------------------------------------------------------------------------------------------------


def to_table(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Choice):
            table[f.name] = {"name": value.name, **value.options}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            table[f.name] = dataclasses.asdict(value)
        else:
            table[f.name] = value
    return table


def to_toml(config: Config) -> str:
    """TOML text that reads back as the same config; a key that is None has no TOML form and is left out."""
    table = to_table(config)
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and v is not None}
    sections = {k: v for k, v in table.items() if isinstance(v, dict)}
    blocks = ["\n".join(toml_line(k, v) for k, v in plain.items())]
    for name, section in sections.items():
        blocks.append("\n".join([f"[{name}]", *(toml_line(k, v) for k, v in section.items() if v is not None)]))
    return "\n\n".join(blocks) + "\n"


def toml_line(key: str, value: Any) -> str:
    # JSON's strings, numbers, booleans and lists of them are TOML's, but for one character that TOML wants escaped.
    return f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")


def flat(config: Config) -> dict[str, Any]:
    """{"federation.rounds": 200, ...}: for tables and for finding what differs between runs."""
    return {
        f"{key}.{name}" if name else key: value
        for key, section in to_table(config).items()
        for name, value in (section.items() if isinstance(section, dict) else [("", section)])
    }


HOW = ("engine", "device", "workers", "together", "checkpoint_seconds")


def how(settings: Mapping[str, Any]) -> set[str]:
    """The keys that say how and where a run is computed, which does not make it another run. Where files are is such a
    key for datasets that are known by name; others are what their files are."""
    known = ("", "fashion-mini", *SOURCES)
    return {*HOW, *(f"{section}.path" for section in ("data", "auxiliary") if settings[f"{section}.name"] in known)}


def identity(config: Config) -> str:
    """A short name for what a run computes: the same for configs that differ only in how and where it is done.

    >>> identity(Config(seed=1)) == identity(Config(seed=1, workers=2)) != identity(Config(seed=2, workers=2))
    True
    """
    settings = flat(config)
    what = {key: settings[key] for key in settings.keys() - how(settings)}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
