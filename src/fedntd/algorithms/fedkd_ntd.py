"""KD -> NTD: a mix of distillation on all and on the not-true classes (Lee et al. 2022, 'Comparison to KD')."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.losses import cross_entropy, distillation, not_true
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedKDNTD(FedNTD):
    """A mix of FedKD (lam = 0) and FedNTD (lam = 1)."""

    lam: float = 0.5  # lambda, the share of not-true distillation; the paper tries 0.1, 0.3, 0.5, 0.7 and 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.lam <= 1, f"must be between 0 (FedKD) and 1 (FedNTD), not {self.lam}", "algorithm.lam")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE + beta L(lambda), L(lambda) = (1 - lambda) L_KD + lambda L_NTD."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        l_kd = distillation(z, z_g, self.tau)
        l_ntd = distillation(not_true(z, batch.y), not_true(z_g, batch.y), self.tau)
        return batch.mean(cross_entropy(z, batch.y) + self.beta * ((1 - self.lam) * l_kd + self.lam * l_ntd))
