"""What a round will do, drawn before any of it is done: which clients, and which samples in which batch."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedntd.data.augment import Augment, Draws
from fedntd.rng import generator


class Plan(NamedTuple):
    """A client's batches in a round: its samples in the order they are seen, cut into steps."""

    samples: NDArray[np.int64]  # places in the training part, epoch after epoch
    draws: Draws | None  # how each of them is augmented
    epochs: int
    batch_size: int

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.epoch_size // self.batch_size)

    @property
    def epoch_size(self) -> int:
        return len(self.samples) // self.epochs

    def batches(self) -> Iterator[tuple[NDArray[np.int64], Draws | None]]:
        """Step by step; the short last batch of an epoch is kept."""
        for epoch in range(self.epochs):
            end = (epoch + 1) * self.epoch_size
            for start in range(epoch * self.epoch_size, end, self.batch_size):
                part = slice(start, min(start + self.batch_size, end))
                yield self.samples[part], Draws(*(d[part] for d in self.draws)) if self.draws else None

    def some(self, count: int) -> NDArray[np.int64]:
        """The first so many samples of the first epoch's order: for a pass after training."""
        return self.samples[: min(count, self.epoch_size)]

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The step that each sample belongs to, and its place within that step's batch."""
        epoch, i = np.divmod(np.arange(len(self.samples)), self.epoch_size)
        step, place = np.divmod(i, self.batch_size)
        return epoch * (self.steps // self.epochs) + step, place


def cohort(seed: int, round: int, clients: int, ratio: float) -> list[int]:
    """The clients that train in this round: the same for every algorithm."""
    size = max(1, int(clients * ratio + 0.5))
    return sorted(generator(seed, "cohort", round).choice(clients, size, replace=False).tolist())


def local_plan(
    seed: int,
    round: int,
    client: int,
    owned: NDArray[np.int64],
    epochs: int,
    batch_size: int,
    augment: Augment | None,
    shape: tuple[int, ...],
) -> Plan:
    """Every epoch a new order of the client's samples."""
    rng = generator(seed, "batches", round, client)
    samples = np.concatenate([rng.permutation(owned) for _ in range(epochs)])
    draws = augment.draw(rng, len(samples), *shape[-2:]) if augment else None
    return Plan(samples, draws, epochs, batch_size)
