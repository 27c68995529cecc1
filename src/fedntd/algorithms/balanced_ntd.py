"""Not-true distillation (FedNTD, Lee et al. 2022) beside a balanced softmax (`balanced.py`)."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.balanced import Balanced
from fedntd.algorithms.base import Context
from fedntd.algorithms.losses import cross_entropy, kl, not_true
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class BalancedNTD(Balanced):
    """The balanced loss keeps missing classes from being pushed away, the distillation keeps what is known of them."""

    beta: float = 1.0  # strength of the distillation
    tau: float = 1.0  # temperature of the not-true softmax

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta >= 0, f"must be at least 0, not {self.beta}; 0 is 'balanced'", "algorithm.beta")
        require(self.tau > 0, f"must be above 0, not {self.tau}", "algorithm.tau")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L = L_CE(z + log(n + smoothing), y) + beta tau^2 KL(q~_g || q~), the distillation of the plain logits."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        log_q = (not_true(z, batch.y) / self.tau).log_softmax(-1)
        q_g = (not_true(z_g, batch.y) / self.tau).softmax(-1)
        ce = cross_entropy(self.adjusted(z, ctx), batch.y)
        return batch.mean(ce + self.beta * self.tau**2 * kl(q_g, log_q))
