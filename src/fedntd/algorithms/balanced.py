"""Balanced softmax at the clients: Ren, Yu, Sheng, Ma, Zhao, Yi, Li, Balanced Meta-Softmax for Long-Tailed Visual
Recognition, NeurIPS 2020; Menon, Jayasumana, Rawat, Jain, Veit, Kumar, Long-Tail Learning via Logit Adjustment, ICLR
2021. With `smoothing` = 0: Legate, Caccia, Belilovsky, Re-Weighted Softmax Cross-Entropy to Control Forgetting in
Federated Learning, CoLLAs 2023."""

from dataclasses import dataclass

from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class Balanced(FedAvg):
    """Cross-entropy that expects a class as often as the client has it: classes it lacks are hardly pushed away.

    The class counts stay at the client. Nothing else is kept or sent.
    """

    smoothing: float = 1.0  # added to each count; 0 leaves missing classes out, a large value is FedAvg

    def __post_init__(self) -> None:
        require(
            self.smoothing >= 0,
            f"must be at least 0, not {self.smoothing}; 0 leaves missing classes out",
            "algorithm.smoothing",
        )

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """-log softmax(z_c + log(n_c + smoothing)) at the true class, with n_c this client's samples of class c."""
        return batch.mean(cross_entropy(self.adjusted(model(w, batch).logits, ctx), batch.y))

    def adjusted(self, z: Tensor, ctx: Context) -> Tensor:
        return z + (ctx.class_counts() + self.smoothing).log()
