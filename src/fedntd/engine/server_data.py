"""The server's own data for methods that learn from it (FedDF, FedBE), and the students that learn there.

`ServerData` is the `Auxiliary` of `algorithms.ensemble`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedntd import tree
from fedntd.algorithms.ensemble import Rule, named
from fedntd.algorithms.losses import kl
from fedntd.data.device import DevicePart
from fedntd.engine.cuda_graphs import Captured, captured, pool_on
from fedntd.engine.plan import MOST_PLANNED
from fedntd.engine.tracing import compiled, traced
from fedntd.errors import require
from fedntd.models.functional import Model
from fedntd.rng import generator
from fedntd.tree import Weights

TOGETHER = 500  # samples that teachers look at in one pass


class CapturedStep(NamedTuple):
    """A student's step on a batch of some size, and the tensors that it reads what is new from."""

    take: Captured
    places: Tensor
    rates: Tensor


class CompiledStudent:
    """Weights that learn what a teacher answers to the server's data.

    A GPU takes longer to launch a step, piece by piece, than to take it. So there it is compiled and captured as a CUDA
    graph, once for each size of a batch. A graph knows addresses: what a step reads and changes stays where it is, in
    all rounds.
    """

    def __init__(self, model: Model, part: DevicePart, rule: Rule, w: Weights, q: Tensor) -> None:
        self.model, self.part, self.rule = model, part, rule
        # one vector, so that a rule is a few launches; by name, since weights from a checkpoint come in another order
        self.vector = torch.cat([leaf.flatten() for leaf in tree.leaves(w)])
        self.w = named(self.vector, w)
        self.memory = self.vector.new_zeros(rule.memories, len(self.vector))
        self.q = q.clone()
        self.pool = pool_on(part.device)
        self.steps: dict[int, CapturedStep] = {}  # by number of samples in a batch

    def begin(self, w: Weights, q: Tensor) -> None:
        """A round: from `w`, with nothing remembered, towards the teacher's probabilities q [N, C]."""
        tree.map(Tensor.copy_, self.w, w)
        self.memory.zero_()
        self.q.copy_(q)

    def learn(self, places: Tensor, rates: Tensor) -> None:
        """One step on the samples at these places; `rates` are what the rule wants to know of it."""
        if self.pool is None:
            self.step(self.vector, self.memory, self.q, places, rates)
            return
        if len(places) not in self.steps:
            self.steps[len(places)] = self.capture(places.clone(), rates.clone())
        step = self.steps[len(places)]
        step.places.copy_(places)
        step.rates.copy_(rates)
        step.take()

    def capture(self, places: Tensor, rates: Tensor) -> CapturedStep:
        vector, memory = self.vector.clone(), self.memory.clone()
        tensors = self.vector, self.memory, self.q, places, rates
        step = compiled(traced(lambda *tensors: self.step(*tensors), tensors))
        take = captured(lambda: step(*tensors), self.pool)
        self.vector.copy_(vector)  # warming up took steps
        self.memory.copy_(memory)
        return CapturedStep(take, places, rates)

    def step(self, vector: Tensor, memory: Tensor, q: Tensor, places: Tensor, rates: Tensor) -> None:
        """By the gradient of the mean of KL(q || student)."""

        def loss(w: Weights) -> Tensor:
            logits = self.model.frozen(w, self.part.plain(places)).logits
            return kl(q[places], logits.log_softmax(-1)).mean()

        gradient, _ = tree.grad_and_value(loss, named(vector, self.w))
        self.rule.update(vector, torch.cat([g.flatten() for g in gradient.values()]), memory, rates)

    def weights(self) -> Weights:
        """As they are now; a copy, since they go on changing."""
        return tree.map(torch.clone, self.w)


@dataclass(frozen=True)
class ServerData:
    """The server's own data, without labels, and the network to run on it."""

    model: Model
    part: DevicePart
    seed: int
    students: dict[Rule, CompiledStudent] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has students of its own: CUDA graphs can be neither copied nor pickled."""
        return {**vars(self), "students": {}}

    def __len__(self) -> int:
        return len(self.part)

    def logits(self, w: Weights) -> Tensor:
        """Of the whole data, [N, C]."""
        with torch.no_grad():
            places = torch.arange(len(self.part), device=self.part.device).split(TOGETHER)
            return torch.cat([self.model.frozen(w, self.part.plain(some)).logits for some in places])

    def batches(self, round: int, size: int, steps: int) -> list[Tensor]:
        """The places of `steps` batches' samples: one pass over the data after the other, each in a new order."""
        require(steps * size <= MOST_PLANNED, f"the server's {steps} steps a round cannot be planned; ask for fewer")
        rng, in_a_pass = generator(self.seed, "auxiliary", round), -(-len(self.part) // size)
        orders = [rng.permutation(len(self.part)) for _ in range(-(-steps // in_a_pass))]
        # sent all at once, since a copy from the host waits for what was launched before it
        passes = torch.from_numpy(np.stack(orders)).to(self.part.device)
        return [places for order in passes for places in order.split(size)][:steps]

    def student(self, rule: Rule, w: Weights, q: Tensor) -> CompiledStudent:
        """At the beginning of a round. It is the same one in all rounds, since capturing its step takes a while."""
        if rule not in self.students:
            self.students[rule] = CompiledStudent(self.model, self.part, rule, w, q)
        self.students[rule].begin(w, q)
        return self.students[rule]
