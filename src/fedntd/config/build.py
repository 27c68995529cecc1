"""Build what a config names: the dataset, its partition among clients, and the network."""

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
    data = config.data
    return load(target("data", data.name), data.path, data.augment, data.train_size)


def deal(config: Config, labels: Indices) -> list[Indices]:
    """The indices of the training samples that each client owns."""
    options = json.dumps(config.partition.options, sort_keys=True)
    clients, label_bytes = config.federation.clients, labels.astype(np.int64).tobytes()
    # The user's own partition is not cached: it may read a file, or be redefined in a notebook.
    partition = cached_partition if config.partition.name in PARTITIONS else draw_partition
    return list(partition(config.partition.name, options, clients, config.dealing_seed, label_bytes))


def draw_partition(name: str, options: str, clients: int, seed: int, label_bytes: bytes) -> tuple[Indices, ...]:
    choice, labels = Choice(name, json.loads(options)), np.frombuffer(label_bytes, dtype=np.int64).copy()
    rng = generator(seed, "partition")
    try:
        parts = [np.asarray(part) for part in call("partition", choice, labels=labels, clients=clients, rng=rng)]
    except FedntdError:
        raise
    except Exception as error:  # a user's partition may raise anything
        raise FedntdError(f"partition '{name}' failed: {reason(error)}") from error
    require(
        len(parts) == clients, f"partition '{name}' made {len(parts)} parts for {clients} clients (federation.clients)"
    )
    check_parts(parts, len(labels), name)
    return tuple(parts)


def cached_partition(name: str, options: str, clients: int, seed: int, label_bytes: bytes) -> tuple[Indices, ...]:
    """Cached, because methods are compared on one partition, and LDA can take seconds to draw it, or to fail."""
    outcome = partition_or_error(name, options, clients, seed, label_bytes)
    if isinstance(outcome, str):
        raise FedntdError(outcome)
    return outcome


@lru_cache(maxsize=64)
def partition_or_error(
    name: str, options: str, clients: int, seed: int, label_bytes: bytes
) -> tuple[Indices, ...] | str:
    """The partition, or the message of the error: an exception would not be cached."""
    try:
        return draw_partition(name, options, clients, seed, label_bytes)
    except FedntdError as error:
        return str(error)


def build_module(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network that a config names, with initial weights drawn by the config's seed."""
    try:
        with seeded(torch_seed(config.seed, "model")):
            return call("model", config.model, shape=shape, classes=classes)
    except FedntdError:
        raise
    except Exception as error:  # a user's network may raise anything, for example on an unsuitable shape
        raise FedntdError(
            f"model '{config.model.name}' cannot be built for samples of shape {list(shape)} and {classes} classes: "
            f"{reason(error)}"
        ) from error
