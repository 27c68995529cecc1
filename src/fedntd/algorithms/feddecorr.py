"""FedDecorr: Shi, Liang, Zhang, Tan, Bai,
Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy, features
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedDecorr(FedAvg):
    """A penalty on correlated features keeps them from becoming copies of one another.

    The released code has the off-diagonal part only, larger by a factor of about the batch size.
    """

    beta: float = 0.1  # strength of the decorrelation

    def __post_init__(self) -> None:
        require(
            self.beta >= 0, f"must be at least 0, not {self.beta}; 0 is FedAvg, the paper uses 0.1", "algorithm.beta"
        )

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE + beta / d^2 |K|_F^2, with K the correlation matrix [d, d] of the batch's features."""
        out = model(w, batch)
        K = correlation(features(out), batch.mask)
        return batch.mean(cross_entropy(out.logits, batch.y)) + self.beta * K.square().mean()


def correlation(z: Tensor, mask: Tensor | None, eps: float = 1e-8) -> Tensor:
    """The correlation matrix of the columns of `z` over its real rows. A constant column correlates with nothing."""
    real = torch.ones_like(z[:, :1], dtype=torch.bool) if mask is None else mask[:, None]
    z = torch.where(real, z, 0)
    z = torch.where(real, z - z.sum(0) / real.sum(), 0)
    z = z * torch.rsqrt(z.square().sum(0) / real.sum() + eps)
    return z.T @ z / real.sum()
