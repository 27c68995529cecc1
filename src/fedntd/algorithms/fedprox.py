"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith,
Federated Optimization in Heterogeneous Networks, MLSys 2020."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedProx(FedAvg):
    """A spring between the local and the global weights."""

    mu: float = 0.1  # strength of the spring: how far a client may go from the global weights

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"must be at least 0, not {self.mu}; 0 is FedAvg, the paper uses 0.1", "algorithm.mu")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """h_k(w; w_g) = F_k(w) + mu/2 |w - w_g|^2."""
        return super().loss(model, w, batch, ctx) + self.mu / 2 * tree.sqnorm(tree.sub(w, ctx.w_g))
