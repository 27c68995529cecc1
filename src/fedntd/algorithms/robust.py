"""Rules for updates among which some may be wrong, by accident or by intent: applied to the uploads of a round before
`algorithm.aggregate`, so that every method can be used with every rule.

A rule takes the uploads stacked [client, ...] and the clients' weights p, and returns fewer of both.
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
    """One upload, of which each number is the median over the clients, all of one weight (Yin et al., ICML 2018)."""
    return tree.map(lambda leaf: middle(leaf, len(p)), up), p.new_ones(1)


def trimmed_mean(up: Tree, p: Tensor, trim: float = 0.2) -> Uploads:
    """One upload, of which each number is the mean over the clients without the smallest and the largest, all of one
    weight (Yin et al., ICML 2018).

    trim: the share of clients that is cut off at each end
    """
    require(0 <= trim < 0.5, f"must be at least 0 and below 0.5, not {trim}", "robust.trim")
    return tree.map(lambda leaf: middle(leaf, 2 * math.floor(trim * len(p) + 1e-9)), up), p.new_ones(1)


def krum(up: Tree, p: Tensor, bad: int = 1, keep: int = 1) -> Uploads:
    """The `keep` uploads that lie nearest to their neighbours (Blanchard et al., NeurIPS 2017); several: multi-Krum.

    The score of an upload is the sum of squared distances to its n - bad - 2 nearest neighbours.
    bad: how many clients may be wrong
    """
    n = len(p)
    require(bad >= 0, f"must be at least 0, not {bad}", "robust.bad")
    require(n > bad + 2, f"krum with robust.bad = {bad} needs at least {bad + 3} updates in a round, not {n}")
    require(1 <= keep <= n, f"must lie in 1..{n}, the number of updates in a round, not {keep}", "robust.keep")
    flat = torch.cat([leaf.reshape(n, -1) for leaf in tree.leaves(up)], dim=1).double()
    distances = torch.stack([(flat - one).square().sum(1) for one in flat])  # [client, client]
    nearest = distances.sort(dim=1).values[:, 1 : n - bad - 1]  # the first is the upload itself
    kept = nearest.sum(1).argsort(stable=True)[:keep].sort().values
    return tree.map(lambda leaf: leaf[kept], up), p[kept] / p[kept].sum()


def middle(leaf: Tensor, cut: int) -> Tensor:
    """The mean over the clients of what is left when the `cut` most extreme numbers are gone, half at each end, but of
    the one or two in the middle at least; a stack of one."""
    n = len(leaf)
    low = min(cut // 2, (n - 1) // 2)
    kind = None if leaf.is_floating_point() else torch.float64  # the mean of whole numbers need not be one
    return leaf.sort(dim=0).values[low : n - low].mean(0, keepdim=True, dtype=kind)


ROBUST = {"none": none, "median": median, "trimmed-mean": trimmed_mean, "krum": krum}
