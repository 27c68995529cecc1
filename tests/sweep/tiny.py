"""A world that trains in milliseconds, for sweeps in real processes: named as "tiny:points", "tiny:Net", ..."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedntd import Dataset, FedAvg, from_tensors


def points(path: str = "") -> Dataset:
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = np.arange(count) % 3
        return torch.from_numpy(centres[y] + rng.normal(size=(count, 2))), torch.from_numpy(y)

    return from_tensors("points", draw(120), draw(60))


class Net(nn.Module):
    """Two linear layers; `pause` seconds a forward pass, for tests that must come in the middle of a run."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 4, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause)
        return self.layers(x)


@dataclass(frozen=True)
class Fatal(FedAvg):
    """Kills its process by signal 9, `times` times; the file `lives` keeps count."""

    lives: str = ""
    times: int = 1

    def aggregate(self, w_g, server, up, p, fraction):
        file = Path(self.lives)
        lost = len(file.read_text()) if file.exists() else 0
        if lost < self.times:
            file.write_text("x" * (lost + 1))
            os.kill(os.getpid(), 9)
        return super().aggregate(w_g, server, up, p, fraction)


@dataclass(frozen=True)
class Buggy(FedAvg):
    """Raises an ordinary exception."""

    def aggregate(self, w_g, server, up, p, fraction):
        raise ZeroDivisionError("a bug of the method")


@dataclass(frozen=True)
class Talkative(FedAvg):
    """Prints, as people do when they debug."""

    def aggregate(self, w_g, server, up, p, fraction):
        print("here I am")
        return super().aggregate(w_g, server, up, p, fraction)


BASE = """
device = "cpu"
workers = 1
checkpoint_seconds = 0.0
data.name = "tiny:points"
model.name = "tiny:Net"
partition = { name = "lda", alpha = 0.5, min_size = 3 }
federation = { clients = 6, ratio = 0.5, rounds = 3, local_epochs = 1, batch_size = 8 }
"""
