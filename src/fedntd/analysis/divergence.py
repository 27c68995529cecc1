"""Weight divergence (Lee et al. 2022, section 5.2): how far local training moves the weights, ||w - w_k||, against how
far a client's classes are from what the global model knows, ||A_G - p_k||. Both are L1 norms in the paper."""

from typing import Any, NamedTuple

import numpy as np
import torch

from fedntd.analysis.rounds import Inside
from fedntd.runs.measures import Vector
from fedntd.tree import Weights


def weight_distances(w_g: Weights, w_k: dict[str, Any], order: float = 1) -> Vector:
    """||w_g - w_k|| of each client, from local weights stacked [client, ...]."""
    movement = torch.cat([(w_k[name] - leaf).flatten(1) for name, leaf in w_g.items()], dim=1)
    return torch.linalg.vector_norm(movement.double(), ord=order, dim=1).cpu().numpy()


def distribution_distances(class_accuracy: Vector, p: Vector, order: float = 1) -> Vector:
    """||A_G - p_k|| of each client, p [client, class]. A_G is the class-wise accuracy, scaled to sum to 1 as p does."""
    return np.linalg.norm(underlying(class_accuracy) - p, ord=order, axis=1)


def underlying(class_accuracy: Vector) -> Vector:
    """A_G, an estimate of the distribution that the global model knows; uniform if the model gets nothing right."""
    total = class_accuracy.sum()
    return class_accuracy / total if total > 0 else np.full(len(class_accuracy), 1 / len(class_accuracy))


class Distances(NamedTuple):
    """The distances of each client in the cohort of one round, [client]."""

    weights: Vector
    distributions: Vector


def distances(inside: Inside, p: Vector, order: float = 1) -> Distances:
    """The distances in one watched round. `p` are the in-local distributions of all clients, [client, class]."""
    return Distances(
        weight_distances(inside.w_g, inside.w_k, order),
        distribution_distances(inside.before, p[inside.record.cohort], order),
    )


class Correlation(NamedTuple):
    """Pearson's and Spearman's correlation coefficients."""

    pearson: float
    spearman: float


def correlation(a: Vector, b: Vector) -> Correlation:
    """The correlation of two vectors.

    >>> correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0])).spearman
    1.0
    """
    from scipy import stats

    results: list[Any] = [stats.pearsonr(a, b), stats.spearmanr(a, b)]  # scipy's annotations are incomplete
    return Correlation(*(float(result.statistic) for result in results))
