"""FedAvgM: Hsu, Qi, Brown,
Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019
(arXiv 1909.06335)."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Momentum on the server."""

    beta: float = 0.7  # momentum: the share of the last round's step that is kept

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, f"must be at least 0 and below 1, not {self.beta}; 0 is FedAvg", "algorithm.beta")

    def init_server(self, w: Weights) -> dict:
        return {"v": tree.zeros_like(w)}

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """v <- beta v + mean delta; w <- w + v."""
        v = tree.add(tree.scale(self.beta, server["v"]), tree.weighted_mean(up["delta"], p))
        return tree.add(w_g, v), {"v": v}
