"""The interface of an engine, its inputs and its results."""

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
    """A client's work in a round, as far as it is known before the round."""

    plan: Plan
    owned: NDArray[np.int64]  # indices of its samples in the training part
    torch_seed: int  # for dropout


class Trained(NamedTuple):
    """The results of training a cohort. Every leaf is [client, ...], in the order of the tasks."""

    up: dict  # uploads
    own: dict  # new client states
    loss: Tensor  # mean training loss
    test: Counts | None  # of the trained local models on the whole test part
    train: Counts | None  # of the trained local models on their own training samples

    def part(self, clients: slice) -> "Trained":
        """The results of these clients."""
        return map_leaves(lambda leaf: leaf[clients], self)


class Engine(Protocol):
    """Trains the clients of a cohort and tests models. The rest of a round does not depend on how this is done.

    A federation calls its engine three times a round:

        prepared = engine.prepare(tasks)                     # before the round: which samples, in which order
        trained = engine.train(prepared, contexts, measure)  # local training of the whole cohort
        counts = engine.test(models)                         # test of the new global model

    `prepare` takes the `Task` of each client, which is known before the previous round has ended. It returns whatever
    `train` needs. A GPU engine sends the plans to the device while the previous round still runs.

    `train` takes the `Context` of each task's client: the global weights, the server's broadcast, the client's own
    state and the learning rate. Each client starts from the global weights with zero momentum and takes the steps of
    its plan (`training.train_one`). With `measure`, its trained model is also tested on the whole test part and on its
    own training samples. The result has one row per task, in the order of the tasks.

    `test` takes several models and counts, class by class, the samples of the test part that each classifies correctly.

    Every engine guarantees:

    - **The same numbers.** Two engines agree up to rounding (1e-12 in float64, tests/engine/test_vectorised.py). All
      randomness is in the plans. Samples that pad a short batch are masked, never zeros.
    - **Several runs at once.** The clients of one call may belong to several runs of one shape. A client is trained
      only with its own run's global weights, learning rate and hyper-parameters. Hyper-parameters in which the runs
      differ are in `Context.values`; `algorithm.with_values(ctx.values)` is the method with those of the client's run.
    - **No state.** An engine may keep compiled code, memory and samples from round to round, but no weights or client
      state: the result of a call depends on its arguments alone.
    - **Memory.** Work that does not fit into the device's memory is done in parts, with the same result.

    `notes` lists, in one sentence each, where the engine has to take a slower path, and why. The notes are written to
    `environment.json` and shown by `fedntd run --verbose`.

    `Sequential` trains the clients one by one, on a CPU several in parallel. `Vectorised` trains the whole cohort in
    one step, compiled on a GPU.
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


def map_leaves(f: Callable[..., Tensor], first: Trained, *rest: Trained) -> Trained:
    """Apply `f` leaf by leaf to the results of one or several cohorts."""

    def map_counts(*counts: Counts | None) -> Counts | None:
        present = [c for c in counts if c is not None]
        return Counts(*map(f, *present)) if present else None

    cohorts = (first, *rest)
    return Trained(
        tree.map(f, *(t.up for t in cohorts)),
        tree.map(f, *(t.own for t in cohorts)),
        f(*(t.loss for t in cohorts)),
        map_counts(*(t.test for t in cohorts)),
        map_counts(*(t.train for t in cohorts)),
    )
