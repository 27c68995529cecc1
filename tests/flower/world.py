"""A small federation for tests, as a Flower app: points in the plane, a network of two layers, and sites that their
node config can tell to go wrong."""

import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import nn

from fedntd import Config, Dataset, Out, Taps, from_tensors
from fedntd.data.dataset import Part
from fedntd.flower.client_app import client_app
from fedntd.flower.server_app import server_app
from fedntd.flower.site import Samples, Site, dealt, held_out


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Linear(int(np.prod(shape)), width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> Out:
        """With taps (for FedAlign): the first layer with all channels, and with one and two of them."""
        x = x.flatten(1)
        z = torch.tanh(self.hidden(x))
        slim = torch.tanh(nn.functional.linear(x[:, :1].detach(), self.hidden.weight[:2, :1], self.hidden.bias[:2]))
        return Out(self.head(z), z, Taps(*(maps[..., None, None] for maps in (x, z, x[:, :1], slim))))


class Words(nn.Module):
    """The mean of what its tokens stand for, and a linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.meaning, self.head = nn.Embedding(20, 4), nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.meaning(x).mean(1))


def points(path: str = "") -> Dataset:
    """Three classes of points in the plane, of unequal sizes."""
    rng = np.random.default_rng(0)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])

    def draw(sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        y = np.repeat(np.arange(3), sizes)
        return torch.from_numpy(centres[y] + rng.normal(size=(len(y), 2))), torch.from_numpy(y)

    return from_tensors("points", draw([50, 41, 29]), draw([20, 20, 20]))


def tokens(path: str = "") -> Dataset:
    """Sequences of six of twenty tokens, in three classes."""
    rng = np.random.default_rng(2)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(rng.integers(0, 20, (count, 6))), torch.arange(count) % 3

    return from_tensors("tokens", draw(90), draw(30))


def unlabelled_points(path: str = "") -> Dataset:
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 2)))
    part = (x, torch.zeros(40, dtype=torch.int64))
    return from_tensors("unlabelled points", part, part)


# Other settings than the defaults of methods whose server makes thousands of steps a round.
CHEAP = {
    "feddf": {"steps": 4, "lr": 0.02, "batch_size": 16},
    "fedbe": {"epochs": 2, "batch_size": 16, "swa_start": 2, "swa_every": 1},
}

TABLE = {
    "seed": 1,
    "device": "cpu",
    "data": {"name": "world:points"},
    "partition": {"name": "lda", "alpha": 0.5, "min_size": 3},
    "model": {"name": "world:Net"},
    "algorithm": {"name": "fedavg"},
    "auxiliary": {"name": "world:unlabelled_points"},
    "federation": {"clients": 3, "ratio": 0.67, "rounds": 3, "local_epochs": 2, "batch_size": 8},
    "optimiser": {"lr": 0.1, "weight_decay": 0.01},
    "measure": {"local_every": 2},
}


def training_samples(site: Site) -> Samples:
    """A site's share; as its node config says: of one class only, the first few, or with some held out for tests."""
    samples = dealt(site)
    x, y = samples.part
    test = None
    if "hold_out" in site.node:
        n = int(site.node["hold_out"])
        (x, y), test = (x[n:], y[n:]), Part(x[:n], y[:n])
    if "only" in site.node:
        x, y = x[y == site.node["only"]], y[y == site.node["only"]]
    if "few" in site.node:
        x, y = x[: int(site.node["few"])], y[: int(site.node["few"])]
    return Samples(Part(x, y), samples.classes, test=test)


def samples_to_test_on(config: Config) -> Samples | None:
    return None if config.seed == 2 else held_out(config)


def spoil(message: Message, context: Context, call_next) -> Message:
    """A Flower mod: what a site answers when it is asked to train, as `fault` in its node config says: one word, or one
    for each round."""
    faults = str(context.node_config.get("fault", "")).split()
    if message.metadata.message_type != "train" or not faults:
        return call_next(message, context)
    round = int(message.content.config_records["what"]["round"])  # pyright: ignore[reportArgumentType]
    fault = faults[(round - 1) % len(faults)]
    if fault == "slow":
        time.sleep(600)
    reply = call_next(message, context)
    if fault == "crash":
        raise RuntimeError("disk on fire")
    if fault == "samples":
        reply.content.metric_records["report"]["samples"] = 10**12
        return reply
    up = {name: torch.from_numpy(array.numpy().copy()) for name, array in reply.content.array_records["up"].items()}
    first = next(iter(up))
    if fault == "nan":
        up[first].view(-1)[0] = float("nan")
    elif fault == "inf":
        up[first].view(-1)[-1] = float("inf")
    elif fault == "shape":
        up[first] = up[first][:1]
    elif fault == "missing":
        del up[first]
    elif fault == "extra":
        up["delta/more"] = torch.zeros(1)
    elif fault == "flip":
        up = {name: -10 * leaf for name, leaf in up.items()}
    reply.content.array_records["up"] = ArrayRecord(up)
    return reply


client = client_app(training_samples, mods=[spoil])
server = server_app(samples_to_test_on)
