"""Collect uploads for `algorithm.aggregate`: as a running mean if that is enough, otherwise all of them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.tree import Tree, Weights


def needs_only_the_mean(algorithm: FedAvg, w: Weights, like: Tree) -> bool:
    """Test on random uploads whether `aggregate` returns the same for all of them as for their weighted mean.

    `like` is an upload of this method. Eight random uploads cancel enough to expose rules that depend on it (FedExP).
    """
    rng = torch.Generator().manual_seed(0)

    def random(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=rng, dtype=torch.float64)

    w = tree.map(random, w)
    server = tree.map(lambda leaf: random(leaf).abs(), algorithm.init_server(w))
    for _ in range(3):
        up = tree.stack([tree.map(random, like) for _ in range(8)])
        p = torch.rand(8, generator=rng, dtype=torch.float64)
        p /= p.sum()
        mean = tree.map(lambda leaf: leaf[None], tree.weighted_mean(up, p))
        pairs = [algorithm.aggregate(w, server, *uploads, 0.25) for uploads in ((up, p), (mean, p.new_ones(1)))]
        (w_all, server_all), (w_mean, server_mean) = pairs
        difference = tree.sub({"w": w_all, "server": server_all}, {"w": w_mean, "server": server_mean})
        if not all(torch.allclose(leaf, torch.zeros_like(leaf), atol=1e-9) for leaf in tree.leaves(difference)):
            return False
    return True


@dataclass
class RunningMean:
    """The weighted mean of the uploads so far, summed in float64. Takes the memory of two uploads for any number."""

    like: Tree
    total: float = 0.0

    def __post_init__(self) -> None:
        self.sum = tree.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), self.like)

    def add(self, site: int, up: Tree, weight: float) -> None:
        self.sum = tree.map(lambda total, leaf: total.add_(leaf, alpha=weight), self.sum, up)
        self.total += weight

    def uploads(self) -> tuple[dict, Tensor]:
        """Arguments for `aggregate`: the mean as a single upload of weight 1."""

        def mean(total: Tensor, leaf: Tensor) -> Tensor:
            dtype = leaf.dtype if leaf.is_floating_point() else None  # the mean of integers need not be an integer
            return (total / self.total).to(dtype)[None]

        return tree.map(mean, self.sum, self.like), torch.ones(1)


@dataclass
class All:
    """Every upload, in the order of the sites."""

    by_site: dict[int, tuple[Tree, float]] = field(default_factory=dict)

    def add(self, site: int, up: Tree, weight: float) -> None:
        self.by_site[site] = up, weight

    def uploads(self) -> tuple[dict, Tensor]:
        ups, weights = zip(*(self.by_site[site] for site in sorted(self.by_site)), strict=True)
        p = torch.tensor(weights, dtype=torch.float64)
        return tree.stack(ups), p / p.sum()
