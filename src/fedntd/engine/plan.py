"""What a round will do, drawn before any of it is done: which clients, and which samples in which batch."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedntd.data.augment import Augment, Draws
from fedntd.rng import generator

MOST_PLANNED = 10**9  # samples of one client in one round: a plan has all of them, and more fill the memory


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
        """Step by step; the last batch of an epoch may be short."""
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


def local_plan(
    seed: int,
    round: int,
    client: int,
    owned: NDArray[np.int64],
    epochs: int,
    batch_size: int,
    augment: Augment | None,
    shape: tuple[int, ...],
    drop_last: bool = False,
) -> Plan:
    """Every epoch a new order of the client's samples.

    With `drop_last` an epoch ends with its last full batch; a client that cannot fill one keeps its one short batch,
    since a client without a step would have nothing to send.
    """
    rng = generator(seed, "batches", round, client)
    kept = len(owned) - len(owned) % batch_size if drop_last and len(owned) > batch_size else len(owned)
    samples = np.concatenate([rng.permutation(owned)[:kept] for _ in range(epochs)])
    draws = augment.draw(rng, len(samples), *shape[-2:]) if augment else None
    return Plan(samples, draws, epochs, batch_size)


# --- a cohort that trains together --------------------------------------------------------------------------------


def busy(steps: NDArray[np.int64]) -> list[int]:
    """How many clients each step trains, of some who have so many steps to take, most first: all who are not ready,
    and some more, to have few such numbers.

    >>> busy(np.array([4, 4, 1]))
    [3, 2, 2, 2]
    """
    return [rounded_up(int((steps > s).sum()), len(steps)) for s in range(steps.max())]


def stretches(sizes: list[int], room: int) -> Iterator[tuple[int, list[int]]]:
    """Steps of so many clients each, in turn, as many at a time as have room: the first slot, and their sizes.

    >>> list(stretches([3, 2, 2, 1, 1], room=5))
    [(0, [3, 2]), (5, [2, 1, 1])]
    """
    start, some = 0, []
    for size in sizes:
        if sum(some) + size > room:
            yield start, some
            start, some = start + sum(some), []
        some.append(size)
    yield start, some


def rounded_up(number: int, most: int) -> int:
    """The next of 1, 2, ..., 8, 12, 16, 24, 32, ...: few sizes to capture, and at most a third of a step for nothing.

    >>> [rounded_up(number, 100) for number in (1, 5, 8, 9, 13, 17, 33, 65, 97)]
    [1, 5, 8, 12, 16, 24, 48, 96, 100]
    """
    apart = 2 ** ((number - 1).bit_length() - 2) if number > 8 else 1
    return min(-(-number // apart) * apart, most)
