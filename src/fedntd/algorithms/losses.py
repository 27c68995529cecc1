"""Terms that several methods are made of."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedntd import tree
from fedntd.errors import FedntdError
from fedntd.models.functional import Out
from fedntd.tree import Weights

# --- per sample: logits [B, C], labels [B] -> [B] ---------------------------------------------------------------


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def not_true(z: Tensor, y: Tensor) -> Tensor:
    """The logits without that of the true class, in their order: [B, C] -> [B, C-1].

    Those before the true class as they are, those after it moved up: no boolean indexing, which cannot be vectorised
    over clients, and no gather, whose gradient would be a scatter.

    >>> not_true(torch.tensor([[10., 20., 30.]]), torch.tensor([1]))
    tensor([[10., 30.]])
    """
    before = torch.arange(z.shape[-1] - 1, device=z.device) < y[:, None]
    return torch.where(before, z[:, :-1], z[:, 1:])


def kl(q_g: Tensor, log_q: Tensor) -> Tensor:
    """KL(q_g || q) from probabilities q_g and log-probabilities log_q; a class of probability 0 adds nothing."""
    return (torch.special.xlogy(q_g, q_g) - q_g * log_q).sum(-1)


def distillation(z: Tensor, z_g: Tensor, tau: float) -> Tensor:
    """tau^2 KL(q_g || q) of the softmaxes at temperature tau; tau^2 keeps the gradient's size as tau grows."""
    return tau**2 * kl((z_g / tau).softmax(-1), (z / tau).log_softmax(-1))


def features(out: Out) -> Tensor:
    """What the last layer sees, [B, d]."""
    if out.z is None:
        raise FedntdError("this method compares features, so the model must return them: Out(logits, z), not logits")
    return out.z


# --- on weights: terms that enter a loss once, whatever the batch -----------------------------------------------


def moved(w: Weights, direction: Weights, distance: float) -> Weights:
    """`w`, `distance` away in `direction`; not moved at all where there is no direction."""
    return tree.add(w, tree.scale(distance / (tree.sqnorm(direction).sqrt() + 1e-12), direction))
