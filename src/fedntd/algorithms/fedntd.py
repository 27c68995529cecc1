"""FedNTD: Lee, Jeong, Shin, Bae, Yun,
Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy, kl, not_true
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Cross-entropy for the true class, the global model's view for all the others."""

    beta: float = 1.0  # strength of the distillation: how much of the global knowledge is preserved
    tau: float = 1.0  # temperature of the not-true softmax

    def __post_init__(self) -> None:
        require(
            self.beta >= 0, f"must be at least 0, not {self.beta}; 0 is FedAvg, the paper uses 1.0", "algorithm.beta"
        )
        require(self.tau > 0, f"must be above 0, not {self.tau}; the paper uses 1.0", "algorithm.tau")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L = L_CE(q, y) + beta * L_NTD(q~, q~_g), with tau^2 as in the released code (at tau = 1 the same)."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        log_q = (not_true(z, batch.y) / self.tau).log_softmax(-1)
        q_g = (not_true(z_g, batch.y) / self.tau).softmax(-1)
        return batch.mean(cross_entropy(z, batch.y) + self.beta * self.tau**2 * kl(q_g, log_q))
