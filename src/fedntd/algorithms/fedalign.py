"""FedAlign: Mendieta, Yang, Wang, Lee, Ding, Chen,
Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR 2022."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy
from fedntd.errors import FedntdError, require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedAlign(FedAvg):
    """The last stage should have the same Lipschitz constant with a part of its channels as with all of them.

    The network must be slimmable (resnet56). As in the authors' code, the second term is rescaled at every step to mu
    times the first.
    """

    mu: float = 0.45  # size of the alignment term, as a share of the cross-entropy
    iterations: int = 10  # power iterations for the Lipschitz constants

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"must be at least 0, not {self.mu}; 0 is FedAvg, the authors use 0.45", "algorithm.mu")
        require(self.iterations >= 1, f"must be at least 1, not {self.iterations}", "algorithm.iterations")

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE + mu sg(L_CE / L_Lip) L_Lip, with L_Lip the mean squared difference of the two Lipschitz constants."""
        out = model(w, batch)
        if out.taps is None:
            raise FedntdError("fedalign needs a network with a slimmable last stage; use model.name = 'resnet56'")
        full = self.lipschitz(out.taps.into, out.taps.out).detach()
        slim = self.lipschitz(out.taps.slim_into, out.taps.slim_out)
        l_ce, l_lip = batch.mean(cross_entropy(out.logits, batch.y)), batch.mean((slim - full).square())
        return l_ce + self.mu * (l_ce / l_lip.clamp(min=1e-12)).detach() * l_lip

    def lipschitz(self, into: Tensor, out: Tensor) -> Tensor:
        """The Lipschitz constant of a stage for each sample, [B]: its transmitting matrix's largest singular value."""
        return largest_singular_value(transmitting_matrix(into, out), self.iterations)


def transmitting_matrix(into: Tensor, out: Tensor) -> Tensor:
    """The products of input and output channels, averaged over the pixels: [B, C_in, C_out]."""
    pooled = F.adaptive_avg_pool2d(into, (out.shape[-2], out.shape[-1]))
    return torch.einsum("bihw,bohw->bio", pooled, out) / (out.shape[-2] * out.shape[-1])


def largest_singular_value(T: Tensor, iterations: int) -> Tensor:
    """The largest singular values [B] of matrices [B, m, n], by power iteration on T T^t from a vector of ones."""
    v = n = torch.ones_like(T[:, :, :1])
    for _ in range(iterations):
        m = T @ (T.mT @ v)
        n = m.square().sum(1, keepdim=True).clamp(min=1e-24).sqrt()  # a sample without activations has no direction
        v = m / n
    return n.flatten().sqrt()
