"""Rounds with their local models: a run taken up from its folder, and training watched from inside."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.config.schema import Config
from fedntd.config.toml import to_table
from fedntd.config.trust import require_trust
from fedntd.engine.optim import learning_rate
from fedntd.engine.testing import count, in_batches
from fedntd.engine.training import train_one
from fedntd.errors import require
from fedntd.runs.measures import Vector, in_local, out_local
from fedntd.runs.reader import read_run
from fedntd.runs.record import Record, State, load_checkpoint
from fedntd.simulation.federation import Federation
from fedntd.tree import Tree, Weights


def reopen(path: str | Path, trust: bool = False, **changes: Any) -> Federation:
    """The federation of a run folder as its checkpoint has it, ready for the next round.

    Code that its config names is imported: from fedntd and the current project at once, from elsewhere with `trust`.

    `changes` replace settings of the run, such as `algorithm=Choice("fedntd")` or `device="cpu"`: the weights stay, and
    what the old algorithm kept at server and clients is forgotten with it.
    """
    path = Path(path)
    run = read_run(path)
    file = path / "checkpoint.safetensors"
    require(file.is_file(), f"{path} has no checkpoint; keep the run's folder whole, or run it again")
    require_trust(to_table(run.config), path, trust)
    config = replace(run.config, **changes)
    federation = Federation(config)
    state = load_checkpoint(file, torch.device("cpu"))  # the device may not hold the state of all clients
    if (config.algorithm, config.server) != (run.config.algorithm, run.config.server):
        state = State(state.w, federation.algorithm.init_server(state.w), {}, state.round)
    require(not state.without_clients, f"{path} was saved without its clients' states; run it again with fedntd run")
    federation.restore(state, run.records[: state.round])
    return federation


def start_from(config: Config, w: Weights, round: int = 0) -> Federation:
    """A federation that begins with the weights `w`, as if `round` rounds were over."""
    federation = Federation(config)
    w = {name: leaf.to(federation.device, federation.storage) for name, leaf in w.items()}
    federation.initial_w = w  # which clients begin their own states with: MOON's last model
    federation.restore(State(w, federation.algorithm.init_server(w), {}, round), [])
    return federation


def next_cohort(federation: Federation) -> list[int]:
    """The clients that train in the next round."""
    return federation.cohort(federation.state.round + 1)


def class_accuracy(federation: Federation, w: Weights) -> Vector:
    """Of any weights, on the federation's test part: [class]."""
    engine = federation.engine
    return count(engine.model, w, engine.test_part, in_batches(len(engine.test_part)), engine.classes).class_accuracy


# --- whole rounds -----------------------------------------------------------------------------------------------


class Inside(NamedTuple):
    """A round and the models in it."""

    record: Record
    before: Vector  # class-wise accuracy of the global model before the round
    w_g: Weights  # what clients began with: distributed global, W_G^(t-1), but for methods that send other weights
    w_k: dict[str, Any]  # the cohort's models after training, every leaf [client, ...]: locals, W_L^(t)
    w: Weights  # the aggregated global model, W_G^(t)

    def local(self, i: int) -> Weights:
        """The model of the cohort's i-th client."""
        return {name: leaf[i] for name, leaf in self.w_k.items()}


def watch(federation: Federation) -> Iterator[Inside]:
    """Train as `for record in federation` does, and show each round from inside."""
    while not federation.finished:
        yield next_round(federation)


def next_round(federation: Federation) -> Inside:
    """Play one round, whether or not the run was meant to have so many."""
    before = federation.history[-1] if federation.history else class_accuracy(federation, federation.state.w)
    w_g = federation.algorithm.send(federation.state.w, federation.state.server)
    delta: dict[str, Any] = {}

    def keep(_: Federation, up: Tree) -> None:
        """All that the clients have sent: a robust rule would leave some of it."""
        delta.update(tree.map(torch.clone, up["delta"]))  # an engine may use its memory again

    record = federation.play_round(on_uploads=keep)
    return Inside(record, before, w_g, tree.map(torch.add, delta, w_g), federation.state.w)


# --- one client, step by step -----------------------------------------------------------------------------------


class Trace(NamedTuple):
    """Test accuracy of a client's model while it trains. Step 0 is the global model that it received."""

    steps: list[int]
    class_accuracy: Vector  # [step, class]
    in_local: Vector  # [step]
    out_local: Vector


def trace_client(federation: Federation, client: int, every: int = 1) -> Trace:
    """Train `client` as it would be in the next round, and test its model every so many steps and after the last.

    The federation stays as it is.
    """
    require(every >= 1, f"every must be at least 1, not {every}")
    config, engine, state = federation.config, federation.engine, federation.state
    round = state.round + 1
    task = federation.task(round, client)
    lr = torch.tensor(learning_rate(config.optimiser, round), dtype=federation.storage, device=federation.device)
    algorithm = federation.algorithm
    w_g, shared = algorithm.send(state.w, state.server), algorithm.broadcast(state.server)
    counts, momentum = federation.class_counts[client], config.optimiser.momentum
    ctx = Context(w_g, shared, federation.own(client), lr, momentum, counts)

    steps, accuracies = [0], [class_accuracy(federation, w_g)]

    def test_now_and_then(step: int, w: Weights) -> None:
        if step % every == 0 or step == task.plan.steps:
            steps.append(step)
            accuracies.append(class_accuracy(federation, w))

    train_one(algorithm, engine.model, engine.optimiser, engine.train_part, task, ctx, on_step=test_now_and_then)
    p = federation.p[client]
    inside, outside = [in_local(a, p) for a in accuracies], [out_local(a, p) for a in accuracies]
    return Trace(steps, np.array(accuracies), np.array(inside), np.array(outside))


def out_of(p: Vector | Sequence[float]) -> Vector:
    """The out-local distribution of in-local distributions [..., class]: (1 - p) / (C - 1), definition 1.

    >>> out_of([0.5, 0.5, 0.0]).tolist()
    [0.25, 0.25, 0.5]
    """
    p = np.asarray(p, dtype=float)
    return (1 - p) / (p.shape[-1] - 1)
