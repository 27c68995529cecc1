"""Proposition 3 (Lee et al. 2022): among the distributions that a global model can stand for, the uniform one has the
smallest worst-case distance to the clients' distributions.

F(p) = sup over P in Pi of E_{p' ~ P} ||w_p' - w_p||, where w_p = sum_c p_c w_c. The proof needs a Pi that contains each
measure also with its classes permuted, and it uses ||p' - p|| for ||w_p' - w_p||. That is, it assumes that the
distance does not depend on which class is which, as when the w_c are equally far from one another. Without this
assumption, the uniform distribution need not be the best: with w_c at 0, 1 and 10 on a line, and clients of any single
class, the best w_p is 5, and that of the uniform distribution is 11/3.
"""

from itertools import permutations

import numpy as np

from fedntd.errors import require
from fedntd.runs.measures import Vector

LIMIT = 7  # classes; 7! = 5040 orders


def relabelled(clients: Vector) -> list[Vector]:
    """Pi: the clients [client, class] with their classes in every order."""
    classes = clients.shape[1]
    require(classes <= LIMIT, f"all orders of {classes} classes are too many; at most {LIMIT} are possible")
    return [clients[:, list(order)] for order in permutations(range(classes))]


def rotated(clients: Vector) -> list[Vector]:
    """A smaller Pi, which suffices for the proof: the cyclic shifts of the classes."""
    return [np.roll(clients, shift, axis=1) for shift in range(clients.shape[1])]


def worst_distance(p: Vector, populations: list[Vector], w: Vector | None = None) -> float:
    """F(p): the largest mean distance from p over the populations of clients, each [client, class].

    `w` are the classes' optima w_c, [class, weight]; by default, orthogonal unit vectors.
    """
    optima = np.eye(len(p)) if w is None else w
    return float(max(np.linalg.norm((clients - p) @ optima, axis=1).mean() for clients in populations))
