"""The clients' optimiser: SGD with momentum and weight decay as pure functions, equal to torch.optim.SGD."""

import torch
from torch import Tensor

from fedntd import tree
from fedntd.config.schema import Optimiser
from fedntd.tree import Weights


def learning_rate(optimiser: Optimiser, round: int) -> float:
    """The learning rate of a round (1, 2, ...): it is multiplied by `decay` after each round."""
    return optimiser.lr * optimiser.decay ** (round - 1)


def add_proximal_term(optimiser: Optimiser, gradient: Weights, w: Weights, w_g: Weights) -> Weights:
    """Add the gradient of proximal/2 |w - w_g|^2, the FedProx term, which any method can use."""
    if not optimiser.proximal:
        return gradient
    return tree.map(lambda g, leaf, start: g + optimiser.proximal * (leaf - start), gradient, w, w_g)


def clip_gradient(optimiser: Optimiser, gradient: Weights) -> Weights:
    """Scale the gradient down to norm `clip` if it is larger, as torch.nn.utils.clip_grad_norm_ does."""
    if not optimiser.clip:
        return gradient
    factor = (optimiser.clip / (tree.sqnorm(gradient).sqrt() + 1e-6)).clamp(max=1)
    return tree.scale(factor, gradient)


def sgd_step(
    optimiser: Optimiser, w: Weights, gradient: Weights, velocity: Weights, lr: Tensor
) -> tuple[Weights, Weights]:
    """One step. Returns new weights and new velocity (the momentum buffer, zero before the first step)."""
    if optimiser.nesterov:
        gradient = tree.map(lambda g, leaf: g.add(leaf, alpha=optimiser.weight_decay), gradient, w)
        velocity = tree.map(lambda v, g: g.add(v, alpha=optimiser.momentum), velocity, gradient)
        direction = tree.map(lambda g, v: g.add(v, alpha=optimiser.momentum), gradient, velocity)
    else:

        def accelerate(v: Tensor, g: Tensor, leaf: Tensor) -> Tensor:
            return g.add(leaf, alpha=optimiser.weight_decay).add(v, alpha=optimiser.momentum)

        velocity = direction = tree.map(accelerate, velocity, gradient, w)
    # lr is a tensor, so that a compiled step works for all rounds
    return tree.map(lambda leaf, d: torch.addcmul(leaf, d, lr, value=-1), w, direction), velocity
