"""Runs put together by chance: networks of all that makes it hard to tell what a step reads and changes."""

import random
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedntd import ALGORITHMS, Dataset, Out, from_tensors
from fedntd.kernels.convolution import conv_pool_relu

WIDTH = 4


class Gated(nn.Module):
    """Two halves of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH) / 2)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.weight.chunk(2)
        return F.linear(x, value) * F.linear(x, gate).sigmoid()


class Turned(nn.Module):
    """One weight there and back, and rows of it in between."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, WIDTH) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).tanh() @ self.weight + self.weight.T.reshape(-1)[:WIDTH]


class Scaled(nn.Module):
    """By a weight, and moved by a constant."""

    constant: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("constant", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * torch.ones_like(self.scale) + self.constant


class Frozen(nn.Linear):
    """With a weight that stays as it is."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.weight.requires_grad_(False)


class Skip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Pooled(nn.Module):
    """Images through one of our convolutions and one of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 1, 3, 3) / 3), nn.Parameter(torch.zeros(3))
        self.second, self.out = nn.Conv2d(3, 2, 2), nn.Linear(2 * 3 * 3, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = conv_pool_relu(x, self.weight, self.bias)
        return self.out(self.second(x).tanh().flatten(1))


class Patchwork(nn.Module):
    """The same for the same seed."""

    BLOCKS: ClassVar = {
        "linear": lambda: nn.Linear(WIDTH, WIDTH),
        "no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
        "layer norm": lambda: nn.LayerNorm(WIDTH),
        "batch norm": lambda: nn.BatchNorm1d(WIDTH),
        "group norm": lambda: nn.GroupNorm(2, WIDTH),
        "gated": Gated,
        "turned": Turned,
        "scaled": Scaled,
        "frozen": Frozen,
    }

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        choose = random.Random(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(2, WIDTH) if len(shape) == 1 else Pooled()
            blocks: list[nn.Module] = []
            for _ in range(choose.randint(0, 4)):
                again = blocks and choose.random() < 0.3
                block = choose.choice(blocks) if again else self.BLOCKS[choose.choice(list(self.BLOCKS))]()
                blocks.append(block if again or choose.random() < 0.7 else Skip(block))
            self.blocks = nn.ModuleList(blocks)
            hidden = choose.choice([4, 40])
            self.head = nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, 3))

    def forward(self, x: Tensor) -> Out:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).tanh()
        return Out(self.head(x), x)


def drawn_run(seed: int) -> tuple[Dataset, dict]:
    """A few samples of very different clients, and the sections of a run on them."""
    choose, rng = random.Random(seed), np.random.default_rng(seed)
    name = choose.choice(sorted(set(ALGORITHMS) - {"fedalign", "feddf", "fedbe"}))  # these need more than a network
    y = np.repeat(np.arange(3), [14, 10, 7])
    if choose.random() < 0.3:
        x = torch.from_numpy(rng.integers(0, 200, (len(y), 1, 8, 8)).astype(np.uint8))
    else:
        x = torch.from_numpy(rng.normal(size=(len(y), 2)) + y[:, None])
    part = x, torch.from_numpy(y)
    momentum = choose.choice([0.0, 0.9])
    return from_tensors("drawn", part, part), {
        "algorithm": {"name": name},
        "optimiser": {
            "lr": 0.02,
            "momentum": momentum,
            "weight_decay": choose.choice([0.0, 0.01]),
            "proximal": choose.choice([0.0, 0.1]),
        },
        "partition": {"name": "lda", "alpha": 0.4, "min_size": 1},
        "federation": {"clients": 5, "ratio": 1.0, "rounds": 1, "local_epochs": 2, "batch_size": 4},
    }
