"""The server's own data for methods that distil on it (FedDF, FedBE), and the students they train.

`ServerData` implements the `Auxiliary` of `algorithms.ensemble`.
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
from fedntd.engine.cuda_graphs import Captured, capture, pool_on
from fedntd.engine.plan import MOST_PLANNED
from fedntd.engine.tracing import compiled, traced
from fedntd.errors import require
from fedntd.models.functional import Model
from fedntd.rng import generator
from fedntd.tree import Weights

TEACHER_BATCH = 500  # samples in one forward pass of a teacher


class CapturedStep(NamedTuple):
    """A student's step for one batch size, and the tensors to copy its arguments into."""

    take: Captured
    places: Tensor
    rates: Tensor


class CompiledStudent:
    """Weights trained to match a teacher's predictions on the server's data.

    On a GPU, launching a step kernel by kernel takes longer than computing it. So the step is compiled and captured as
    a CUDA graph, once for each batch size. A graph contains addresses, so all tensors of a step stay in place in all
    rounds.
    """

    def __init__(self, model: Model, part: DevicePart, rule: Rule, w: Weights, q: Tensor) -> None:
        self.model, self.part, self.rule = model, part, rule
        # One vector, so that the rule needs few launches. In order of names, since checkpoints may have another order.
        self.vector = torch.cat([leaf.flatten() for leaf in tree.leaves(w)])
        self.w = named(self.vector, w)
        self.memory = self.vector.new_zeros(rule.memories, len(self.vector))
        self.q = q.clone()
        self.pool = pool_on(part.device)
        self.steps: dict[int, CapturedStep] = {}  # by number of samples in a batch

    def begin(self, w: Weights, q: Tensor) -> None:
        """Start a round from `w`, with an empty memory of the rule and the teacher's probabilities q [N, C]."""
        tree.map(Tensor.copy_, self.w, w)
        self.memory.zero_()
        self.q.copy_(q)

    def learn(self, places: Tensor, rates: Tensor) -> None:
        """One step on the samples with these indices; `rates` are the rule's numbers for this step."""
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
        take = capture(lambda: step(*tensors), self.pool)
        self.vector.copy_(vector)  # undo the steps taken to warm up
        self.memory.copy_(memory)
        return CapturedStep(take, places, rates)

    def step(self, vector: Tensor, memory: Tensor, q: Tensor, places: Tensor, rates: Tensor) -> None:
        """One step of the rule along the gradient of the mean of KL(q || student). Changes `vector` and `memory`."""

        def loss(w: Weights) -> Tensor:
            logits = self.model.frozen(w, self.part.plain(places)).logits
            return kl(q[places], logits.log_softmax(-1)).mean()

        gradient, _ = tree.grad_and_value(loss, named(vector, self.w))
        self.rule.update(vector, torch.cat([g.flatten() for g in gradient.values()]), memory, rates)

    def weights(self) -> Weights:
        """A copy of the current weights."""
        return tree.map(torch.clone, self.w)


@dataclass(frozen=True)
class ServerData:
    """The server's own unlabelled data, and the network to run on it."""

    model: Model
    part: DevicePart
    seed: int
    students: dict[Rule, CompiledStudent] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the students: CUDA graphs can be neither copied nor pickled."""
        return {**vars(self), "students": {}}

    def __len__(self) -> int:
        return len(self.part)

    def logits(self, w: Weights) -> Tensor:
        """The model's logits on all samples: [N, C]."""
        with torch.no_grad():
            places = torch.arange(len(self.part), device=self.part.device).split(TEACHER_BATCH)
            return torch.cat([self.model.frozen(w, self.part.plain(batch)).logits for batch in places])

    def batches(self, round: int, size: int, steps: int) -> list[Tensor]:
        """The sample indices of `steps` batches: one pass over the data after the other, each in a new order."""
        require(steps * size <= MOST_PLANNED, f"the server's {steps} steps a round cannot be planned; ask for fewer")
        rng, pass_steps = generator(self.seed, "auxiliary", round), -(-len(self.part) // size)
        orders = [rng.permutation(len(self.part)) for _ in range(-(-steps // pass_steps))]
        # one copy for all, because a copy from the host waits for everything launched before it
        passes = torch.from_numpy(np.stack(orders)).to(self.part.device)
        return [places for order in passes for places in order.split(size)][:steps]

    def student(self, rule: Rule, w: Weights, q: Tensor) -> CompiledStudent:
        """The student of this rule, at the start of a round. It is reused in all rounds, since capturing takes long."""
        if rule not in self.students:
            self.students[rule] = CompiledStudent(self.model, self.part, rule, w, q)
        self.students[rule].begin(w, q)
        return self.students[rule]
