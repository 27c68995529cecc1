"""The settings of a run: frozen dataclasses, which `toml.py` reads from TOML and writes back with defaults filled in.

In the sections `partition`, `model`, `algorithm`, `server` and `robust`, `name` picks a function or class. Its
parameters are further keys of the section (`registry.py`), so a new method's hyper-parameters need not be listed here.
"""

from dataclasses import dataclass, replace

from fedntd.algorithms import FedAvg
from fedntd.algorithms.composed import Composed
from fedntd.config.cohort import cohort_size
from fedntd.config.registry import Choice, call, check_name, is_own, resolve, resolve_own, target
from fedntd.errors import FedntdError, require, require_one_of

CHOICES = ("partition", "model", "algorithm", "server", "robust")  # sections that are a `Choice`


@dataclass(frozen=True)
class Data:
    name: str = "fashion-mini"  # a known dataset, or an import path "package.module:function" that returns a Dataset
    path: str = ""  # where the files are; empty: in the data folder (FEDNTD_DATA)
    augment: bool = True  # augment training images as the dataset defines it: crop, flip, Cutout
    train_size: int = 0  # use only this many training samples, the first ones; 0: all

    def __post_init__(self) -> None:
        require(self.train_size >= 0, f"must be at least 0, not {self.train_size}", "data.train_size")


@dataclass(frozen=True)
class AuxiliarySettings:
    """Unlabelled samples that belong to no client, for methods whose server learns from them."""

    name: str = ""  # as data.name; the last samples of the dataset's training part are used
    path: str = ""  # as data.path
    samples: int = 0  # number of samples; 0: the whole training part

    def __post_init__(self) -> None:
        require(self.samples >= 0, f"must be at least 0, not {self.samples}", "auxiliary.samples")
        require(
            self.name != "" or not (self.path or self.samples),
            "must say which dataset is meant by auxiliary.path and auxiliary.samples",
            "auxiliary.name",
        )


@dataclass(frozen=True)
class FederationSettings:
    clients: int = 100  # K, number of clients that share the training data
    ratio: float = 0.1  # share of the clients that train in a round
    rounds: int = 200
    local_epochs: int = 5  # E, a client's passes over its own data in a round
    batch_size: int = 50
    drop_last: bool = False  # leave out the short last batch of an epoch, unless it is the only one
    aggregation: str = "size"  # a client's weight in the mean: "size" (eq. 2) or "uniform" (Algorithm 1)

    def __post_init__(self) -> None:
        for key in ("clients", "rounds", "local_epochs", "batch_size"):
            value = getattr(self, key)
            require(value >= 1, f"must be at least 1, not {value}", f"federation.{key}")
        require(
            0 < self.ratio <= 1,
            f"must be above 0 and at most 1, not {self.ratio}; "
            f"{1 / self.clients:g} trains one of the {self.clients} clients a round",
            "federation.ratio",
        )
        require_one_of("federation.aggregation", self.aggregation, ("size", "uniform"))


