"""Uploads on their way into `algorithm.aggregate`: as a running mean where that is enough, else all of them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.tree import Tree, Weights


def needs_only_the_mean(algorithm: FedAvg, w: Weights, like: Tree) -> bool:
    """Whether `aggregate` gives the same for all uploads as for their weighted mean alone: found out by trying.

    `like` is an upload of this method. Eight random uploads cancel enough for rules that look at that (FedExP).
    """
    draw = torch.Generator().manual_seed(0)

    def random(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=draw, dtype=torch.float64)

    w = tree.map(random, w)
    server = tree.map(lambda leaf: random(leaf).abs(), algorithm.init_server(w))
    for _ in range(3):
        up = tree.stack([tree.map(random, like) for _ in range(8)])
        p = torch.rand(8, generator=draw, dtype=torch.float64)
        p /= p.sum()
        mean = tree.map(lambda leaf: leaf[None], tree.weighted_mean(up, p))
        pairs = [algorithm.aggregate(w, server, *uploads, 0.25) for uploads in ((up, p), (mean, p.new_ones(1)))]
        (w_all, server_all), (w_mean, server_mean) = pairs
        unlike = tree.sub({"w": w_all, "server": server_all}, {"w": w_mean, "server": server_mean})
        if not all(torch.allclose(leaf, torch.zeros_like(leaf), atol=1e-9) for leaf in tree.leaves(unlike)):
            return False
    return True


@dataclass
class RunningMean:
    """The weighted mean of the uploads so far, summed in float64: as large as two uploads, however many there are."""

    like: Tree
    total: float = 0.0

    def __post_init__(self) -> None:
        self.sum = tree.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), self.like)

    def add(self, site: int, up: Tree, weight: float) -> None:
        self.sum = tree.map(lambda total, leaf: total.add_(leaf, alpha=weight), self.sum, up)
        self.total += weight

    def uploads(self) -> tuple[dict, Tensor]:
        """As `aggregate` wants them: one upload, of weight 1."""

        def mean(total: Tensor, leaf: Tensor) -> Tensor:
            kind = leaf.dtype if leaf.is_floating_point() else None  # the mean of whole numbers need not be one
            return (total / self.total).to(kind)[None]

        return tree.map(mean, self.sum, self.like), torch.ones(1)


@dataclass
class All:
    """Every upload, in the order of the sites."""

    found: dict[int, tuple[Tree, float]] = field(default_factory=dict)

    def add(self, site: int, up: Tree, weight: float) -> None:
        self.found[site] = up, weight

    def uploads(self) -> tuple[dict, Tensor]:
        ups, weights = zip(*(self.found[site] for site in sorted(self.found)), strict=True)
        p = torch.tensor(weights, dtype=torch.float64)
        return tree.stack(ups), p / p.sum()
