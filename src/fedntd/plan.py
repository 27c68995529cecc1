"""What a round will do, drawn before any of it is done: which clients, and which samples in which batch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedntd.data.augment import Augment, Draws
from fedntd.rng import generator


class Step(NamedTuple):
    """One batch of one client."""

    samples: NDArray[np.int64]  # places in the training part
    draws: Draws | None  # how each sample is augmented


def cohort(seed: int, round: int, clients: int, ratio: float) -> list[int]:
    """The clients that train in this round: the same for every algorithm."""
    size = max(1, round_half_up(clients * ratio))
    return sorted(generator(seed, "cohort", round).choice(clients, size, replace=False).tolist())


def local_steps(
    seed: int,
    round: int,
    client: int,
    owned: NDArray[np.int64],
    epochs: int,
    batch_size: int,
    augment: Augment | None,
    shape: tuple[int, ...],
) -> list[Step]:
    """A client's batches: every epoch a new order of its samples; the short last batch is kept."""
    rng = generator(seed, "batches", round, client)
    steps = []
    for _ in range(epochs):
        order = rng.permutation(owned)
        draws = augment.draw(rng, len(order), *shape[-2:]) if augment else None
        for start in range(0, len(order), batch_size):
            part = slice(start, start + batch_size)
            steps.append(Step(order[part], Draws(*(d[part] for d in draws)) if draws else None))
    return steps


def round_half_up(value: float) -> int:
    return int(value + 0.5)
