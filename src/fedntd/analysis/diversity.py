"""Gradient diversity (Lee et al. 2022, definition 2) and what proposition 1 says of it.

    Lambda = (1/K sum_k |grad f^k|^2) / |grad f|^2,    f = 1/K sum_k f^k

It is 1 where all clients pull the same way with the same force, and grows as they pull apart. Proposition 1 assumes
class-wise gradients g_c that are orthogonal and of one length, classes that are uniform over all clients together, and
local gradients (p^k + beta p~^k) . g. Then, with V the mean over clients of the variance of p^k over its C classes,

    Lambda(beta) = 1 + C^2 V (1 - beta / (C - 1))^2 / (1 + beta)^2,
    dLambda/dbeta <= -M / (1 + beta)^2  for  beta <= C/2 - 1,    M = 2 C^3 V / (C - 1)^2.

The printed proof leaves out the factor 1/K of grad f, and takes the mean of p^k over the classes for 1 instead of 1/C.
So its formula is smaller by K^2, and has C^2 / K^2 where the 1 stands here, which can put Lambda below 1. The
inequality, with M scaled likewise, is not touched by that.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.analysis.rounds import out_of
from fedntd.data.device import DevicePart
from fedntd.engine.testing import TEST_BATCH
from fedntd.errors import FedntdError, require
from fedntd.models.functional import Model
from fedntd.runs.measures import Vector
from fedntd.tree import Tree, Weights


def gradient_diversity(gradients: Tree) -> float:
    """Lambda of local gradients stacked [client, ...]."""
    gram = gram_matrix(gradients)
    return diversity_of_mixtures(gram, np.eye(len(gram)))


def gram_matrix(gradients: Tree) -> Vector:
    """Their inner products, [gradient, gradient]."""
    pieces = [
        piece for leaf in tree.leaves(gradients) for piece in leaf.flatten(1).split(2**18, dim=1)
    ]  # not all at once
    return torch.stack([piece.double() @ piece.double().T for piece in pieces]).sum(0).cpu().numpy()


def diversity_of_mixtures(gram: Vector, shares: Vector) -> float:
    """Lambda of local gradients that are sums of given ones, grad f^k = sum_c shares[k, c] g_c.

    `gram` are the inner products of the g_c, so that Lambda at many betas takes their gradients only once.
    """
    mean = shares.mean(0)
    squares = np.einsum("kc,cd,kd->k", shares, gram, shares)
    whole = float(mean @ gram @ mean)
    require(whole > 0, "the mean of the gradients is zero, so their diversity has no value")
    return float(squares.mean()) / whole


# --- gradients of a model ---------------------------------------------------------------------------------------


def class_gradients(model: Model, w: Weights, data: DevicePart) -> dict:
    """g_c = grad L_c(w), of the mean cross-entropy on the samples of class c: stacked [class, ...]."""
    classes = int(data.y.max()) + 1
    zero = data.y.new_zeros((), dtype=model.storage)
    ctx = Context(w, {}, {}, zero, 0.0)
    places = [torch.nonzero(data.y == c).flatten() for c in range(classes)]
    require(all(len(p) for p in places), "some class has no samples, so it has no gradient")
    return tree.stack([mean_gradient(FedAvg(), model, w, data, p, ctx) for p in places])


def local_gradients(
    algorithm: FedAvg, model: Model, w: Weights, w_g: Weights, data: DevicePart, parts: Sequence[NDArray[np.int64]]
) -> dict:
    """grad f^k(w) of each client's objective on its own samples, stacked [client, ...].

    `w_g` is the global model that the clients received: at w = w_g, distillation has no gradient.
    """
    ctx = Context(w_g, {}, {}, data.y.new_zeros((), dtype=model.storage), 0.0)
    owned = [torch.from_numpy(part).to(data.device) for part in parts]
    return tree.stack([mean_gradient(algorithm, model, w, data, places, ctx) for places in owned])


def mean_gradient(
    algorithm: FedAvg, model: Model, w: Weights, data: DevicePart, places: Tensor, ctx: Context
) -> Weights:
    """Of the objective on some samples of `data`, as they are tested: without augmentation."""
    total = tree.zeros_like(w)
    for some in places.split(TEST_BATCH):
        gradient, _ = algorithm.gradient(model, w, data.plain(some), ctx)
        total = tree.add(total, tree.scale(len(some) / len(places), gradient))
    return total


# --- proposition 1 ----------------------------------------------------------------------------------------------


def mixed_diversity(gram: Vector, p: Vector, beta: float) -> float:
    """Lambda(beta) of local gradients (p^k + beta p~^k) . g, for any class-wise gradients; p [client, class]."""
    return diversity_of_mixtures(gram, p + beta * out_of(p))


def closed_form(p: Vector, beta: float) -> float:
    """Lambda(beta) under the assumptions of proposition 1."""
    check_uniform(p)
    classes = p.shape[1]
    return 1 + classes**2 * variance(p) * ((1 - beta / (classes - 1)) / (1 + beta)) ** 2


def slope(p: Vector, beta: float) -> float:
    """dLambda/dbeta of `closed_form`."""
    classes = p.shape[1]
    return -constant(p) * (classes / (1 + beta) ** 3 - 1 / (1 + beta) ** 2)


def slope_bound(p: Vector, beta: float) -> float:
    """-M / (1 + beta)^2, which the slope stays below while beta <= C/2 - 1."""
    check_uniform(p)
    return -constant(p) / (1 + beta) ** 2


def diversity_bound(p: Vector, beta: float) -> float:
    """What follows from `slope_bound` for Lambda itself: Lambda(0) - M beta / (1 + beta)."""
    return closed_form(p, 0) - constant(p) * beta / (1 + beta)


def constant(p: Vector) -> float:
    """M of proposition 1."""
    classes = p.shape[1]
    return 2 * classes**3 * variance(p) / (classes - 1) ** 2


def variance(p: Vector) -> float:
    """V: over the classes of a client, its mean over clients."""
    return float(p.var(axis=1).mean())


def check_uniform(p: Vector) -> None:
    mean = p.mean(0)
    if not np.allclose(mean, 1 / p.shape[1]):
        raise FedntdError(
            f"proposition 1 assumes classes that are uniform over all clients together; here the shares of the classes "
            f"are between {mean.min():.3g} and {mean.max():.3g}"
        )
