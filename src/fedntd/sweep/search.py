"""`[search]`: Optuna chooses the values. The runs are ordinary runs, and the study is a SQLite file beside them."""

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

Study: TypeAlias = Any  # optuna.Study; Optuna is an optional dependency
Handle: TypeAlias = Any  # optuna.Trial
stdout, stderr = Console(), Console(stderr=True)


# --- trials -----------------------------------------------------------------------------------------------------


def open_study(settings: Search, out: Path) -> Study:
    """Create the study in the sweep's folder, or load the one that is there."""
    optuna = need("optuna", "sweep", "a search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "none": lambda: optuna.pruners.NopPruner(),
        "median": lambda: optuna.pruners.MedianPruner(n_warmup_steps=settings.warmup + 1),
    }
    with readable(out / "search.db"):
        return optuna.create_study(
            storage=storage_of(out),
            study_name="search",
            direction="maximize",
            pruner=pruners[settings.pruner](),
            load_if_exists=True,
        )


def sampler_of(settings: Search, number: int) -> Any:
    """The sampler of trial `number`, with a seed of its own: a resumed search must not repeat its first draws."""
    samplers = need("optuna", "sweep", "a search").samplers
    seed = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0])
    # For a grid either sampler will do: all its points are enqueued, so nothing is drawn.
    return samplers.TPESampler(seed=seed) if settings.sampler == "tpe" else samplers.RandomSampler(seed=seed)


def study_kind(sweep: Sweep, settings: Search) -> dict[str, Any]:
    """What all trials of a study must share for their values to be comparable."""
    return {
        "measure": settings.measure,
        "list of seeds": [*sweep.seeds],
        "base or other settings": identity(with_own_code(from_table(sweep.base))),
    }


def check_same(study: Study, kind: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    """Raise unless a resumed study has the same kind and the same lists of choices. Ranges may change."""
    for key, value in kind.items():
        same = study.user_attrs.get(key, value) == value
        require(same, f"the search.db there began with another {key}; choose another --out")
    check = need("optuna", "sweep", "a search").distributions.check_distribution_compatibility
    for previous in {repr(trial.distributions): trial.distributions for trial in study.trials}.values():
        for key in previous.keys() & space.keys():
            try:
                check(previous[key], space[key])
            except ValueError:
                raise FedntdError(
                    f"the choices of '{key}' are not those that the search.db there began with; choose another --out"
                ) from None


@dataclass
class Trial:
    """A choice of values and its runs, one for each seed."""

    number: int
    handle: Handle
    changes: Changes
    jobs: list[Job]
    failed: str = ""
    pruned: bool = False

    def accuracy(self, round: int) -> float | None:
        """Mean accuracy over the seeds after this round; None until all seeds have reached it."""
        curves = [read_columns(job.folder / "records.jsonl")["accuracy"] for job in self.jobs]
        return float(np.mean([c[round - 1] for c in curves])) if all(len(c) >= round for c in curves) else None

    def value(self, measure: str) -> float:
        """Mean of a summary figure over the seeds."""
        return float(np.mean([getattr(summarise(read_run(job.folder)), measure) for job in self.jobs]))


def search(sweep: Sweep, table: Mapping[str, Any], file: Path, out: Path, dry_run: bool, as_json: bool) -> int:
    """Ask for trials, train them and report their values, until there are enough. Returns the exit code."""
    settings = read_search(table)
    space = distributions(settings.space)
    example = check_values(sweep, settings, space)
    choose_device(example)
    load_dataset(example)
    trials = len(grid_of(settings)) or settings.trials
    stderr.print(
        f"[bold]{escape(sweep.name)}[/]: {count(trials, 'trial')} by {settings.sampler} × "
        f"{count(len(sweep.seeds), 'seed')}, at most "
        f"{count(trials * len(sweep.seeds) * example.federation.rounds, 'round')}, in {escape(str(out))}",
        soft_wrap=True,
    )
    if dry_run:
        if as_json:
            print(json.dumps({"trials": trials, "seeds": len(sweep.seeds), "rounds": example.federation.rounds}))
        else:
            print_cost(example, sweep.seeds, min(settings.batch, trials), trials)
        return 0
    kind = study_kind(sweep, settings)
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
                existing = runs_by_identity(out)
                batch = []
                for number in range(done, min(done + settings.batch, trials)):
                    study.sampler = sampler_of(settings, number)
                    batch.append(make_trial(study.ask(space), settings, sweep, out, existing))
                with redirect_stdout(sys.stderr):  # what a method prints must not mix with the result
                    train_batch(study, batch, settings)
        except KeyboardInterrupt:
            stderr.print(escape(f"interrupted; go on with: {same_command()}"), soft_wrap=True)
            return 130
        return print_outcome(study, settings, as_json, out)


def print_cost(example: Config, seeds: Sequence[int], batch: int, trials: int) -> None:
    """Print the cost of the search, assuming that all trials are like this example."""
    from fedntd.sweep.cost import cost_texts, estimate

    together = [Job("", replace(example, seed=seed), Path()) for _ in range(batch) for seed in seeds]
    with stderr.status("measuring a few rounds"):
        (cost,) = estimate([together])
    if cost.failure:
        message = f"[red]a trial failed when it was tried:[/] {escape(cost.failure)}"
        stdout.print(message, soft_wrap=True, highlight=False)
    time, memory = cost_texts(cost._replace(seconds=cost.seconds * trials / batch))
    stdout.print(f"about {time} and {memory} if no trial is stopped; nothing was written", highlight=False)


def enqueue(study: Study, points: Sequence[Changes]) -> None:
    """Enqueue each point of a grid once. Optuna's own check would treat points with close numbers as equal."""
    known = {trial.user_attrs.get("point") for trial in study.trials}
    for point in points:
        name = json.dumps(point, sort_keys=True)
        if name not in known:
            study.enqueue_trial(point, user_attrs={"point": name})


def settled(study: Study) -> int:
    """The number of trials that have ended, without abandoned ones."""
    return sum(trial.state.is_finished() and "abandoned" not in trial.user_attrs for trial in study.trials)


def renew_abandoned(study: Study) -> None:
    """Enqueue the trials that an interrupted search left unfinished again, with the same values. Their runs are found
    by their configs and resume."""
    optuna = need("optuna", "sweep", "a search")
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study._storage.set_trial_user_attr(trial._trial_id, "abandoned", True)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)


