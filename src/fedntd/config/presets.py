"""Ready-made settings by name: `<dataset>-<partition>` has the paper's clients, epochs, batch size and learning rate.

`TABLE1` lists the columns of Table 1; any other s or alpha works as well (`cifar10-s4`, `cifar10-lda1.0`, `mnist-iid`).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedntd.algorithms.released import released_values as released_values
from fedntd.config.schema import Config
from fedntd.config.toml import from_table, read, with_settings
from fedntd.config.trust import is_run_config, require_trust
from fedntd.errors import FedntdError, did_you_mean

BASES: dict[str, dict[str, Any]] = {
    "mnist": {"federation": {"clients": 100, "ratio": 0.1, "local_epochs": 3}},
    "cifar10": {"federation": {"clients": 100, "ratio": 0.1, "local_epochs": 5}},
    "cifar100": {"federation": {"clients": 100, "ratio": 0.1, "local_epochs": 5}},
    "cinic10": {"federation": {"clients": 200, "ratio": 0.05, "local_epochs": 5}},
}

TABLE1 = (
    *("mnist-s2", "mnist-lda0.1"),
    *("cifar10-s2", "cifar10-s3", "cifar10-s5", "cifar10-s10"),
    *("cifar10-lda0.05", "cifar10-lda0.1", "cifar10-lda0.3", "cifar10-lda0.5"),
    *("cifar100-s10", "cifar100-lda0.1"),
    *("cinic10-s2", "cinic10-lda0.1"),
)

# The paper's setting for MNIST (100 clients, ratio 0.1, s=2, 3 local epochs, batch 50, lr 0.01) on the packaged images,
# cut to 30 rounds so that it takes less than a minute on two cores.
DEMO: dict[str, Any] = {
    "data": {"name": "fashion-mini"},
    "partition": {"name": "sharding", "s": 2},
    "federation": {"clients": 100, "ratio": 0.1, "rounds": 30, "local_epochs": 3},
    "measure": {"local_every": 10},
}


# The paper's comparison with FedAlign, by the protocol of FedAlign's own code; see experiments/fedalign.toml.
FEDALIGN: dict[str, Any] = {
    "data": {"name": "cifar10"},
    "partition": {"name": "lda", "alpha": 0.5},
    "model": {"name": "resnet56"},
    "algorithm": {"name": "fedalign"},
    "federation": {
        "clients": 16,
        "ratio": 1.0,
        "rounds": 25,
        "local_epochs": 20,
        "batch_size": 64,
        "drop_last": True,
    },
    "optimiser": {"lr": 0.01, "nesterov": True, "weight_decay": 1e-4, "decay": 1.0, "clip": 10.0},
}
WHOLE = {"demo": DEMO, "fedalign": FEDALIGN}


def preset(name: str) -> dict[str, Any]:
    """The table of settings that `name` stands for.

    >>> preset("cifar10-lda0.1")["partition"]
    {'name': 'lda', 'alpha': 0.1}
    """
    if name in WHOLE:
        return {section: dict(table) for section, table in WHOLE[name].items()}
    dataset, _, split = name.partition("-")
    shards, alpha = re.fullmatch(r"s(\d+)", split), re.fullmatch(r"lda(\d*\.?\d+)", split)
    if dataset not in BASES or not (shards or alpha or split == "iid"):
        raise FedntdError(
            f"'{name}' is neither a config file nor a preset; {did_you_mean(name, (*WHOLE, *TABLE1))}; "
            f"any s or alpha works, such as cifar10-s4 or mnist-lda0.3"
        )
    if shards:
        partition = {"name": "sharding", "s": int(shards[1])}
    elif alpha:
        partition = {"name": "lda", "alpha": float(alpha[1])}
    else:
        partition = {"name": "iid"}
    base = BASES[dataset]
    return {"data": {"name": dataset}, "partition": partition, **{s: dict(t) for s, t in base.items()}}


def configure(source: str | Path | Mapping[str, Any], settings: Iterable[str] = (), trust: bool = False) -> Config:
    """The config of a preset, a TOML file or a table, changed by `settings` of the form "key=value".

    The config of a run folder may name code from outside fedntd and the current project only if you `trust` it.

    >>> configure("cifar10-s2", ["seed=3", "algorithm.beta=0.5"]).algorithm.options
    {'beta': 0.5, 'tau': 1.0}
    >>> configure({"federation": {"rounds": 3}}).federation.rounds
    3
    """
    table = source if isinstance(source, Mapping) else find_table(str(source), trust)
    return from_table(with_settings(table, settings))


def find_table(source: str, trust: bool = False, of_run: bool = False) -> dict[str, Any]:
    """The table of settings in a config file, or of a preset.

    `of_run`: treat the file as that of a run folder, even if no other file of a run is beside it.
    """
    file = Path(source)
    if not (source.endswith(".toml") or file.is_file()):
        return preset(source)
    table = read(file)
    if of_run or is_run_config(file):
        require_trust(table, file, trust)
    return table
