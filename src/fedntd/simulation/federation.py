"""A simulated federation and its rounds: cohort → plan → local training → aggregation → metrics → record.

`play_together` is one round from top to bottom, of one run or of several that share an engine. Its steps have the
numbers of docs/one-round.md; steps 1 to 3 (config, data, partition) are in `setup.py`.
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
from fedntd.engine.devices import fetched, home_of, make_current, to_device
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
    """One simulated federation. Iterate to train: each round yields its record; `state.w` are the global weights.

    `dataset`, `model` and `auxiliary` stand in for what the config names, for those who have them at hand in Python; of
    an auxiliary dataset the training samples are used, without their labels. `share_with` is another run: its data need
    not be loaded again; with `several_runs` its engine is shared, for `play_together`, unless the networks differ in
    more than their weights.
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
        self.varying: dict[str, float] = {}  # hyper-parameters in which runs that are trained together differ
        self.history: list[Vector] = []  # class-wise accuracy of the global model after each round
        self.before: Vector | None = None  # and before the coming round
        self.upcoming: tuple[Any, Any] = (None, None)  # the agendas and prepared tasks of a round to come

    def __iter__(self) -> Iterator[Record]:
        while not self.finished:
            yield self.play_round()

    @property
    def finished(self) -> bool:
        return self.state.round >= self.rounds

    def play_round(self, on_uploads: OnUploads | None = None) -> Record:
        """The next round; `on_uploads` is shown what the clients have sent, before it is aggregated."""
        (outcome,) = play_together([self], on_uploads)
        if isinstance(outcome, Diverged):
            raise outcome
        return outcome

    def restore(self, state: State, records: list[Record]) -> None:
        """Go on from a checkpoint, wherever its tensors are, and whichever precision its weights have."""
        then = tree.leaves(state.w)[0].dtype  # what has another type, such as a sum in float64, is meant to have it

        def at(home: torch.device, leaves: Tree) -> dict:
            return tree.map(lambda leaf: leaf.to(home, self.storage if leaf.dtype == then else None), leaves)

        own = {k: at(self.state_home, own) for k, own in state.own.items()}
        self.state = replace(state, w=at(self.device, state.w), server=at(self.device, state.server), own=own)
        self.history = [np.array(record.class_accuracy) for record in records]
        self.before = self.history[-1] if self.history else None

    def own(self, k: int) -> dict[str, Any]:
        """What client k keeps, on the device."""
        if k not in self.state.own:
            return self.algorithm.init_client(self.initial_w)
        return tree.map(lambda leaf: leaf.to(self.device), self.state.own[k])


# --- one round ----------------------------------------------------------------------------------------------------


def play_together(runs: Sequence[Federation], on_uploads: OnUploads | None = None) -> list[Record | Diverged]:
    """The next round of runs that share an engine, all their clients trained at once; `seconds` are a run's share."""
    started = time.perf_counter()
    leader, engine = runs[0], runs[0].engine
    make_current(leader.device)
    new = [run for run in runs if run.before is None]
    for run, counts in zip(new, engine.test([run.state.w for run in new]) if new else [], strict=True):
        run.before = counts.class_accuracy

    # 4. cohort and 5. plan: who trains, and on what; as a rule planned while the previous round was still computed
    coming = [(run, run.state.round + 1) for run in runs]
    planned, upcoming = leader.upcoming
    agendas, prepared = upcoming if planned == names_of(coming) else plan_rounds(coming)  # not if some runs have ended
    contexts = [ctx for run, agenda in zip(runs, agendas, strict=True) for ctx in broadcast(run, agenda)]

    # 6. local training: the client updates of all runs at once
    together = engine.train(prepared, contexts, any(agenda.measure_locals for agenda in agendas))
    ends = np.cumsum([len(agenda.cohort) for agenda in agendas])
    trained = [together.part(slice(end - len(one.cohort), end)) for end, one in zip(ends, agendas, strict=True)]

    # 7. aggregation: the server step of each run
    if on_uploads:
        for run, part in zip(runs, trained, strict=True):
            on_uploads(run, part.up)
    new_states = [server_step(run, one, part.up) for run, one, part in zip(runs, agendas, trained, strict=True)]

    # 8. metrics: the new global models are tested
    tested = engine.test([w for w, _ in new_states])
    finite = [tree.all_finite(w) for w, _ in new_states]

    # a GPU is still busy with all that: time to plan the next round
    going_on = [(run, number + 1) for run, number in coming if number < run.rounds]
    if going_on:
        going_on[0][0].upcoming = names_of(going_on), plan_rounds(going_on)

    # 9. record: here the host waits for the device
    measured = [(part.loss, part.test, part.train) for part in trained]
    measured, tested, finite = fetched((measured, tested, finite), leader.device)
    seconds = (time.perf_counter() - started) / len(runs)
    return [
        close_round(run, one, part._replace(loss=loss, test=test, train=train), w, server, counts, seconds)
        if good
        else Diverged(f"the global weights are not finite after round {one.number}; a lower optimiser.lr may help")
        for run, one, part, (loss, test, train), (w, server), counts, good in zip(
            runs, agendas, trained, measured, new_states, tested, finite, strict=True
        )
    ]


