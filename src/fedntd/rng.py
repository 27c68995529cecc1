"""Random generators. All randomness of a run follows from (seed, purpose, round, client), so any part can be redrawn.

Numbers are drawn on the CPU with NumPy, whose bit streams are the same on every machine, and then sent to the device.
So every engine uses the same numbers.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator for one purpose, with a stream of its own for each round and client.

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
    """Seed torch's own generators, and restore them afterwards. Does nothing if the seed is None."""
    if seed is None:
        yield
        return
    # name the GPUs: with several, torch warns if fork_rng is left to find them
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        yield
