"""FedASAM: Caldarola, Caputo, Ciccone,
Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedASAM(FedAvg):
    """FedSAM with distances measured relative to the weights' own size (ASAM, Kwon et al. 2021)."""

    rho: float = 0.5  # distance to the point at which the gradient is taken
    eta: float = 0.01  # added to the size of each weight, so that small ones are moved as well

    def __post_init__(self) -> None:
        require(self.rho >= 0, f"must be at least 0, not {self.rho}; 0 is FedAvg", "algorithm.rho")
        require(self.eta >= 0, f"must be at least 0, not {self.eta}", "algorithm.eta")

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        """grad F(w + rho T^2 g / |T g|), with g = grad F(w) and T = |w| + eta for weights, 1 for biases; and F(w)."""
        g, loss = super().gradient(model, w, batch, ctx)
        T = {name: leaf.abs() + self.eta if "weight" in name else torch.ones_like(leaf) for name, leaf in w.items()}
        Tg = tree.map(Tensor.mul, T, g)
        step = self.rho / (tree.sqnorm(Tg).sqrt() + 1e-12)
        nearby = tree.map(lambda leaf, t, tg: leaf + step * t * tg, w, T, Tg)
        return super().gradient(model, nearby, batch, ctx)[0], loss
