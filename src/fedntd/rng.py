"""All randomness of a run comes from (seed, purpose, round, client), so that any part can be drawn again alone.

Draws are made on the CPU with NumPy, whose bit streams are the same on every machine, and only then sent to the
device: every engine eats the same numbers.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """
    >>> float(generator(0, "cohort", round=3).random()) == float(generator(0, "cohort", round=3).random())
    True
    >>> float(generator(0, "cohort", round=3).random()) == float(generator(0, "batches", round=3).random())
    False
    """
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, client]))
    )


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A seed for code that can only draw from torch's own generator (initial weights, dropout)."""
    return int(generator(seed, purpose, round, client).integers(2**63))


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Torch's own generators, seeded for the moment."""
    if seed is None:
        yield
        return
    # all that are in use, by name: torch warns where it finds several by itself
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        yield