def make_trial(handle: Handle, settings: Search, sweep: Sweep, out: Path, existing: dict[str, Job]) -> Trial:
    """Create a trial and its jobs, which are added to `existing`: trials with the same values share their runs.

    A trial whose values cannot be combined is returned as failed.
    """
    changes = {key: handle.params[key] for key in settings.space}
    name = ",".join(f"{key.split('.')[-1]}={show(value)}" for key, value in changes.items())
    jobs = []
    for seed in sweep.seeds:
        try:
            config = with_own_code(from_table(with_changes(sweep.base, {**changes, "seed": seed})))
        except FedntdError as error:
            return Trial(handle.number, handle, changes, [], failed=str(error))
        folder = free_name(f"{name},seed={seed}" if len(sweep.seeds) > 1 else name, identity(config), set())
        jobs.append(job_of(folder, config, out, existing))
        existing[identity(config)] = jobs[-1]
    return Trial(handle.number, handle, changes, jobs)


def train_batch(study: Study, batch: list[Trial], settings: Search) -> None:
    """Train the runs of a batch of trials together, and report the values to the study.

    When a trial is pruned or fails, training stops and resumes without its runs.
    """
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
            outcome = f"failed: {trial.failed}"
        elif trial.pruned:
            study.tell(trial.handle, state=optuna.trial.TrialState.PRUNED)
            outcome = "pruned"
        else:
            value = trial.value(settings.measure)
            study.tell(trial.handle, value)
            outcome = f"{settings.measure} {figure('final', value)} %"
        best = [t.value for t in study.trials if t.value is not None and t.state.name == "COMPLETE"]
        chosen = ", ".join(f"{key}={show(value)}" for key, value in trial.changes.items())
        so_far = f"  (best {figure('final', max(best))} %)" if best else ""
        stderr.print(escape(f"trial {trial.number}: {chosen}  {outcome}{so_far}"), soft_wrap=True, highlight=False)


def watch(events: Any, batch: list[Trial]) -> bool:
    """Report rounds to the study. Returns True as soon as a trial has to be stopped."""
    reported: set[tuple[str, int]] = set()
    event: Event
    for event in events:
        trials = [
            trial for trial in batch if event["run"] in (job.name for job in trial.jobs)
        ]  # several if they chose the same values
        jobs = trials[0].jobs
        if "failed" in event:
            for trial in trials:
                trial.failed = event["failed"]
            if len(jobs) > 1:
                return True  # its other seeds are not worth training
            continue
        round = event["round"]
        accuracy = None if (jobs[0].name, round) in reported else trials[0].accuracy(round)
        if accuracy is None:
            continue
        reported.add((jobs[0].name, round))
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


def print_outcome(study: Study, settings: Search, as_json: bool, out: Path) -> int:
    """Print the best trial and why trials failed. Returns the exit code."""
    states = [trial.state.name for trial in study.trials if "abandoned" not in trial.user_attrs]
    done, failed = states.count("COMPLETE"), states.count("FAIL")
    best = study.best_trial if done else None
    if as_json:
        answer = {"best": best.params, settings.measure: best.value} if best else {"best": None}
        print(json.dumps(answer | {"trials": len(states), "pruned": states.count("PRUNED"), "failed": failed}))
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
    """Reason -> numbers of the trials that failed for it, including those before the search was resumed."""
    reasons: dict[str, list[int]] = {}
    for trial in study.trials:
        if "reason" in trial.user_attrs:
            reasons.setdefault(trial.user_attrs["reason"], []).append(trial.number)
    return reasons
