"""FedDF: Lin, Kong, Stich, Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.ensemble import Rule, at_hand
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.tree import Tree, Weights

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's


@dataclass(frozen=True)
class FedDF(FedAvg):
    """Starting from the clients' mean, the server distils the ensemble of the clients' models on unlabelled data.

    The authors stop when a validation set shows no more gain. There is none here, so the number of steps is fixed.
    """

    steps: int = 10_000  # of the server in a round; the authors' largest number
    lr: float = 1e-3  # of the server's Adam; decays to 0 along a cosine
    batch_size: int = 128  # of the server

    def __post_init__(self) -> None:
        require(self.steps >= 0, f"must be at least 0, not {self.steps}; 0 is FedAvg", "algorithm.steps")
        require(self.lr > 0, f"must be above 0, not {self.lr}; the authors use 0.001", "algorithm.lr")
        require(self.batch_size >= 1, f"must be at least 1, not {self.batch_size}", "algorithm.batch_size")

    @property
    def auxiliary_data(self) -> bool:
        return True

    def init_server(self, w: Weights) -> dict:
        return {"round": torch.zeros((), dtype=torch.int64)}

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """From w = sum_k p_k w_k, Adam steps on KL(softmax(mean_k z_k) || softmax(z)); the mean is unweighted."""
        w, auxiliary, round = super().aggregate(w_g, server, up, p, fraction)[0], at_hand(self), server["round"] + 1
        if not self.steps:
            return w, {"round": round}
        deltas = [tree.map(lambda leaf, k=k: leaf[k], up["delta"]) for k in range(len(p))]
        q = torch.stack([auxiliary.logits(tree.add(w_g, delta)) for delta in deltas]).mean(0).softmax(-1)
        student = auxiliary.student(ADAM, w, q)
        batches = auxiliary.batches(int(round), self.batch_size, self.steps)
        for places, rates in zip(batches, self.rates().to(q), strict=True):
            student.learn(places, rates)
        return student.weights(), {"round": round}

    def rates(self) -> Tensor:
        """Adam's bias-corrected rates for each step, [step, 2]: lr / (1 - beta_1^t) and sqrt(1 - beta_2^t).

        Computed in float64, because in float32 the first corrections, such as 1 - 0.999, would lose half their digits.
        """
        t = np.arange(1, self.steps + 1)
        lr = self.lr * (1 + np.cos(np.pi * (t - 1) / self.steps)) / 2
        return torch.from_numpy(np.stack([lr / (1 - BETA1**t), np.sqrt(1 - BETA2**t)], 1))


def adam(w: Tensor, gradient: Tensor, memory: Tensor, rates: Tensor) -> None:
    """A step of torch.optim.Adam."""
    (mean, square), (lr, root_of_bias) = memory, rates
    mean.lerp_(gradient, 1 - BETA1)
    square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    w.sub_(lr * mean / (square.sqrt() / root_of_bias + EPSILON))


ADAM = Rule(adam, memories=2)
