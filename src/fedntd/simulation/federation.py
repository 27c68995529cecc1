"""A simulated federation and its rounds: cohort → plan → local training → aggregation → metrics → record.

`play_together` is one round from start to end, of one run or of several that share an engine. Its steps are numbered as
in docs/one-round.md; steps 1 to 3 (config, data, partition) are in `setup.py`.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.config.registry import call
from fedntd.config.schema import Config
from fedntd.data.dataset import Dataset
from fedntd.engine.base import Trained
from fedntd.engine.devices import home_of, make_current, to_device, to_host
from fedntd.engine.optim import learning_rate
from fedntd.engine.testing import Counts
from fedntd.errors import Diverged
from fedntd.runs.measures import Vector, in_local, of_global_model, out_local
from fedntd.runs.record import Record, State, mean_and_std
from fedntd.simulation.checks import check_aggregated
from fedntd.simulation.setup import Setup
from fedntd.tree import Tree, Weights

OnUploads = Callable[["Federation", Tree], None]


class Federation(Setup):
    """One simulated federation. Iterate to train: each round yields its record. `state.w` are the global weights.

    `dataset`, `model` and `auxiliary` are Python objects to use instead of those that the config names. Of an auxiliary
    dataset, the training samples are used without their labels. `share_with` is another run: if it has the same data,
    they are not loaded again. If it has `several_runs`, its engine is shared too, for `play_together`, unless the
    networks differ in more than their weights.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset | None = None,
        model: nn.Module | None = None,
        share_with: "Federation | None" = None,
        several_runs: bool = False,
        auxiliary: Dataset | Tensor | None = None,
    ) -> None:
        super().__init__(config, dataset, model, share_with, several_runs, auxiliary)
        self.state = State(self.initial_w, self.algorithm.init_server(self.initial_w))
        self.state_home = home_of(self.algorithm.init_client(self.initial_w), config.federation.clients, self.device)
        self.varying: dict[str, float] = {}  # hyper-parameters in which runs trained together differ
        self.history: list[Vector] = []  # class-wise accuracy of the global model after each round
        self.before: Vector | None = None  # class-wise accuracy before the next round; None: not tested yet
        self.upcoming: tuple[Any, Any] = (None, None)  # keys of the planned rounds; their agendas and prepared tasks

    def __iter__(self) -> Iterator[Record]:
        while not self.finished:
            yield self.play_round()

    @property
    def finished(self) -> bool:
        return self.state.round >= self.rounds

    def play_round(self, on_uploads: OnUploads | None = None) -> Record:
        """Train one round and return its record. `on_uploads` is called with the uploads before they are aggregated."""
        (outcome,) = play_together([self], on_uploads)
        if isinstance(outcome, Diverged):
            raise outcome
        return outcome

    def restore(self, state: State, records: list[Record]) -> None:
        """Continue from a checkpoint. Its tensors may be on any device and its weights of any precision."""
        old_dtype = tree.leaves(state.w)[0].dtype

        def move(leaves: Tree, device: torch.device) -> dict:
            # tensors of another type than the weights, such as a sum in float64, keep it
            return tree.map(lambda leaf: leaf.to(device, self.storage if leaf.dtype == old_dtype else None), leaves)

        own = {k: move(own, self.state_home) for k, own in state.own.items()}
        self.state = replace(state, w=move(state.w, self.device), server=move(state.server, self.device), own=own)
        self.history = [np.array(record.class_accuracy) for record in records]
        self.before = self.history[-1] if self.history else None

    def own(self, k: int) -> dict[str, Any]:
        """The state of client k, on the device."""
        if k not in self.state.own:
            return self.algorithm.init_client(self.initial_w)
        return tree.map(lambda leaf: leaf.to(self.device), self.state.own[k])


# --- one round ----------------------------------------------------------------------------------------------------


def play_together(runs: Sequence[Federation], on_uploads: OnUploads | None = None) -> list[Record | Diverged]:
    """Train the next round of runs that share an engine, all their clients at once.

    Returns for each run its record, whose `seconds` are the run's share of the time, or a `Diverged` error.
    """
    started = time.perf_counter()
    leader, engine = runs[0], runs[0].engine
    make_current(leader.device)
    untested = [run for run in runs if run.before is None]
    for run, counts in zip(untested, engine.test([run.state.w for run in untested]) if untested else [], strict=True):
        run.before = counts.class_accuracy

    # 4. cohort and 5. plan: who trains, and on what. Usually planned while the previous round was still running, but
    # planned again if some of the runs have ended since.
    rounds = [(run, run.state.round + 1) for run in runs]
    planned, upcoming = leader.upcoming
    agendas, prepared = upcoming if planned == keys_of(rounds) else plan_rounds(rounds)
    contexts = [ctx for run, agenda in zip(runs, agendas, strict=True) for ctx in broadcast(run, agenda)]

    # 6. local training: the client updates of all runs at once
    together = engine.train(prepared, contexts, any(agenda.measure_locals for agenda in agendas))
    ends = np.cumsum([len(agenda.cohort) for agenda in agendas])
    trained = [together.part(slice(end - len(a.cohort), end)) for end, a in zip(ends, agendas, strict=True)]

    # 7. aggregation: the server step of each run
    if on_uploads:
        for run, part in zip(runs, trained, strict=True):
            on_uploads(run, part.up)
    new_states = [server_step(run, a, part.up) for run, a, part in zip(runs, agendas, trained, strict=True)]

    # 8. metrics: test the new global models
    tested = engine.test([w for w, _ in new_states])
    finite = [tree.all_finite(w) for w, _ in new_states]

    # plan the next round while a GPU still computes this one
    next_rounds = [(run, number + 1) for run, number in rounds if number < run.rounds]
    if next_rounds:
        next_rounds[0][0].upcoming = keys_of(next_rounds), plan_rounds(next_rounds)

    # 9. record: here the host waits for the device
    measured = [(part.loss, part.test, part.train) for part in trained]
    measured, tested, finite = to_host((measured, tested, finite), leader.device)
    seconds = (time.perf_counter() - started) / len(runs)
    return [
        close_round(run, a, part._replace(loss=loss, test=test, train=train), w, server, counts, seconds)
        if is_finite
        else Diverged(f"the global weights are not finite after round {a.number}; a lower optimiser.lr may help")
        for run, a, part, (loss, test, train), (w, server), counts, is_finite in zip(
            runs, agendas, trained, measured, new_states, tested, finite, strict=True
        )
    ]


