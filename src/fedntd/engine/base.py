"""What an engine is, and what goes into it and comes out."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedntd import tree
from fedntd.algorithms import FedAvg
from fedntd.algorithms.base import Context
from fedntd.config.schema import Optimiser
from fedntd.data.device import DevicePart
from fedntd.engine.plan import Plan
from fedntd.engine.testing import Counts
from fedntd.models.functional import Model
from fedntd.tree import Weights


class Task(NamedTuple):
    """What a client will do in a round, as far as it is known beforehand."""

    plan: Plan
    owned: NDArray[np.int64]  # places of its samples in the training part
    torch_seed: int  # for dropout


class Trained(NamedTuple):
    """What the training of a cohort gave: every leaf is [client, ...], in the order of the tasks."""

    up: dict
    own: dict
    loss: Tensor
    test: Counts | None  # the trained local models on the whole test part
    train: Counts | None  # and on their own training samples

    def part(self, clients: slice) -> "Trained":
        """Of some of the clients."""
        return on_each_leaf(lambda leaf: leaf[clients], self)


class Engine(Protocol):
    """Trains the clients of a cohort and tests models; the rest of a round does not care how.

    A federation calls its engine three times a round:

        prepared = engine.prepare(tasks)                     # which samples, in which order: before the round
        trained = engine.train(prepared, contexts, measure)  # local training of the whole cohort
        counts = engine.test(models)                         # the new global model

    `prepare` gets what is known of a round before the round before it has ended: each client's `Task`. It returns
    whatever `train` wants to have at hand. A GPU engine sends the plans to the device while that is still busy.

    `train` gets the `Context` of each task's client: the global weights, what the server broadcasts, the client's own
    state, the learning rate. Each client starts from the global weights with zero momentum and takes the steps of its
    plan (`training.train_one`). With `measure`, its trained model is also tested on the whole test part and on its own
    training samples. The result has one row a task, in the order of the tasks, whatever order they were trained in.

    `test` counts, class by class, what each of several models gets right on the whole test part.

    What an engine must keep:

    - **The same numbers.** Two engines agree to rounding (1e-12 in float64, tests/engine/test_vectorised.py): all
      randomness is in the plans, and a sample of a short batch is masked, never zero.
    - **Several runs at once.** Clients of one call may belong to several runs of one shape. A run sees only its own
      global weights, learning rate and hyper-parameters: those in which runs differ come as `Context.values`, and
      `algorithm.with_values(ctx.values)` is the method as this client's run has it.
    - **Nothing kept of a context.** An engine may keep compiled code, memory and samples from round to round, but no
      weights or state: what a call returns follows from what it was given.
    - **Memory.** What does not fit into the device's memory at once is done in parts, with the same result.

    `notes` says, in one sentence each, where the engine falls back to a slower way than its own, and why. They go into
    `environment.json` and are shown by `fedntd run --verbose`.

    `Sequential` trains one client after the other, on a CPU several side by side. `Vectorised` trains the whole cohort
    in one compiled step.
    """

    algorithm: FedAvg
    model: Model
    optimiser: Optimiser
    train_part: DevicePart
    test_part: DevicePart
    classes: int
    notes: list[str]

    def prepare(self, tasks: list[Task]) -> Any: ...

    def train(self, prepared: Any, contexts: list[Context], measure: bool) -> Trained: ...

    def test(self, models: list[Weights]) -> list[Counts]: ...


def on_each_leaf(f: Callable[..., Tensor], first: Trained, *rest: Trained) -> Trained:
    """`f` on every leaf of trained cohorts."""

    def counts(*same: Counts | None) -> Counts | None:
        present = [one for one in same if one is not None]
        return Counts(*map(f, *present)) if present else None

    every = (first, *rest)
    return Trained(
        tree.map(f, *(t.up for t in every)),
        tree.map(f, *(t.own for t in every)),
        f(*(t.loss for t in every)),
        counts(*(t.test for t in every)),
        counts(*(t.train for t in every)),
    )
