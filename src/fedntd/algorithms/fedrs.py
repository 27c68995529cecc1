"""FedRS: Li, Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021."""

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
class FedRS(FedAvg):
    """The logits of classes that a client does not have are scaled down, so that they are pushed away less."""

    alpha: float = 0.5  # factor on the logits of missing classes

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, f"must be between 0 and 1, not {self.alpha}; 1 is FedAvg", "algorithm.alpha")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """Cross-entropy of alpha_c z_c, with alpha_c = 1 for classes that the client has, and alpha for the others."""
        n, z = ctx.class_counts(), model(w, batch).logits
        return batch.mean(cross_entropy(torch.where(n > 0, z, self.alpha * z), batch.y))
