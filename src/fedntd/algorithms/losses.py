"""Loss terms that several methods share."""

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

    Logits after the true class move up by one. This avoids boolean indexing, which cannot be vectorised over clients,
    and a gather, whose gradient would be a scatter.

    >>> not_true(torch.tensor([[10., 20., 30.]]), torch.tensor([1]))
    tensor([[10., 30.]])
    """
    before = torch.arange(z.shape[-1] - 1, device=z.device) < y[:, None]
    return torch.where(before, z[:, :-1], z[:, 1:])


def kl(q_g: Tensor, log_q: Tensor) -> Tensor:
    """KL(q_g || q) from probabilities q_g and log-probabilities log_q; a class of probability 0 adds nothing."""
    return (torch.special.xlogy(q_g, q_g) - q_g * log_q).sum(-1)


def distillation(z: Tensor, z_g: Tensor, tau: float) -> Tensor:
    """tau^2 KL(q_g || q) of the softmaxes at temperature tau. The tau^2 keeps the gradient's size as tau grows."""
    return tau**2 * kl((z_g / tau).softmax(-1), (z / tau).log_softmax(-1))


def features(out: Out) -> Tensor:
    """The features, which are the input of the last layer: [B, d]."""
    if out.z is None:
        raise FedntdError("this method compares features, so the model must return them: Out(logits, z), not logits")
    return out.z


# --- on weights: terms that do not depend on the batch ----------------------------------------------------------


def moved(w: Weights, direction: Weights, distance: float) -> Weights:
    """`w` moved by `distance` along `direction`; not moved if `direction` is zero."""
    return tree.add(w, tree.scale(distance / (tree.sqnorm(direction).sqrt() + 1e-12), direction))
