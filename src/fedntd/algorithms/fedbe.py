"""FedBE: Chen, Chao, FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning, ICLR 2021."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.ensemble import Rule, at_hand, white_noise
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedBE(FedAvg):
    """The server distils an ensemble on unlabelled data: the clients' models, their mean, and models drawn around it.

    Models are drawn from a Gaussian; the paper has a Dirichlet distribution as well. The defaults are those of the
    authors' code.
    """

    samples: int = 10  # M, the number of models drawn
    epochs: int = 20  # passes over the unlabelled data that the server makes in a round
    lr: float = 1e-3  # of the server's SGD, with momentum 0.9 and weight decay 1e-5
    batch_size: int = 128  # of the server
    sharpen: float = 0.5  # temperature that sharpens the ensemble's answers; 1 leaves them unchanged
    swa_start: int = 500  # stochastic weight averaging: the result is the mean of the weights after this step,
    swa_every: int = 25  # taken at this interval of steps; if there are none, the last weights

    def __post_init__(self) -> None:
        for key, least in (("samples", 0), ("epochs", 0), ("batch_size", 1), ("swa_start", 0), ("swa_every", 1)):
            require(
                getattr(self, key) >= least, f"must be at least {least}, not {getattr(self, key)}", f"algorithm.{key}"
            )
        for key in ("lr", "sharpen"):
            require(getattr(self, key) > 0, f"must be above 0, not {getattr(self, key)}", f"algorithm.{key}")

    @property
    def auxiliary_data(self) -> bool:
        return True

    def init_server(self, w: Weights) -> dict:
        return {"round": torch.zeros((), dtype=torch.int64)}

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """Distil p(y | x), the mean of the softmaxes of the drawn models, the clients' models and their mean."""
        w, auxiliary, round = super().aggregate(w_g, server, up, p, fraction)[0], at_hand(self), server["round"] + 1
        steps = self.epochs * -(-len(auxiliary) // self.batch_size)
        if not steps:
            return w, {"round": round}
        deltas = [tree.map(lambda leaf, k=k: leaf[k], up["delta"]) for k in range(len(p))]
        models = [w, *(tree.add(w_g, delta) for delta in deltas), *self.draw(w, up["delta"], p, auxiliary.seed, round)]
        q = torch.stack([auxiliary.logits(model).softmax(-1) for model in models]).mean(0)
        q = (q.log() / self.sharpen).softmax(-1)
        student, lr, seen = auxiliary.student(SGD, w, q), q.new_tensor([self.lr]), []
        for step, places in enumerate(auxiliary.batches(int(round), self.batch_size, steps), 1):
            student.learn(places, lr)
            if step > self.swa_start and (step - self.swa_start) % self.swa_every == 0:
                seen.append(student.weights())
        return tree.map(lambda *same: torch.stack(same).mean(0), *(seen or [student.weights()])), {"round": round}

    def draw(self, w: Weights, deltas: Tree, p: Tensor, seed: int, round: Tensor) -> list[Weights]:
        """`samples` models from N(w, diag(sum_k p_k (w_k - w)^2))."""
        mean = tree.weighted_mean(deltas, p)
        deviation = tree.map(Tensor.sqrt, tree.weighted_mean(tree.map(lambda d, m: (d - m) ** 2, deltas, mean), p))
        noise = white_noise(self.samples, w, seed, int(round))
        return [tree.map(lambda m, s, e: m + s * e, w, deviation, each) for each in noise]


def sgd(w: Tensor, gradient: Tensor, memory: Tensor, rates: Tensor) -> None:
    """A step of torch.optim.SGD with momentum 0.9 and weight decay 1e-5."""
    (velocity,) = memory
    velocity.mul_(0.9).add_(gradient.add(w, alpha=1e-5))
    w.sub_(rates * velocity)


SGD = Rule(sgd, memories=1)