class Agenda(NamedTuple):
    """What is known about a round in advance. Sent to the device while the previous round still runs."""

    number: int
    cohort: list[int]
    p: Tensor  # weight of each client in the mean
    class_counts: tuple[Tensor, ...]  # of each client
    rate: float  # the learning rate
    lr: Tensor  # the learning rate, on the device
    values: dict[str, Tensor]  # hyper-parameters in which runs trained together differ
    measure_locals: bool  # whether the local models are tested


def keys_of(rounds: Sequence[tuple[Federation, int]]) -> list[tuple]:
    """Keys that identify these rounds of these runs with their current configs, to check what a plan was made for.

    They hold weak references to the runs. With a strong one, a run would refer to itself, and its GPU memory would not
    be freed with its last use. With its `id`, a new run at the same address could be mistaken for it.
    """
    return [(weakref.ref(run), number, run.config) for run, number in rounds]


def plan_rounds(rounds: Sequence[tuple[Federation, int]]) -> tuple[list[Agenda], Any]:
    """Plan these rounds of runs that share an engine. Returns their agendas, and the tasks the engine has prepared."""
    tasks = [run.task(number, k) for run, number in rounds for k in run.cohort(number)]
    return [agenda(run, number) for run, number in rounds], rounds[0][0].engine.prepare(tasks)


def agenda(run: Federation, round: int) -> Agenda:
    """The agenda of a round: who trains, with which learning rate and which weight in the mean."""
    config, cohort = run.config, run.cohort(round)
    shares, rate = run.shares[cohort], learning_rate(config.optimiser, round)
    numbers = to_device(np.array([rate, *run.varying.values(), *(shares / shares.sum())]), run.device, run.storage)
    (lr, *varying), p = numbers[: -len(cohort)], numbers[-len(cohort) :]
    counts = run.class_counts.index_select(0, to_device(np.array(cohort), run.device)).unbind()
    values = dict(zip(run.varying, varying, strict=True))
    return Agenda(round, cohort, p, counts, rate, lr, values, config.measure.locals_in(round))


def broadcast(run: Federation, agenda: Agenda) -> list[Context]:
    """The context of each client in the cohort."""
    algorithm, state, momentum = run.algorithm, run.state, run.config.optimiser.momentum
    w_sent, shared = algorithm.send(state.w, state.server), algorithm.broadcast(state.server)
    return [
        Context(w_sent, shared, run.own(k), agenda.lr, momentum, counts, agenda.values)
        for k, counts in zip(agenda.cohort, agenda.class_counts, strict=True)
    ]


def server_step(run: Federation, agenda: Agenda, up: Tree) -> tuple[Weights, dict]:
    """The new global weights and server state."""
    fraction = float(run.shares[agenda.cohort].sum())
    up, p = call("robust", run.config.robust, up=up, p=agenda.p)
    new_state = run.algorithm.aggregate(run.state.w, run.state.server, up, p, fraction)
    check_aggregated(new_state, run.state.w, run.config.algorithm.name)
    return new_state


def close_round(
    run: Federation, agenda: Agenda, trained: Trained, w: Weights, server: dict, counts: Counts, seconds: float
) -> Record:
    """Set the run's new state, and return the record of the round."""
    round, cohort, state = agenda.number, agenda.cohort, run.state
    assert run.before is not None
    joint = run.counts[cohort].sum(0) / run.counts[cohort].sum()
    own = {k: tree.map(lambda leaf, i=i: leaf[i].clone().to(run.state_home), trained.own) for i, k in enumerate(cohort)}
    run.state = State(w, server, state.own | own if trained.own else state.own, round)
    record = Record(
        round=round,
        **of_global_model(counts, run.before, run.history, joint),
        train_loss=float(trained.loss.mean()),
        **(local_measures(run.p[cohort], trained) if agenda.measure_locals else {}),
        cohort=cohort,
        lr=agenda.rate,
        bytes_down=len(cohort) * (tree.nbytes(state.w) + tree.nbytes(run.algorithm.broadcast(state.server))),
        bytes_up=tree.nbytes(trained.up),
        seconds=seconds,
    )
    run.before = np.array(record.class_accuracy)
    run.history.append(run.before)
    return record


def local_measures(p: Vector, trained: Trained) -> dict[str, Any]:
    """Metrics of the local models: mean and standard deviation over the cohort. `p` are the in-local distributions."""
    assert trained.test is not None
    assert trained.train is not None
    accuracies = list(zip(trained.test.class_accuracy, p, strict=True))
    return {
        **mean_and_std("in_local", [in_local(a, p) for a, p in accuracies]),
        **mean_and_std("out_local", [out_local(a, p) for a, p in accuracies]),
        **mean_and_std("local_train_accuracy", trained.train.accuracy),
        **mean_and_std("local_train_loss", trained.train.mean_loss),
    }
