"""What FedDF and FedBE need besides a server of their own: data that belongs to no client, and students of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import FedntdError
from fedntd.rng import generator
from fedntd.tree import Weights


class Rule(NamedTuple):
    """An optimiser's step, in place: update(weights [n], gradient [n], memory [memories, n], rates)."""

    update: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    memories: int  # numbers that it remembers of each weight


class Student(Protocol):
    """Weights that learn what a teacher answers to the server's data."""

    def learn(self, places: Tensor, rates: Tensor) -> None:
        """One step on the samples at these places; `rates` are what the rule wants to know of it."""
        ...

    def weights(self) -> Weights:
        """A copy of them as they are now."""
        ...


class Auxiliary(Protocol):
    """The server's own data, without labels, and the network to run on it; an engine provides it."""

    @property
    def seed(self) -> int: ...

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def logits(self, w: Weights) -> Tensor:
        """Of the whole data, [N, C]."""
        ...

    def batches(self, round: int, size: int, steps: int) -> list[Tensor]:
        """The places of `steps` batches' samples: one pass over the data after the other, each in a new order."""
        ...

    def student(self, rule: Rule, w: Weights, q: Tensor) -> Student:
        """One that begins at `w` and learns the probabilities q [N, C] by this rule."""
        ...


def at_hand(algorithm: FedAvg) -> Auxiliary:
    """What a method has as its `auxiliary`."""
    if algorithm.auxiliary is None:
        raise FedntdError(f"{type(algorithm).__name__} has no auxiliary data; with_values() hands it over")
    return algorithm.auxiliary


def named(vector: Tensor, like: Weights) -> Weights:
    """A vector of all weights as weights, in the order of their names: views of it."""
    names = sorted(like)
    pieces = vector.split([like[name].numel() for name in names])
    return {name: piece.view_as(like[name]) for name, piece in zip(names, pieces, strict=True)}


def white_noise(count: int, like: Weights, seed: int, round: int) -> list[Weights]:
    """Standard normal numbers in place of weights, some times; drawn side by side, since it takes its time."""
    numbers = sum(leaf.numel() for leaf in like.values())

    def one(k: int) -> Weights:
        rng = generator(seed, "noise", round, k)
        # in 32 bits, whatever the weights have: to send them takes its time, too
        drawn = torch.from_numpy(rng.standard_normal(numbers, dtype=np.float32))
        return named(drawn.to(tree.leaves(like)[0]), like)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, range(count)))
