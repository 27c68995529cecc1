"""Rounds with their local models: restore a run from its folder, and watch its training."""

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
    """The federation of a run folder, restored from its checkpoint and ready for the next round.

    Code that its config names is imported. Code from outside fedntd and the current project needs `trust`.

    `changes` replace settings of the run, such as `algorithm=Choice("fedntd")` or `device="cpu"`. With another
    algorithm or server rule, the weights stay, and the states of the server and the clients are discarded.
    """
    path = Path(path)
    run = read_run(path)
    file = path / "checkpoint.safetensors"
    require(file.is_file(), f"{path} has no checkpoint; keep the run's folder whole, or run it again")
    require_trust(to_table(run.config), path / "config.toml", trust)
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
    federation.initial_w = w  # clients' own states start from these weights: MOON's last model
    federation.restore(State(w, federation.algorithm.init_server(w), {}, round), [])
    return federation


def next_cohort(federation: Federation) -> list[int]:
    """The clients that train in the next round."""
    return federation.cohort(federation.state.round + 1)


def class_accuracy(federation: Federation, w: Weights) -> Vector:
    """The class-wise accuracy of weights `w` on the federation's test part, [class]."""
    engine = federation.engine
    return count(engine.model, w, engine.test_part, in_batches(len(engine.test_part)), engine.classes).class_accuracy


# --- whole rounds -----------------------------------------------------------------------------------------------


class Inside(NamedTuple):
    """The record of a round, and its global and local models."""

    record: Record
    before: Vector  # class-wise accuracy of the global model before the round
    w_g: Weights  # the weights that clients started from: W_G^(t-1), unless the method sends other weights
    w_k: dict[str, Any]  # the cohort's local models after training, W_L^(t); every leaf is [client, ...]
    w: Weights  # the aggregated global model, W_G^(t)

    def local(self, i: int) -> Weights:
        """The model of the cohort's i-th client."""
        return {name: leaf[i] for name, leaf in self.w_k.items()}


def watch(federation: Federation) -> Iterator[Inside]:
    """Train as `for record in federation` does, and yield each round with its models."""
    while not federation.finished:
        yield next_round(federation)


def next_round(federation: Federation) -> Inside:
    """Play one round, even beyond the run's number of rounds."""
    before = federation.history[-1] if federation.history else class_accuracy(federation, federation.state.w)
    w_g = federation.algorithm.send(federation.state.w, federation.state.server)
    delta: dict[str, Any] = {}

    def keep(_: Federation, up: Tree) -> None:
        """Keep the uploads of all clients, before a robust rule drops some."""
        delta.update(tree.map(torch.clone, up["delta"]))  # cloned, because an engine may reuse its memory

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
    """Train `client` as in the next round, and test its model at every `every`-th step and after the last.

    The federation is not changed.
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

    def test_at_interval(step: int, w: Weights) -> None:
        if step % every == 0 or step == task.plan.steps:
            steps.append(step)
            accuracies.append(class_accuracy(federation, w))

    train_one(algorithm, engine.model, engine.optimiser, engine.train_part, task, ctx, on_step=test_at_interval)
    p = federation.p[client]
    inside, outside = [in_local(a, p) for a in accuracies], [out_local(a, p) for a in accuracies]
    return Trace(steps, np.array(accuracies), np.array(inside), np.array(outside))


def out_of(p: Vector | Sequence[float]) -> Vector:
    """The out-local distributions (1 - p) / (C - 1) of in-local distributions p [..., class] (definition 1).

    >>> out_of([0.5, 0.5, 0.0]).tolist()
    [0.25, 0.25, 0.5]
    """
    p = np.asarray(p, dtype=float)
    return (1 - p) / (p.shape[-1] - 1)
