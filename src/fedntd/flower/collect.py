"""Uploads on their way into `algorithm.aggregate`: as a running mean where that is enough, else all of them; clipped
and noised where differential privacy is asked for."""

import math
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


# --- differential privacy ---------------------------------------------------------------------------------------


def clipped(delta: Weights, norm: float) -> Weights:
    """The update, shortened to `norm` if it is longer."""
    length = tree.sqnorm(tree.map(Tensor.double, delta)).sqrt()
    return tree.scale(float(min(1.0, norm / length)) if length > 0 else 1.0, delta)


def noised(mean: Weights, deviation: float) -> Weights:
    """With Gaussian noise from the system's own source of randomness: noise that a seed repeats protects nobody."""
    draw = torch.Generator(next(iter(mean.values())).device)
    draw.seed()
    return tree.map(
        lambda leaf: leaf + deviation * torch.randn(leaf.shape, generator=draw, dtype=leaf.dtype, device=leaf.device),
        mean,
    )


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """What a site has spent that took part in all `rounds`, each a release of Gaussian noise of `noise` times clip.

    Rényi differential privacy of the Gaussian mechanism (Mironov, CSF 2017), rounds / 2 noise^2 * alpha at order alpha,
    turned into (epsilon, delta) as in Canonne, Kamath and Steinke (NeurIPS 2020, proposition 12). That a site takes
    part in some rounds only is not counted in its favour, since the cohorts come from a seed that others may know.

    >>> round(epsilon(noise=4.0, rounds=100, delta=1e-5), 2)
    14.13
    """
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 1024))
    bounds = (
        rounds * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )
    return max(0.0, min(bounds))
