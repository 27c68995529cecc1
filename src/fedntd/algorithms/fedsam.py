"""FedSAM: Qu, Li, Duan, Liu, Tang, Lu, Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022; and
Caldarola, Caputo, Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import moved
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedSAM(FedAvg):
    """Clients use sharpness-aware minimisation (Foret et al. 2021): the gradient at the worst point nearby."""

    rho: float = 0.05  # distance to that point

    def __post_init__(self) -> None:
        require(self.rho >= 0, f"must be at least 0, not {self.rho}; 0 is FedAvg", "algorithm.rho")

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        """grad F(w + rho g / |g|), with g = grad F(w); and F(w)."""
        g, loss = super().gradient(model, w, batch, ctx)
        return super().gradient(model, moved(w, g, self.rho), batch, ctx)[0], loss
