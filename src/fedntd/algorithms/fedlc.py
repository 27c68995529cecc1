"""FedLC: Zhang, Li, Li, Xu, Wu, Ding, Wu,
Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedLC(FedAvg):
    """Softmax cross-entropy of calibrated logits: rare classes must win by a larger margin, missing ones are left out.

    The paper's equation also omits the true class from the sum over classes, which leaves the loss without a lower
    bound. Here the sum is that of a softmax, as in the paper's abstract and in public implementations.
    """

    tau: float = 0.5  # size of the margin between classes; the paper gives no value

    def __post_init__(self) -> None:
        require(self.tau >= 0, f"must be at least 0, not {self.tau}", "algorithm.tau")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """-log softmax(z_c - tau n_c^(-1/4)) at the true class, with n_c this client's samples of class c."""
        n = ctx.class_counts()
        margin = torch.where(n > 0, self.tau * n.clamp(min=1) ** -0.25, torch.inf)
        return batch.mean(cross_entropy(model(w, batch).logits - margin, batch.y))
