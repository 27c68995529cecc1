"""FedACG: Kim, Kim, Han, Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedACG(FedAvg):
    """Server momentum with lookahead: clients start from the weights one momentum step ahead."""

    lam: float = 0.85  # lambda, the server's momentum, and the length of the lookahead
    beta: float = 1e-3  # strength of the spring between the local weights and those sent

    def __post_init__(self) -> None:
        require(0 <= self.lam < 1, f"must be at least 0 and below 1, not {self.lam}", "algorithm.lam")
        require(self.beta >= 0, f"must be at least 0, not {self.beta}", "algorithm.beta")

    def init_server(self, w: Weights) -> dict:
        return {"m": tree.zeros_like(w)}

    def send(self, w_g: Weights, server: Tree) -> Weights:
        """w + lambda m instead of w: as many bytes as FedAvg."""
        return tree.add(w_g, tree.scale(self.lam, server["m"]))

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """F_i(w) + beta/2 |w - w_g|^2, with w_g the weights sent."""
        return super().loss(model, w, batch, ctx) + self.beta / 2 * tree.sqnorm(tree.sub(w, ctx.w_g))

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """m <- lambda m + mean delta; w <- w + m."""
        m = tree.add(tree.scale(self.lam, server["m"]), tree.weighted_mean(up["delta"], p))
        return tree.add(w_g, m), {"m": m}
