"""FedNTD (MSE): not-true logits matched by squared distance; Lee et al. 2022, 'MSE Loss for Not-True Distillation'."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy, not_true
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedNTDMSE(FedAvg):
    """FedNTD with logits instead of softmaxes. Squares are averaged over classes, which the paper leaves open."""

    beta: float = 0.05  # strength of the distillation; the best of the paper's 0.001 to 0.3; training fails at 0.3

    def __post_init__(self) -> None:
        require(
            self.beta >= 0, f"must be at least 0, not {self.beta}; 0 is FedAvg, the paper's best 0.05", "algorithm.beta"
        )

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE(q, y) + beta / (C - 1) sum_{c != y} (z_c - z_g,c)^2."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        mse = (not_true(z, batch.y) - not_true(z_g, batch.y)).square().mean(-1)
        return batch.mean(cross_entropy(z, batch.y) + self.beta * mse)
