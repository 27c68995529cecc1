"""Proposition 2 (Lee et al. 2022): the divergence of a local model's answers from the global model's, on a client's own
samples, splits into a part of the true classes, weighted by the in-local distribution p, and a part of the not-true
classes, weighted by the out-local distribution p~."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedntd.runs.measures import Vector


class KLSplit(NamedTuple):
    """KL(q_g || q_l) at temperature tau, mean over the samples: `true + not_true` is all of it."""

    true: float  # the terms c = y_i
    not_true: float  # the terms c != y_i
    p: Vector  # [class]
    p_out: Vector
    true_of_class: Vector  # E over i in S_c of -q_g(c) log(q_l(c) / q_g(c)); 0 for a class without samples
    not_true_of_class: Vector  # the same over i not in S_c

    @property
    def true_by_p(self) -> float:
        """The proposition's right-hand side: what `true` must equal."""
        return float(self.p @ self.true_of_class)

    @property
    def not_true_by_p_out(self) -> float:
        """What `not_true` / (C - 1) must equal."""
        return float(self.p_out @ self.not_true_of_class)


def kl_split(z: Tensor, z_g: Tensor, y: Tensor, tau: float = 1.0) -> KLSplit:
    """From logits [sample, class] of the local and the global model, and the true classes [sample]."""
    z, z_g = z.detach().double().cpu(), z_g.detach().double().cpu()
    log_q, log_q_g = (z / tau).log_softmax(-1), (z_g / tau).log_softmax(-1)
    terms = (log_q_g.exp() * (log_q_g - log_q)).numpy()  # -q_g log(q_l / q_g), [sample, class]
    samples, classes = terms.shape
    is_true = (y.cpu()[:, None] == torch.arange(classes)).numpy()

    def mean_over(chosen: np.ndarray) -> Vector:
        count = chosen.sum(0)
        return np.where(chosen, terms, 0).sum(0) / np.maximum(count, 1)

    p = is_true.mean(0)
    return KLSplit(
        true=float(terms[is_true].sum() / samples),
        not_true=float(terms[~is_true].sum() / samples),
        p=p,
        p_out=(1 - p) / (classes - 1),
        true_of_class=mean_over(is_true),
        not_true_of_class=mean_over(~is_true),
    )
