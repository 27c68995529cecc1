"""FedExP: Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023."""

from dataclasses import dataclass

from torch import Tensor
from torch.func import vmap

from fedntd import tree
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedExP(FedAvg):
    """The more the clients' updates cancel one another, the further the server goes along their mean.

    The server's weights oscillate from round to round. The global model is therefore the mean of the last two rounds'
    weights; clients start from the last.
    """

    epsilon: float = 1e-3  # keeps the step finite where updates nearly cancel

    def __post_init__(self) -> None:
        require(self.epsilon > 0, f"must be above 0, not {self.epsilon}; the paper uses 0.001", "algorithm.epsilon")

    def init_server(self, w: Weights) -> dict:
        return {"ahead": tree.zeros_like(w)}

    def send(self, w_g: Weights, server: Tree) -> Weights:
        """The last weights, which are half a step ahead of the mean of the last two."""
        return tree.add(w_g, server["ahead"])

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """A step of eta_g mean delta, with eta_g = max(1, sum_i p_i |delta_i|^2 / (2 (|mean delta|^2 + epsilon)))."""
        mean = tree.weighted_mean(up["delta"], p)
        squares = vmap(tree.sqnorm)(up["delta"])
        eta_g = (p.to(squares.dtype) * squares).sum() / (2 * (tree.sqnorm(mean) + self.epsilon))
        half = tree.scale(eta_g.clamp(min=1) / 2, mean)
        return tree.add(self.send(w_g, server), half), {"ahead": half}
