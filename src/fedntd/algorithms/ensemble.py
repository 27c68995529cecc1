"""What a server can learn from an ensemble of models on data that belongs to no client: for FedDF and FedBE."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import kl
from fedntd.data.device import DevicePart
from fedntd.errors import FedntdError
from fedntd.models.functional import Model
from fedntd.rng import generator
from fedntd.tree import Weights

TOGETHER = 500  # samples that teachers look at in one pass


@dataclass(frozen=True)
class Auxiliary:
    """The server's own data, without labels, and the network to run on it."""

    model: Model
    part: DevicePart
    seed: int

    def logits(self, w: Weights) -> Tensor:
        """Of the whole data, [N, C]."""
        with torch.no_grad():
            places = torch.arange(len(self.part), device=self.part.device).split(TOGETHER)
            return torch.cat([self.model.frozen(w, self.part.plain(some)).logits for some in places])

    def batches(self, round: int, size: int, steps: int) -> Iterator[Tensor]:
        """The places of `steps` batches' samples: one pass over the data after the other, each in a new order."""
        rng, made = generator(self.seed, "auxiliary", round), 0
        while made < steps:
            for places in torch.from_numpy(rng.permutation(len(self.part))).split(size)[: steps - made]:
                yield places.to(self.part.device)
                made += 1


def at_hand(algorithm: FedAvg) -> Auxiliary:
    """What a method has as its `auxiliary`."""
    if algorithm.auxiliary is None:
        raise FedntdError(f"{type(algorithm).__name__} has no auxiliary data; with_values() hands it over")
    return algorithm.auxiliary


def student_of(w: Weights) -> Weights:
    """A copy of `w` that an optimiser of PyTorch can train."""
    return {name: leaf.detach().clone().requires_grad_() for name, leaf in w.items()}


def learn(auxiliary: Auxiliary, student: Weights, q: Tensor, places: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """One step of the student towards the teacher's probabilities q [N, C], by the mean of KL(q || student)."""
    optimiser.zero_grad()
    with torch.enable_grad():
        logits = auxiliary.model.frozen(student, auxiliary.part.plain(places)).logits
        kl(q[places], logits.log_softmax(-1)).mean().backward()
    optimiser.step()
