"""`[search]`: Optuna chooses the values, the runs are ordinary runs, and the study is a SQLite file beside them."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.markup import escape

from fedntd.config.build import load_dataset
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import from_table, identity
from fedntd.engine.devices import choose_device
from fedntd.errors import FedntdError, require
from fedntd.report.export import need
from fedntd.report.summary import summarise
from fedntd.runs.reader import read_columns, read_run
from fedntd.runs.record import RunFolder
from fedntd.support.wording import count, figure, show
from fedntd.sweep.execute import Event, train_group, until_settled
from fedntd.sweep.folder import working_in
from fedntd.sweep.jobs import Changes, Job, Sweep, free_name, job_of, runs_by_identity, with_changes
from fedntd.sweep.pictures import readable, storage_of
from fedntd.sweep.show import Board, passing
from fedntd.sweep.space import Search, check_values, distributions, grid_of, read_search
from fedntd.sweep.terminal import same_command

Study: TypeAlias = Any  # Optuna's, which is an extra
Handle: TypeAlias = Any  # its Trial
stdout, stderr = Console(), Console(stderr=True)


# --- trials -----------------------------------------------------------------------------------------------------


def open_study(asked: Search, out: Path) -> Study:
    optuna = need("optuna", "sweep", "a search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "none": lambda: optuna.pruners.NopPruner(),
        "median": lambda: optuna.pruners.MedianPruner(n_warmup_steps=asked.warmup + 1),
    }
    with readable(out / "search.db"):
        return optuna.create_study(
            storage=storage_of(out),
            study_name="search",
            direction="maximize",
            pruner=pruners[asked.pruner](),
            load_if_exists=True,
        )


def sampler_of(asked: Search, number: int) -> Any:
    """For the trial of this number, with a seed of its own: a search that goes on must not draw the values again that
    it began with."""
    samplers = need("optuna", "sweep", "a search").samplers
    seed = int(np.random.SeedSequence([asked.seed, number]).generate_state(1)[0])
    # the points of a grid are all handed to the study, so nothing is left to draw
    return samplers.TPESampler(seed=seed) if asked.sampler == "tpe" else samplers.RandomSampler(seed=seed)


def kind_of(asked: Sweep, settings: Search) -> dict[str, Any]:
    """What all trials of a study have in common: values of another kind cannot be compared."""
    return {
        "measure": settings.measure,
        "list of seeds": [*asked.seeds],
        "base or other settings": identity(with_own_code(from_table(asked.base))),
    }


def check_same(study: Study, kind: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    """A study that goes on may have other ranges, but not other lists, nor trials of another kind."""
    for key, value in kind.items():
        same = study.user_attrs.get(key, value) == value
        require(same, f"the search.db there began with another {key}; choose another --out")
    check = need("optuna", "sweep", "a search").distributions.check_distribution_compatibility
    for was in {repr(trial.distributions): trial.distributions for trial in study.trials}.values():
        for key in was.keys() & space.keys():
            try:
                check(was[key], space[key])
            except ValueError:
                raise FedntdError(
                    f"the choices of '{key}' are not those that the search.db there began with; choose another --out"
                ) from None


@dataclass
class Trial:
    """A choice of values, and its runs: one for each seed."""

    number: int
    handle: Handle
    changes: Changes
    jobs: list[Job]
    failed: str = ""
    pruned: bool = False

    def accuracy(self, round: int) -> float | None:
        """After this round, the mean over the seeds; None while some have not come to it."""
        curves = [read_columns(job.folder / "records.jsonl")["accuracy"] for job in self.jobs]
        return float(np.mean([c[round - 1] for c in curves])) if all(len(c) >= round for c in curves) else None

    def value(self, measure: str) -> float:
        return float(np.mean([getattr(summarise(read_run(job.folder)), measure) for job in self.jobs]))


def search(asked: Sweep, table: Mapping[str, Any], file: Path, out: Path, dry_run: bool, as_json: bool) -> int:
    """Ask, train, tell, until there are as many trials as were asked for. The exit code."""
    settings = read_search(table)
    space = distributions(settings.space)
    example = check_values(asked, settings, space)
    choose_device(example)
    load_dataset(example)
    trials = len(grid_of(settings)) or settings.trials
    stderr.print(
        f"[bold]{escape(asked.name)}[/]: {count(trials, 'trial')} by {settings.sampler} × "
        f"{count(len(asked.seeds), 'seed')}, at most "
        f"{count(trials * len(asked.seeds) * example.federation.rounds, 'round')}, in {escape(str(out))}",
        soft_wrap=True,
    )
    if dry_run:
        if as_json:
            print(json.dumps({"trials": trials, "seeds": len(asked.seeds), "rounds": example.federation.rounds}))
        else:
            tell_cost(example, asked.seeds, min(settings.batch, trials), trials)
        return 0
    kind = kind_of(asked, settings)
    if (out / "search.db").exists():
        check_same(open_study(settings, out), kind, space)
    with working_in(out, file):
        study = open_study(settings, out)
        for key, value in kind.items():
            study.set_user_attr(key, value)
        enqueue(study, grid_of(settings))
        renew_abandoned(study)
        try:
            while (done := settled(study)) < trials:
                there = runs_by_identity(out)
                batch = []
                for number in range(done, min(done + settings.batch, trials)):
                    study.sampler = sampler_of(settings, number)
                    batch.append(make_trial(study.ask(space), settings, asked, out, there))
                with redirect_stdout(sys.stderr):  # the answer alone goes there, not what a method prints
                    play(study, batch, settings)
        except KeyboardInterrupt:
            stderr.print(escape(f"interrupted; go on with: {same_command()}"), soft_wrap=True)
            return 130
        return tell(study, settings, as_json, out)


def tell_cost(example: Config, seeds: Sequence[int], batch: int, trials: int) -> None:
    """What the search takes if all trials are like this one."""
    from fedntd.sweep.cost import estimate, told

    together = [Job("", replace(example, seed=seed), Path()) for _ in range(batch) for seed in seeds]
    with stderr.status("measuring a few rounds"):
        (one,) = estimate([together])
    if one.failure:
        told_why = f"[red]a trial failed when it was tried:[/] {escape(one.failure)}"
        stdout.print(told_why, soft_wrap=True, highlight=False)
    time, memory = told(one._replace(seconds=one.seconds * trials / batch))
    stdout.print(f"about {time} and {memory} if no trial is stopped; nothing was written", highlight=False)


def enqueue(study: Study, points: Sequence[Changes]) -> None:
    """Each point of a grid once. Optuna itself would take two for one whose numbers are close to each other."""
    known = {trial.user_attrs.get("point") for trial in study.trials}
    for point in points:
        name = json.dumps(point, sort_keys=True)
        if name not in known:
            study.enqueue_trial(point, user_attrs={"point": name})


def settled(study: Study) -> int:
    return sum(trial.state.is_finished() and "abandoned" not in trial.user_attrs for trial in study.trials)


def renew_abandoned(study: Study) -> None:
    """Trials that were under way when a search ended are asked for again, with the same values: their runs are found by
    content and go on."""
    optuna = need("optuna", "sweep", "a search")
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study._storage.set_trial_user_attr(trial._trial_id, "abandoned", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)


def make_trial(handle: Handle, settings: Search, asked: Sweep, out: Path, there: dict[str, Job]) -> Trial:
    """Its runs are those that are there, or join them: trials of one batch that chose the same values share them. A
    trial whose values do not go together has failed."""
    changes = {key: handle.params[key] for key in settings.space}
    name = ",".join(f"{key.split('.')[-1]}={show(value)}" for key, value in changes.items())
    jobs = []
    for seed in asked.seeds:
        try:
            config = with_own_code(from_table(with_changes(asked.base, {**changes, "seed": seed})))
        except FedntdError as error:
            return Trial(handle.number, handle, changes, [], failed=str(error))
        folder = free_name(f"{name},seed={seed}" if len(asked.seeds) > 1 else name, identity(config), set())
        jobs.append(job_of(folder, config, out, there))
        there[identity(config)] = jobs[-1]
    return Trial(handle.number, handle, changes, jobs)


def play(study: Study, batch: list[Trial], settings: Search) -> None:
    """Train the runs of some trials together. A trial that is pruned stops the training for a moment: the other runs go
    on from where they were, without its own."""
    while todo := {
        job.folder: job
        for trial in batch
        if not (trial.failed or trial.pruned)
        for job in trial.jobs
        if job.status != "finished"
    }:
        events = until_settled(train_group, [*todo.values()])
        with closing(passing(events, Board.of([*todo.values()]), stderr)) as shown:
            stopped = watch(shown, batch)
        if not stopped:
            break
    optuna = need("optuna", "sweep", "a search")
    for trial in batch:
        if trial.failed:
            trial.handle.set_user_attr("reason", trial.failed)
            study.tell(trial.handle, state=optuna.trial.TrialState.FAIL)
            told = f"failed: {trial.failed}"
        elif trial.pruned:
            study.tell(trial.handle, state=optuna.trial.TrialState.PRUNED)
            told = "pruned"
        else:
            value = trial.value(settings.measure)
            study.tell(trial.handle, value)
            told = f"{settings.measure} {figure('final', value)} %"
        best = [t.value for t in study.trials if t.value is not None and t.state.name == "COMPLETE"]
        chosen = ", ".join(f"{key}={show(value)}" for key, value in trial.changes.items())
        so_far = f"  (best {figure('final', max(best))} %)" if best else ""
        stderr.print(escape(f"trial {trial.number}: {chosen}  {told}{so_far}"), soft_wrap=True, highlight=False)


def watch(events: Any, batch: list[Trial]) -> bool:
    """Report rounds to the study; True as soon as a trial is to be stopped."""
    told: set[tuple[str, int]] = set()
    event: Event
    for event in events:
        trials = [trial for trial in batch if event["run"] in (job.name for job in trial.jobs)]  # of the same values
        jobs = trials[0].jobs
        if "failed" in event:
            for trial in trials:
                trial.failed = event["failed"]
            if len(jobs) > 1:
                return True  # the other seeds of it are not worth the time
            continue
        round = event["round"]
        accuracy = None if (jobs[0].name, round) in told else trials[0].accuracy(round)
        if accuracy is None:
            continue
        told.add((jobs[0].name, round))
        for trial in trials:
            trial.handle.report(accuracy, round)
            trial.pruned = round < jobs[0].config.federation.rounds and trial.handle.should_prune()
        if any(trial.pruned for trial in trials):
            events.close()
            for job in jobs:
                mark_pruned(job.folder, job.config, round)
            return True
    return False


def mark_pruned(path: Path, config: Config, round: int) -> None:
    with RunFolder(path, config, resume=True) as folder:
        folder.put_status("pruned", f"below the median of the other trials after round {round}")


def tell(study: Study, settings: Search, as_json: bool, out: Path) -> int:
    states = [trial.state.name for trial in study.trials if "abandoned" not in trial.user_attrs]
    done, failed = states.count("COMPLETE"), states.count("FAIL")
    best = study.best_trial if done else None
    if as_json:
        found = {"best": best.params, settings.measure: best.value} if best else {"best": None}
        print(json.dumps(found | {"trials": len(states), "pruned": states.count("PRUNED"), "failed": failed}))
    else:
        counts = f"{count(done, 'trial')} finished, {states.count('PRUNED')} pruned, {failed} failed"
        stdout.print(counts, highlight=False)
        for reason, trials in failures(study).items():
            numbers = ("trials " if len(trials) > 1 else "trial ") + ", ".join(map(str, trials))
            stdout.print(f"[red]failed:[/] {numbers}: {escape(reason)}", soft_wrap=True, highlight=False)
        if best and best.value is not None:
            chosen = ", ".join(f"{key} = {show(value)}" for key, value in best.params.items())
            stdout.print(f"best: {chosen} ({settings.measure} {figure('final', best.value)} %)", highlight=False)
        stdout.print(f"look at it: fedntd report {escape(str(out))}", soft_wrap=True, highlight=False)
    return 1 if failed else 0


def failures(study: Study) -> dict[str, list[int]]:
    """Reason -> the trials that failed for it, in this search or before it was started again."""
    found: dict[str, list[int]] = {}
    for trial in study.trials:
        if "reason" in trial.user_attrs:
            found.setdefault(trial.user_attrs["reason"], []).append(trial.number)
    return found
