"""Proposition 2 (Lee et al. 2022): the divergence of a local model's answers from the global model's, on a client's own
samples, is the sum of two parts. That of the true classes is weighted by the in-local distribution p, that of the
not-true classes by the out-local distribution p~."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedntd.runs.measures import Vector


class KLSplit(NamedTuple):
    """KL(q_g || q_l) at temperature tau, averaged over the samples: it is `true + not_true`."""

    true: float  # the terms c = y_i
    not_true: float  # the terms c != y_i
    p: Vector  # [class]
    p_out: Vector
    true_of_class: Vector  # E over i in S_c of -q_g(c) log(q_l(c) / q_g(c)); 0 for a class without samples
    not_true_of_class: Vector  # the same over i not in S_c

    @property
    def true_by_p(self) -> float:
        """The true classes' part by the proposition, which `true` must equal."""
        return float(self.p @ self.true_of_class)

    @property
    def not_true_by_p_out(self) -> float:
        """The not-true classes' part by the proposition, which `not_true` / (C - 1) must equal."""
        return float(self.p_out @ self.not_true_of_class)


def kl_split(z: Tensor, z_g: Tensor, y: Tensor, tau: float = 1.0) -> KLSplit:
    """Split KL(q_g || q_l), given local logits z and global logits z_g [sample, class], and labels y [sample]."""
    z, z_g = z.detach().double().cpu(), z_g.detach().double().cpu()
    log_q, log_q_g = (z / tau).log_softmax(-1), (z_g / tau).log_softmax(-1)
    terms = (log_q_g.exp() * (log_q_g - log_q)).numpy()  # -q_g log(q_l / q_g), [sample, class]
    samples, classes = terms.shape
    is_true = (y.cpu()[:, None] == torch.arange(classes)).numpy()

    def mean_over(mask: np.ndarray) -> Vector:
        count = mask.sum(0)
        return np.where(mask, terms, 0).sum(0) / np.maximum(count, 1)

    p = is_true.mean(0)
    return KLSplit(
        true=float(terms[is_true].sum() / samples),
        not_true=float(terms[~is_true].sum() / samples),
        p=p,
        p_out=(1 - p) / (classes - 1),
        true_of_class=mean_over(is_true),
        not_true_of_class=mean_over(~is_true),
    )
