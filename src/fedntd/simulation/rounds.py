"""A round of several runs that share an engine: all their clients are trained at once."""

import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from fedntd import tree
from fedntd.engine.devices import fetched, make_current
from fedntd.errors import Diverged
from fedntd.runs.record import Record

if TYPE_CHECKING:
    from fedntd.simulation.federation import Federation


class Agenda(NamedTuple):
    """What is known of a round beforehand. So a GPU has it before it is done with the round before."""

    number: int
    cohort: list[int]
    p: Tensor  # each client's weight in the mean
    class_counts: tuple[Tensor, ...]  # of each
    rate: float  # of learning
    lr: Tensor  # the same, on the device
    values: dict[str, Tensor]  # hyper-parameters in which runs that are trained together differ
    measure_locals: bool


def play_together(runs: Sequence["Federation"]) -> list[Record | Diverged]:
    """The next round of runs that share an engine, all their clients trained at once; `seconds` are a run's share."""
    started = time.perf_counter()
    leader, engine = runs[0], runs[0].engine
    make_current(leader.device)
    new = [run for run in runs if run.before is None]
    for run, counts in zip(new, engine.test([run.state.w for run in new]) if new else [], strict=True):
        run.before = counts.class_accuracy

    # local training, aggregation, and the test of the new global models
    coming = [(run, run.state.round + 1) for run in runs]
    planned, upcoming = leader.upcoming
    agendas, prepared = upcoming if planned == names_of(coming) else plan_rounds(coming)  # not if some runs have ended
    contexts = [ctx for run, agenda in zip(runs, agendas, strict=True) for ctx in run.contexts(agenda)]
    together = engine.train(prepared, contexts, any(agenda.measure_locals for agenda in agendas))
    ends = np.cumsum([len(agenda.cohort) for agenda in agendas])
    trained = [together.part(slice(end - len(one.cohort), end)) for end, one in zip(ends, agendas, strict=True)]
    new_states = [run.aggregate(one, part.up) for run, one, part in zip(runs, agendas, trained, strict=True)]
    tested = engine.test([w for w, _ in new_states])
    finite = [tree.all_finite(w) for w, _ in new_states]

    # a GPU is still busy with all that: the time to plan the next round
    going_on = [(run, number + 1) for run, number in coming if number < run.rounds]
    if going_on:
        going_on[0][0].upcoming = names_of(going_on), plan_rounds(going_on)

    measured = [(part.loss, part.test, part.train) for part in trained]
    measured, tested, finite = fetched((measured, tested, finite), leader.device)
    seconds = (time.perf_counter() - started) / len(runs)
    return [
        run.close_round(one, part._replace(loss=loss, test=test, train=train), *state, counts, seconds)
        if good
        else Diverged(f"the global weights are not finite after round {one.number}; a lower optimiser.lr may help")
        for run, one, part, (loss, test, train), state, counts, good in zip(
            runs, agendas, trained, measured, new_states, tested, finite, strict=True
        )
    ]


def names_of(rounds: Sequence[tuple["Federation", int]]) -> list[tuple]:
    """What a plan is for: these rounds of these runs, as they are set up now.

    By weak references: a run that kept itself would not be freed when it is forgotten, nor its memory on a GPU; and
    another may come to lie where a forgotten one was.
    """
    return [(weakref.ref(run), number, run.config) for run, number in rounds]


def plan_rounds(coming: Sequence[tuple["Federation", int]]) -> tuple[list[Agenda], Any]:
    """These rounds of runs that share an engine: their agendas, and what is to be done, prepared by the engine."""
    tasks = [task for run, number in coming for task in run.tasks(number)]
    return [run.agenda(number) for run, number in coming], coming[0][0].engine.prepare(tasks)
