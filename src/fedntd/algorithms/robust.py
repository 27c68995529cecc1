"""Robust aggregation: rules against uploads that are wrong, by accident or by intent.

A rule takes the uploads of a round stacked [client, ...] and the clients' weights p, and returns fewer of both. It is
applied before `algorithm.aggregate`, so that every rule works with every method.
"""

import math

import torch
from torch import Tensor

from fedntd import tree
from fedntd.errors import require
from fedntd.tree import Tree

Uploads = tuple[Tree, Tensor]


def none(up: Tree, p: Tensor) -> Uploads:
    """All uploads as they are."""
    return up, p


def median(up: Tree, p: Tensor) -> Uploads:
    """One upload: the coordinate-wise median over the clients, all of equal weight (Yin et al., ICML 2018)."""
    return tree.map(lambda leaf: middle(leaf, len(p)), up), p.new_ones(1)


def trimmed_mean(up: Tree, p: Tensor, trim: float = 0.2) -> Uploads:
    """One upload: the coordinate-wise mean over the clients, all of equal weight, without the smallest and the largest
    values (Yin et al., ICML 2018).

    trim: the share of clients that is cut off at each end
    """
    require(0 <= trim < 0.5, f"must be at least 0 and below 0.5, not {trim}", "robust.trim")
    return tree.map(lambda leaf: middle(leaf, 2 * math.floor(trim * len(p) + 1e-9)), up), p.new_ones(1)


def krum(up: Tree, p: Tensor, bad: int = 1, keep: int = 1) -> Uploads:
    """The `keep` uploads with the lowest scores (Blanchard et al., NeurIPS 2017). More than one is multi-Krum.

    The score of an upload is the sum of squared distances to its n - bad - 2 nearest neighbours.
    bad: the number of clients that may be wrong
    """
    n = len(p)
    require(bad >= 0, f"must be at least 0, not {bad}", "robust.bad")
    require(n > bad + 2, f"krum with robust.bad = {bad} needs at least {bad + 3} updates in a round, not {n}")
    require(1 <= keep <= n, f"must lie in 1..{n}, the number of updates in a round, not {keep}", "robust.keep")
    flat = torch.cat([leaf.reshape(n, -1) for leaf in tree.leaves(up)], dim=1).double()
    distances = torch.stack([(flat - upload).square().sum(1) for upload in flat])  # [client, client]
    nearest = distances.sort(dim=1).values[:, 1 : n - bad - 1]  # the first is the upload itself
    kept = nearest.sum(1).argsort(stable=True)[:keep].sort().values
    return tree.map(lambda leaf: leaf[kept], up), p[kept] / p[kept].sum()


def middle(leaf: Tensor, cut: int) -> Tensor:
    """The mean over the clients without the `cut` most extreme values, half of them at each end: [1, ...].

    The one or two values in the middle are never cut.
    """
    n = len(leaf)
    low = min(cut // 2, (n - 1) // 2)
    dtype = None if leaf.is_floating_point() else torch.float64  # the mean of integers need not be an integer
    return leaf.sort(dim=0).values[low : n - low].mean(0, keepdim=True, dtype=dtype)


ROBUST = {"none": none, "median": median, "trimmed-mean": trimmed_mean, "krum": krum}
