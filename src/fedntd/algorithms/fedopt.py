"""FedAdam, FedYogi and FedAdagrad: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan,
Adaptive Federated Optimization, ICLR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require, require_one_of
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """An adaptive optimiser on the server: the clients' mean update is its gradient."""

    rule: str = "adam"  # update of the second moment: "adam", "yogi" or "adagrad"
    eta: float = 0.01  # the server's step size, which the paper tunes for each task
    beta_1: float = 0.9  # decay of the first moment
    beta_2: float = 0.99  # decay of the second moment; not used by adagrad, which sums all squared updates
    tau: float = 1e-3  # adaptivity: bounds the speed-up of weights that move less than this in a round

    def __post_init__(self) -> None:
        require_one_of("algorithm.rule", self.rule, ("adam", "yogi", "adagrad"))
        for key in ("eta", "tau"):
            require(getattr(self, key) > 0, f"must be above 0, not {getattr(self, key)}", f"algorithm.{key}")
        for key in ("beta_1", "beta_2"):
            value = getattr(self, key)
            require(0 <= value < 1, f"must be at least 0 and below 1, not {value}", f"algorithm.{key}")

    def init_server(self, w: Weights) -> dict:
        return {"m": tree.zeros_like(w), "v": tree.map(lambda leaf: torch.zeros_like(leaf) + self.tau**2, w)}

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """m <- beta_1 m + (1 - beta_1) delta; v by the rule; w <- w + eta m / (sqrt(v) + tau)."""
        delta = tree.weighted_mean(up["delta"], p)
        m = tree.map(lambda m, d: self.beta_1 * m + (1 - self.beta_1) * d, server["m"], delta)
        v = tree.map(self.second_moment, server["v"], delta)
        return tree.map(lambda w, m, v: w + self.eta * m / (v.sqrt() + self.tau), w_g, m, v), {"m": m, "v": v}

    def second_moment(self, v: Tensor, d: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return v + d**2
        if self.rule == "yogi":
            return v - (1 - self.beta_2) * d**2 * (v - d**2).sign()
        return self.beta_2 * v + (1 - self.beta_2) * d**2
