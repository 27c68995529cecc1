"""Gradient diversity (Lee et al. 2022, definition 2) and proposition 1.

    Lambda = (1/K sum_k |grad f^k|^2) / |grad f|^2,    f = 1/K sum_k f^k

It is 1 where all clients pull the same way with the same force, and grows as they pull apart. Proposition 1 assumes
class-wise gradients g_c that are orthogonal and of one length, classes that are uniform over all clients together, and
local gradients (p^k + beta p~^k) . g. Then, with V the mean over clients of the variance of p^k over its C classes,

    Lambda(beta) = 1 + C^2 V (1 - beta / (C - 1))^2 / (1 + beta)^2,
    dLambda/dbeta <= -M / (1 + beta)^2  for  beta <= C/2 - 1,    M = 2 C^3 V / (C - 1)^2.

The printed proof omits the factor 1/K of grad f, and uses 1 instead of 1/C for the mean of p^k over the classes. Its
formula is therefore smaller by a factor of K^2, and has C^2 / K^2 in place of the 1 above, so that Lambda can be below
1. The inequality still holds, with M scaled likewise.
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
    """Lambda, the gradient diversity of local gradients stacked [client, ...]."""
    gram = gram_matrix(gradients)
    return diversity_of_mixtures(gram, np.eye(len(gram)))


def gram_matrix(gradients: Tree) -> Vector:
    """The inner products of stacked gradients, [gradient, gradient]."""
    # In pieces, because a float64 copy of all gradients would be large.
    pieces = [piece for leaf in tree.leaves(gradients) for piece in leaf.flatten(1).split(2**18, dim=1)]
    return torch.stack([piece.double() @ piece.double().T for piece in pieces]).sum(0).cpu().numpy()


def diversity_of_mixtures(gram: Vector, shares: Vector) -> float:
    """Lambda of local gradients that are mixtures of class-wise ones: grad f^k = sum_c shares[k, c] g_c.

    `gram` are the inner products of the g_c. They are computed once for Lambda at many betas.
    """
    mean = shares.mean(0)
    squares = np.einsum("kc,cd,kd->k", shares, gram, shares)
    square_of_mean = float(mean @ gram @ mean)
    require(square_of_mean > 0, "the mean of the gradients is zero, so their diversity is undefined")
    return float(squares.mean()) / square_of_mean


# --- gradients of a model ---------------------------------------------------------------------------------------


def class_gradients(model: Model, w: Weights, data: DevicePart) -> dict:
    """g_c = grad L_c(w), the gradients of the mean cross-entropy on the samples of class c, stacked [class, ...]."""
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
    """The gradient of the objective on the samples of `data` at `places`, without augmentation."""
    total = tree.zeros_like(w)
    for batch in places.split(TEST_BATCH):
        gradient, _ = algorithm.gradient(model, w, data.plain(batch), ctx)
        total = tree.add(total, tree.scale(len(batch) / len(places), gradient))
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
    """-M / (1 + beta)^2, an upper bound of the slope for beta <= C/2 - 1."""
    check_uniform(p)
    return -constant(p) / (1 + beta) ** 2


def diversity_bound(p: Vector, beta: float) -> float:
    """The bound on Lambda that follows from `slope_bound`: Lambda(0) - M beta / (1 + beta)."""
    return closed_form(p, 0) - constant(p) * beta / (1 + beta)


def constant(p: Vector) -> float:
    """M of proposition 1."""
    classes = p.shape[1]
    return 2 * classes**3 * variance(p) / (classes - 1) ** 2


def variance(p: Vector) -> float:
    """V: the variance of p over a client's classes, averaged over clients."""
    return float(p.var(axis=1).mean())


def check_uniform(p: Vector) -> None:
    mean = p.mean(0)
    if not np.allclose(mean, 1 / p.shape[1]):
        raise FedntdError(
            f"proposition 1 assumes classes that are uniform over all clients together; here the shares of the classes "
            f"are between {mean.min():.3g} and {mean.max():.3g}"
        )