class Agenda(NamedTuple):
    """What is known of a round beforehand. Sent while the previous round still runs."""

    number: int
    cohort: list[int]
    p: Tensor  # each client's weight in the mean
    class_counts: tuple[Tensor, ...]  # of each
    rate: float  # of learning
    lr: Tensor  # the same, on the device
    values: dict[str, Tensor]  # hyper-parameters in which runs that are trained together differ
    measure_locals: bool


def names_of(rounds: Sequence[tuple[Federation, int]]) -> list[tuple]:
    """What a plan is for: these rounds of these runs, as they are set up now.

    By weak references: a run that kept itself would not be freed when it is forgotten, nor its memory on a GPU; and
    another may come to lie where a forgotten one was.
    """
    return [(weakref.ref(run), number, run.config) for run, number in rounds]


def plan_rounds(coming: Sequence[tuple[Federation, int]]) -> tuple[list[Agenda], Any]:
    """These rounds of runs that share an engine: their agendas, and what is to be done, prepared by the engine."""
    tasks = [run.task(number, k) for run, number in coming for k in run.cohort(number)]
    return [agenda(run, number) for run, number in coming], coming[0][0].engine.prepare(tasks)


def agenda(run: Federation, round: int) -> Agenda:
    """Who will train, and with what."""
    config, cohort = run.config, run.cohort(round)
    shares, rate = run.shares[cohort], learning_rate(config.optimiser, round)
    numbers = to_device(np.array([rate, *run.varying.values(), *(shares / shares.sum())]), run.device, run.storage)
    (lr, *varying), p = numbers[: -len(cohort)], numbers[-len(cohort) :]
    counts = run.class_counts.index_select(0, to_device(np.array(cohort), run.device)).unbind()
    values = dict(zip(run.varying, varying, strict=True))
    return Agenda(round, cohort, p, counts, rate, lr, values, config.measure.locals_in(round))


def broadcast(run: Federation, agenda: Agenda) -> list[Context]:
    """What each client of the cohort knows."""
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
    made = run.algorithm.aggregate(run.state.w, run.state.server, up, p, fraction)
    check_aggregated(made, run.state.w, run.config.algorithm.name)
    return made


def close_round(
    run: Federation, agenda: Agenda, trained: Trained, w: Weights, server: dict, counts: Counts, seconds: float
) -> Record:
    """Take over the new state, and say what was measured."""
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
    """Of the trained local models, with in-local distributions p: mean and standard deviation over the cohort."""
    assert trained.test is not None
    assert trained.train is not None
    accuracies = list(zip(trained.test.class_accuracy, p, strict=True))
    return {
        **mean_and_std("in_local", [in_local(a, p) for a, p in accuracies]),
        **mean_and_std("out_local", [out_local(a, p) for a, p in accuracies]),
        **mean_and_std("local_train_accuracy", trained.train.accuracy),
        **mean_and_std("local_train_loss", trained.train.mean_loss),
    }
