"""Terms that several methods' losses are made of. All are per sample: logits [B, C], labels [B] -> [B]."""

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


def not_true(z: Tensor, y: Tensor) -> Tensor:
    """The logits without that of the true class, in their order: [B, C] -> [B, C-1].

    A gather at i + (i >= y), since neither boolean indexing nor one_hot can be vectorised over clients.

    >>> not_true(torch.tensor([[10., 20., 30.]]), torch.tensor([1]))
    tensor([[10., 30.]])
    """
    i = torch.arange(z.shape[-1] - 1, device=z.device)
    return z.gather(-1, i + (i >= y[:, None]).long())


def kl(q_g: Tensor, log_q: Tensor) -> Tensor:
    """KL(q_g || q) from probabilities q_g and log-probabilities log_q; a class of probability 0 adds nothing."""
    return (torch.special.xlogy(q_g, q_g) - q_g * log_q).sum(-1)
