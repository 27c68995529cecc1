"""Plans: which samples are in which batch, and how they are augmented. Drawn before a round starts."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedntd.data.augment import Augment, Draws
from fedntd.rng import generator

MOST_PLANNED = 10**9  # samples of one client in one round; a plan lists them all, and more would fill the memory


class Plan(NamedTuple):
    """A client's batches in a round: its samples in the order of training, cut into steps."""

    samples: NDArray[np.int64]  # indices into the training part, epoch after epoch
    draws: Draws | None  # how each sample is augmented; None: not at all
    epochs: int
    batch_size: int

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.epoch_size // self.batch_size)

    @property
    def epoch_size(self) -> int:
        return len(self.samples) // self.epochs

    def batches(self) -> Iterator[tuple[NDArray[np.int64], Draws | None]]:
        """The samples and draws of each step. The last batch of an epoch may be short."""
        for epoch in range(self.epochs):
            end = (epoch + 1) * self.epoch_size
            for start in range(epoch * self.epoch_size, end, self.batch_size):
                part = slice(start, min(start + self.batch_size, end))
                yield self.samples[part], Draws(*(d[part] for d in self.draws)) if self.draws else None

    def first_samples(self, count: int) -> NDArray[np.int64]:
        """The first `count` samples of the first epoch, or all if there are fewer: for a pass after training."""
        return self.samples[: min(count, self.epoch_size)]

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample: the number of its step, and its position in that step's batch."""
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
    """Draw a client's plan for a round, with a new order of its samples in every epoch.

    With `drop_last` a short last batch is left out, unless it is the only one: a client without a step would have
    nothing to send.
    """
    rng = generator(seed, "batches", round, client)
    kept = len(owned) - len(owned) % batch_size if drop_last and len(owned) > batch_size else len(owned)
    samples = np.concatenate([rng.permutation(owned)[:kept] for _ in range(epochs)])
    draws = augment.draw(rng, len(samples), *shape[-2:]) if augment else None
    return Plan(samples, draws, epochs, batch_size)


# --- a cohort that trains together --------------------------------------------------------------------------------


def busy(steps: NDArray[np.int64]) -> list[int]:
    """Clients still training at each step, rounded up so that few graph sizes are captured.

    `steps` are the clients' numbers of steps, in descending order.

    >>> busy(np.array([4, 4, 1]))
    [3, 2, 2, 2]
    """
    return [rounded_up(int((steps > s).sum()), len(steps)) for s in range(steps.max())]


def stretches(sizes: list[int], slots: int) -> Iterator[tuple[int, list[int]]]:
    """Group consecutive steps so that the clients of a group fit into `slots`.

    `sizes` are the numbers of clients that the steps train. Yields for each group the number of slots used by all
    groups before it, and the sizes of its steps.

    >>> list(stretches([3, 2, 2, 1, 1], slots=5))
    [(0, [3, 2]), (5, [2, 1, 1])]
    """
    start, group = 0, []
    for size in sizes:
        if sum(group) + size > slots:
            yield start, group
            start, group = start + sum(group), []
        group.append(size)
    yield start, group


def rounded_up(number: int, most: int) -> int:
    """Round up to 1, 2, ..., 8, 12, 16, 24, 32, ... or `most`: few sizes, and at most a third of a step is wasted.

    >>> [rounded_up(number, 100) for number in (1, 5, 8, 9, 13, 17, 33, 65, 97)]
    [1, 5, 8, 12, 16, 24, 48, 96, 100]
    """
    spacing = 2 ** ((number - 1).bit_length() - 2) if number > 8 else 1
    return min(-(-number // spacing) * spacing, most)
