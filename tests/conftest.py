"""Small worlds that several tests share: real images from the package, and tiny synthetic problems in float64."""

import gc
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import nn

from fedntd import Config, Dataset, Out, Taps, from_tensors
from fedntd.config.toml import from_table
from fedntd.data.datasets import DATASETS
from few_images import fashion_with_few_test_images
from points import CHEAP

settings.register_profile("fedntd", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("fedntd")

# What a GPU would compile is compiled for a CPU here, without its vector instructions: to try out which it has, and to
# write everything with and without them, would take as long as all else that the compiler does.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their length: gzip writes the time into what it compresses, and all workers must collect the same
    names."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that takes longest comes first: another process would wait for it at the end."""
    items.sort(key=lambda item: item.name != "test_the_compiled_step_is_the_same_step")


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # see `what_stays_is_not_searched_for_garbage`; some libraries complain of what is left at the end


class TinyNet(nn.Module):
    """A linear layer, tanh and a linear layer: smooth, so that float64 comparisons are exact to rounding.

    Its taps are the first layer with all channels, and with one and two of them.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(int(np.prod(shape)), 5)
        self.head = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> Out:
        x = x.flatten(1)
        z = torch.tanh(self.hidden(x))
        slim = torch.tanh(nn.functional.linear(x[:, :1].detach(), self.hidden.weight[:2, :1], self.hidden.bias[:2]))
        return Out(self.head(z), z, Taps(*(maps[..., None, None] for maps in (x, z, x[:, :1], slim))))


@pytest.fixture(autouse=True, scope="module")
def what_stays_is_not_searched_for_garbage() -> None:
    """A process that tests everything holds a million objects to its end. Runs that are trained together ask for their
    garbage to be collected, which would look through all of these each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def blobs() -> Dataset:
    """Three classes of points in the plane, of unequal sizes."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])

    def draw(sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        y = np.repeat(np.arange(3), sizes)
        x = centres[y] + rng.normal(size=(len(y), 2))
        return torch.from_numpy(x), torch.from_numpy(y)

    return from_tensors("blobs", draw([50, 41, 29]), draw([20, 20, 20]))


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """A small run on the blobs: 6 clients of unequal sizes, three of them a round; keyword sections override (one that
    gives a `name` replaces its section)."""

    def make(**sections: object) -> Config:
        table: dict = {
            "precision": "fp64",
            "device": "cpu",
            "workers": 1,
            "partition": {"name": "lda", "alpha": 0.5, "min_size": 3},
            "federation": {"clients": 6, "ratio": 0.5, "rounds": 3, "local_epochs": 2, "batch_size": 8},
            "optimiser": {"lr": 0.1, "weight_decay": 0.01},
            "auxiliary": {"name": "points:unlabelled_points"},
        }
        for key, value in sections.items():
            if isinstance(value, dict) and "name" not in value:
                value = {**table.get(key, {}), **value}
            table[key] = value
        algorithm = table.get("algorithm", {})
        table["algorithm"] = {**CHEAP.get(algorithm.get("name"), {}), **algorithm}
        return from_table(table)

    return make


@pytest.fixture
def few_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of runs on the packaged images in which it does not matter how good the models are."""
    monkeypatch.setitem(DATASETS, "fashion-mini", fashion_with_few_test_images)


@pytest.fixture
def tiny_net() -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return TinyNet((2,), 3)

    return make
