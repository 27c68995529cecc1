"""Local-side distillation on all classes: what FedNTD is compared with in Lee et al. 2022, 'Comparison to KD'."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy, distillation
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedKD(FedAvg):
    """Cross-entropy, and the global model's view of all classes, the true one included."""

    beta: float = 1.0  # strength of the distillation
    tau: float = 1.0  # temperature of the softmax

    def __post_init__(self) -> None:
        require(self.beta >= 0, f"algorithm.beta must be at least 0, not {self.beta}; 0 is FedAvg, the paper uses 1.0")
        require(self.tau > 0, f"algorithm.tau must be above 0, not {self.tau}; the paper uses 1.0")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE(q, y) + beta L_KD(q, q_g), L_KD with the usual tau^2."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        return batch.mean(cross_entropy(z, batch.y) + self.beta * distillation(z, z_g, self.tau))
