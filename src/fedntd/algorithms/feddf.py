"""FedDF: Lin, Kong, Stich, Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.ensemble import at_hand, learn, student_of
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedDF(FedAvg):
    """From the clients' mean, the server goes on to learn what the clients' models say together on unlabelled data.

    The authors stop when a validation set shows no more gain; there is none here, so `steps` are made.
    """

    steps: int = 10_000  # of the server in a round; the authors' largest number
    lr: float = 1e-3  # of the server's Adam; it falls to 0 along a cosine
    batch_size: int = 128  # of the server

    def __post_init__(self) -> None:
        require(self.steps >= 0, f"algorithm.steps must be at least 0, not {self.steps}; 0 is FedAvg")
        require(self.lr > 0, f"algorithm.lr must be above 0, not {self.lr}; the authors use 0.001")
        require(self.batch_size >= 1, f"algorithm.batch_size must be at least 1, not {self.batch_size}")

    @property
    def auxiliary_data(self) -> bool:
        return True

    def init_server(self, w: Weights) -> dict:
        return {"round": torch.zeros((), dtype=torch.int64)}

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """From w = sum_k p_k w_k, steps of Adam on KL(softmax(mean_k z_k) || softmax(z)): every client's logits count
        the same."""
        w, auxiliary, round = super().aggregate(w_g, server, up, p, fraction)[0], at_hand(self), server["round"] + 1
        if not self.steps:
            return w, {"round": round}
        deltas = [tree.map(lambda leaf, k=k: leaf[k], up["delta"]) for k in range(len(p))]
        q = torch.stack([auxiliary.logits(tree.add(w_g, delta)) for delta in deltas]).mean(0).softmax(-1)
        student = student_of(w)
        adam = torch.optim.Adam(student.values(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.steps)
        for places in auxiliary.batches(int(round), self.batch_size, self.steps):
            learn(auxiliary, student, q, places, adam)
            schedule.step()
        return tree.map(Tensor.detach, student), {"round": round}
