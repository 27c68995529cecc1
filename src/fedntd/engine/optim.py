"""The clients' optimiser: SGD with momentum and weight decay as pure functions, equal to torch.optim.SGD."""

import torch
from torch import Tensor

from fedntd import tree
from fedntd.config.schema import Optimiser
from fedntd.tree import Weights


def learning_rate(optimiser: Optimiser, round: int) -> float:
    """Of round 1, 2, ...: multiplied by `decay` after each round."""
    return optimiser.lr * optimiser.decay ** (round - 1)


def with_spring(optimiser: Optimiser, gradient: Weights, w: Weights, w_g: Weights) -> Weights:
    """The gradient of the loss plus proximal/2 |w - w_g|^2: FedProx's term, for any method."""
    if not optimiser.proximal:
        return gradient
    return tree.map(lambda g, leaf, start: g + optimiser.proximal * (leaf - start), gradient, w, w_g)


def clipped(optimiser: Optimiser, gradient: Weights) -> Weights:
    """The gradient, as long as `clip` where it is longer: torch.nn.utils.clip_grad_norm_."""
    if not optimiser.clip:
        return gradient
    factor = (optimiser.clip / (tree.sqnorm(gradient).sqrt() + 1e-6)).clamp(max=1)
    return tree.scale(factor, gradient)


def sgd_step(
    optimiser: Optimiser, w: Weights, gradient: Weights, velocity: Weights, lr: Tensor
) -> tuple[Weights, Weights]:
    """One step; returns new weights and new velocity (the momentum buffer, zero before the first step)."""
    if optimiser.nesterov:
        gradient = tree.map(lambda g, leaf: g.add(leaf, alpha=optimiser.weight_decay), gradient, w)
        velocity = tree.map(lambda v, g: g.add(v, alpha=optimiser.momentum), velocity, gradient)
        direction = tree.map(lambda g, v: g.add(v, alpha=optimiser.momentum), gradient, velocity)
    else:

        def accelerate(v: Tensor, g: Tensor, leaf: Tensor) -> Tensor:
            return g.add(leaf, alpha=optimiser.weight_decay).add(v, alpha=optimiser.momentum)

        velocity = direction = tree.map(accelerate, velocity, gradient, w)
    # with the rate as a tensor, a compiled step serves all rounds
    return tree.map(lambda leaf, d: torch.addcmul(leaf, d, lr, value=-1), w, direction), velocity
