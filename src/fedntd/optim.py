"""The clients' optimiser: SGD with momentum and weight decay as pure functions, equal to torch.optim.SGD."""

import torch
from torch import Tensor

from fedntd import tree
from fedntd.config import Optimiser
from fedntd.tree import Weights


def learning_rate(optimiser: Optimiser, round: int) -> float:
    """Of round 1, 2, ...: multiplied by `decay` after each round."""
    return optimiser.lr * optimiser.decay ** (round - 1)


def sgd_step(
    optimiser: Optimiser, w: Weights, gradient: Weights, velocity: Weights, lr: Tensor
) -> tuple[Weights, Weights]:
    """One step; returns new weights and new velocity (the momentum buffer, zero before the first step)."""

    def accelerate(v: Tensor, g: Tensor, leaf: Tensor) -> Tensor:
        return g.add(leaf, alpha=optimiser.weight_decay).add(v, alpha=optimiser.momentum)

    velocity = tree.map(accelerate, velocity, gradient, w)
    # with the rate as a tensor, a compiled step serves all rounds
    return tree.map(lambda leaf, v: torch.addcmul(leaf, v, lr, value=-1), w, velocity), velocity
