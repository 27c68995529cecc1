"""A method that keeps state at the server and at each client, and a small network, as a user would write them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedntd import FedAvg, Upload, tree


class Little(nn.Sequential):
    """One convolution and one linear layer for images of 28 × 28."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, classes)
        )


class Straight(nn.Linear):
    """A linear model of points."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape[0], classes)


class RandomFeatures(nn.Module):
    """What is trained sees the points through a frozen layer and a buffer, which each seed draws anew."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(shape[0], 6).requires_grad_(False), nn.Linear(6, classes)
        self.shift = nn.Buffer(torch.randn(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(x) + self.shift))


@dataclass(frozen=True)
class ByRatio(FedAvg):
    """Clients learn as much slower as there are fewer of them in a round."""

    def loss(self, model, w, batch, ctx):
        return self.ratio * super().loss(model, w, batch, ctx)


@dataclass(frozen=True)
class Sending(FedAvg):
    """Clients send the trained weights themselves."""

    def finish(self, result, ctx):
        return Upload(up={"w": result.w}, own={})

    def aggregate(self, w_g, server, up, p, fraction):
        return tree.weighted_mean(up["w"], p), {}


@dataclass(frozen=True)
class Mixing(FedAvg):
    """With a setting whose name the federation uses for something else."""

    ratio: float = 0.1  # pyright: ignore


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Each client adds half of its own last update; the server averages what clients sent over the rounds."""

    keep: float = 0.5

    def init_server(self, w):
        return {"mean": tree.zeros_like(w)}

    def init_client(self, w):
        return {"last": tree.zeros_like(w)}

    def broadcast(self, server):
        return {"mean": server["mean"]}

    def finish(self, result, ctx):
        delta = tree.add(tree.sub(result.w, ctx.w_g), tree.scale(self.keep, ctx.own["last"]))
        return Upload(up={"delta": delta}, own={"last": delta})

    def aggregate(self, w_g, server, up, p, fraction):
        step = tree.weighted_mean(up["delta"], p)
        mean = tree.add(tree.scale(0.5, server["mean"]), tree.scale(0.5, step))
        return tree.add(w_g, mean), {"mean": mean}


@dataclass(frozen=True)
class Turned(FedAvg):
    """What the last layer sees stays near what that of the global model does: both turned around, and back again."""

    def loss(self, model, w, batch, ctx):
        theirs, own = model.frozen(ctx.w_g, batch).z, model(w, batch).z
        assert theirs is not None
        assert own is not None
        apart = (theirs.T - own.T).T
        squared = apart.reshape(-1).square().view(apart.shape).sum(-1)
        return super().loss(model, w, batch, ctx) + batch.mean(squared)