@dataclass(frozen=True)
class Optimiser:
    """The clients' SGD. Its momentum starts at zero in every round."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    decay: float = 0.99  # the learning rate is multiplied by this after each round
    nesterov: bool = False  # Nesterov's momentum
    proximal: float = 0.0  # mu of FedProx: a spring to the global weights, added to any method's gradient
    clip: float = 0.0  # largest norm of a gradient: a larger one is scaled down; 0: no clipping

    def __post_init__(self) -> None:
        require(self.lr > 0, f"must be above 0, not {self.lr}", "optimiser.lr")
        require(0 <= self.momentum < 1, f"must be at least 0 and below 1, not {self.momentum}", "optimiser.momentum")
        require(self.weight_decay >= 0, f"must be at least 0, not {self.weight_decay}", "optimiser.weight_decay")
        require(0 < self.decay <= 1, f"must be above 0 and at most 1, not {self.decay}", "optimiser.decay")
        require(not self.nesterov or self.momentum > 0, "optimiser.nesterov needs optimiser.momentum above 0")
        require(self.proximal >= 0, f"must be at least 0, not {self.proximal}", "optimiser.proximal")
        require(self.clip >= 0, f"must be at least 0, not {self.clip}; 0 does not clip", "optimiser.clip")


@dataclass(frozen=True)
class Measure:
    local_every: int = 1  # interval in rounds at which the trained local models are measured; 0: never

    def __post_init__(self) -> None:
        require(self.local_every >= 0, f"must be at least 0, not {self.local_every}", "measure.local_every")

    def locals_in(self, round: int) -> bool:
        """Whether the trained local models are measured in this round."""
        return self.local_every > 0 and round % self.local_every == 0


@dataclass(frozen=True)
class Config:
    """All settings of a run; docs/configuration.md lists them. `configure` reads a preset, a file or a table."""

    seed: int = 0
    engine: str = "auto"  # "sequential": clients one by one; "vectorised": all in one step; auto: by the device
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto: a GPU if there is one
    # of forward and backward passes; weights and optimiser stay in fp32, or fp64 for "fp64"; auto: by the device
    precision: str = "auto"
    workers: int = 0  # clients trained in parallel on a CPU, one thread each; 0: one per core
    together: int = 0  # clients that the vectorised engine trains in one step; 0: the whole cohort
    checkpoint_seconds: float = 10.0  # save a checkpoint when this long has passed since the last; 0: every round
    partition_seed: int | None = None  # seed of the partition instead of `seed`: one partition for all seeds
    data: Data = Data()
    auxiliary: AuxiliarySettings = AuxiliarySettings()
    partition: Choice = Choice("sharding")
    model: Choice = Choice("cnn")
    algorithm: Choice = Choice("fedntd")
    server: Choice = Choice("none")  # server optimiser, applied to the step that the algorithm computes
    robust: Choice = Choice("none")  # robust aggregation, for updates of which some may be wrong
    federation: FederationSettings = FederationSettings()
    optimiser: Optimiser = Optimiser()
    measure: Measure = Measure()

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"must be at least 0, not {self.seed}", "seed")
        require(
            self.partition_seed is None or self.partition_seed >= 0,
            f"must be at least 0, not {self.partition_seed}",
            "partition_seed",
        )
        require(self.workers >= 0, f"must be at least 0, not {self.workers}", "workers")
        require(self.together >= 0, f"must be at least 0, not {self.together}", "together")
        require(
            self.checkpoint_seconds >= 0, f"must be at least 0, not {self.checkpoint_seconds}", "checkpoint_seconds"
        )
        require_one_of("engine", self.engine, ("auto", "sequential", "vectorised"))
        require_one_of("precision", self.precision, ("auto", "fp32", "tf32", "bf16", "fp64"))
        check_name("data", self.data.name)
        if self.auxiliary.name:
            check_name("auxiliary", self.auxiliary.name)
        for section in CHOICES:
            object.__setattr__(self, section, resolve(section, getattr(self, section)))
        if not (is_own(self.algorithm.name) or is_own(self.server.name)):
            check_method(self)

    @property
    def dealing_seed(self) -> int:
        """The seed of the partition."""
        return self.seed if self.partition_seed is None else self.partition_seed


def own_names(config: Config) -> dict[str, str]:
    """The sections that name the user's own code, with the names."""
    names = {section: getattr(config, section).name for section in ("data", "auxiliary", *CHOICES)}
    return {section: name for section, name in names.items() if is_own(name)}


def with_own_code(config: Config) -> Config:
    """The config to train with: import the user's own code, check its settings and fill in its defaults.

    Reading a config does not do this.
    """
    own = own_names(config)
    if not own:
        return config
    for section, name in own.items():
        target(section, name)
    choices = {section: resolve_own(section, getattr(config, section)) for section in own if section in CHOICES}
    config = replace(config, **choices)
    check_method(config)
    return config


def check_method(config: Config) -> None:
    """Run the method's own checks of its values, and check that it works with the optimiser."""
    algorithm = make_algorithm(config)
    require(
        not (config.optimiser.nesterov and algorithm.heavy_ball),
        f"algorithm '{config.algorithm.name}' counts steps as plain momentum makes them; "
        f"it cannot be used with optimiser.nesterov",
    )


def make_algorithm(config: Config) -> FedAvg:
    """The method that the sections `algorithm` and `server` name together."""
    algorithm = make_method("algorithm", config.algorithm)
    if config.server.name != "none":
        try:
            rule = make_method("server", config.server)
        except FedntdError as error:  # a rule's errors name the section "algorithm"
            raise error.in_section("server") from None
        algorithm = Composed(algorithm, rule)
    return algorithm.with_values({"ratio": share_of_cohort(config)})


def share_of_cohort(config: Config) -> float:
    """The share of clients that train in a round: `federation.ratio`, rounded to whole clients."""
    clients = config.federation.clients
    return cohort_size(clients, config.federation.ratio) / clients


def make_method(section: str, choice: Choice) -> FedAvg:
    method = call(section, choice)
    reserved = " and ".join(name for name in ("ratio", "auxiliary") if name in choice.options)
    problem = f"{section} '{choice.name}' has a setting '{reserved}', which is the federation's name for something else"
    require(not reserved, f"{problem}; give it another name")
    return method
