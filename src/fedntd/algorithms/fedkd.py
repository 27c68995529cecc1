"""Local-side distillation on all classes: what FedNTD is compared with in Lee et al. 2022, 'Comparison to KD'."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.losses import cross_entropy, distillation
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedKD(FedNTD):
    """Cross-entropy, and the global model's view of all classes, the true one included."""

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE(q, y) + beta L_KD(q, q_g), L_KD with the usual tau^2."""
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        return batch.mean(cross_entropy(z, batch.y) + self.beta * distillation(z, z_g, self.tau))
