"""Server-side distillation for FedDF and FedBE: data that belongs to no client, and students that train on it."""

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
    """The step of an optimiser, in place: update(weights [n], gradient [n], memory [memories, n], rates)."""

    update: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    memories: int  # numbers of optimiser state per weight


class Student(Protocol):
    """Weights that learn a teacher's answers on the server's data."""

    def learn(self, places: Tensor, rates: Tensor) -> None:
        """Make one step on the samples at `places`. `rates` are passed on to the optimiser's rule."""
        ...

    def weights(self) -> Weights:
        """A copy of the current weights."""
        ...


class Auxiliary(Protocol):
    """The server's own data, without labels, and the network to run on it. An engine provides it."""

    @property
    def seed(self) -> int: ...

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def logits(self, w: Weights) -> Tensor:
        """The logits of all samples, [N, C]."""
        ...

    def batches(self, round: int, size: int, steps: int) -> list[Tensor]:
        """The places of the samples of `steps` batches. Each pass over the data has a new order."""
        ...

    def student(self, rule: Rule, w: Weights, q: Tensor) -> Student:
        """A student that starts from `w` and learns the probabilities q [N, C] by `rule`."""
        ...


def at_hand(algorithm: FedAvg) -> Auxiliary:
    """The algorithm's auxiliary data, or an error if it has none."""
    if algorithm.auxiliary is None:
        raise FedntdError(f"{type(algorithm).__name__} has no auxiliary data; with_values() hands it over")
    return algorithm.auxiliary


def named(vector: Tensor, like: Weights) -> Weights:
    """Views of a vector of all weights, ordered by name, as weights shaped as in `like`."""
    names = sorted(like)
    pieces = vector.split([like[name].numel() for name in names])
    return {name: piece.view_as(like[name]) for name, piece in zip(names, pieces, strict=True)}


def white_noise(count: int, like: Weights, seed: int, round: int) -> list[Weights]:
    """`count` draws of standard normal noise in the shape of the weights. Drawn in threads, because drawing is slow."""
    size = sum(leaf.numel() for leaf in like.values())

    def draw(k: int) -> Weights:
        rng = generator(seed, "noise", round, k)
        # Drawn in 32 bits whatever the weights' dtype, because the copy to the device is slow, too.
        noise = torch.from_numpy(rng.standard_normal(size, dtype=np.float32))
        return named(noise.to(tree.leaves(like)[0]), like)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(draw, range(count)))
