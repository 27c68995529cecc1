"""A dataset by import path, as a user would name it: unlabelled points for methods whose server learns from some."""

import torch

from fedntd import Dataset, from_tensors


def unlabelled_points() -> Dataset:
    """Where the blobs are, and between them."""
    x = 3 * torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    part = x, torch.arange(40) % 3
    return from_tensors("points", part, part)


# Other settings than the defaults of methods whose server makes thousands of steps a round, or that loop in each step.
CHEAP = {
    "fedalign": {"iterations": 2},
    "feddf": {"steps": 4, "lr": 0.02, "batch_size": 16},
    "fedbe": {"epochs": 2, "batch_size": 16, "swa_start": 2, "swa_every": 1},
}
