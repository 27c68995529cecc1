"""The dataset that a config names, and how its partition deals it out."""

import json
from functools import lru_cache

import numpy as np
from torch import nn

from fedntd.config.registry import Choice, call, target
from fedntd.config.schema import Config
from fedntd.data.dataset import Dataset
from fedntd.data.datasets import load
from fedntd.data.partition import PARTITIONS, Indices, check_parts
from fedntd.errors import FedntdError, reason, require
from fedntd.rng import generator, seeded, torch_seed


def load_dataset(config: Config) -> Dataset:
    wanted = config.data
    return load(target("data", wanted.name), wanted.path, wanted.augment, wanted.train_size)


def deal(config: Config, labels: Indices) -> list[Indices]:
    """Which client owns which training samples."""
    options = json.dumps(config.partition.options, sort_keys=True)
    clients, label_bytes = config.federation.clients, labels.astype(np.int64).tobytes()
    # one's own may read a file, or be defined anew in a notebook
    partition = kept if config.partition.name in PARTITIONS else dealt
    return list(partition(config.partition.name, options, clients, config.dealing_seed, label_bytes))


def dealt(name: str, options: str, clients: int, seed: int, label_bytes: bytes) -> tuple[Indices, ...]:
    choice, labels = Choice(name, json.loads(options)), np.frombuffer(label_bytes, dtype=np.int64).copy()
    rng = generator(seed, "partition")
    try:
        parts = [np.asarray(part) for part in call("partition", choice, labels=labels, clients=clients, rng=rng)]
    except FedntdError:
        raise
    except Exception as error:  # whatever a partition of the user's own stumbles over
        raise FedntdError(f"partition '{name}' failed: {reason(error)}") from error
    require(
        len(parts) == clients, f"partition '{name}' made {len(parts)} parts for {clients} clients (federation.clients)"
    )
    check_parts(parts, len(labels), name)
    return tuple(parts)


def kept(name: str, options: str, clients: int, seed: int, label_bytes: bytes) -> tuple[Indices, ...]:
    """For the runs to come: methods are compared on one partition, and by LDA it can take seconds to draw, or to find
    that there is none."""
    found = tried(name, options, clients, seed, label_bytes)
    if isinstance(found, str):
        raise FedntdError(found)
    return found


@lru_cache(maxsize=64)
def tried(name: str, options: str, clients: int, seed: int, label_bytes: bytes) -> tuple[Indices, ...] | str:
    try:
        return dealt(name, options, clients, seed, label_bytes)
    except FedntdError as error:
        return str(error)


def build_module(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network that a config names, with the initial weights of its seed."""
    try:
        with seeded(torch_seed(config.seed, "model")):
            return call("model", config.model, shape=shape, classes=classes)
    except FedntdError:
        raise
    except Exception as error:  # whatever a network of the user's own does with a shape it is not made for
        raise FedntdError(
            f"model '{config.model.name}' cannot be built for samples of shape {list(shape)} and {classes} classes: "
            f"{reason(error)}"
        ) from error
