"""`[search]`: Optuna chooses the values, the runs are ordinary runs, and the study is a SQLite file beside them.

[search]
sampler = "tpe"             grid, random or tpe
trials = 30                 not for a grid, which has as many as it has points
measure = "last10"          final, best, last10 or ema, the mean over seeds
pruner = "median"           none or median: stop a trial that is below the median of the others at its round
warmup = 5                  rounds that no trial is stopped in
batch = 1                   trials that are trained together
seed = 0                    of the sampler
[search.keys]
optimiser.lr = { low = 1e-3, high = 0.1, log = true }
algorithm.beta = [0.1, 0.3, 1.0]
"""

import itertools
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.markup import escape

from fedntd.choices import typed
from fedntd.config import Config, from_table, identity
from fedntd.data.chosen import load_dataset
from fedntd.devices import choose_device
from fedntd.errors import FedntdError, did_you_mean, require, require_one_of
from fedntd.record import RunFolder
from fedntd.report.export import need
from fedntd.report.summary import HEADINGS, summarise
from fedntd.report.wording import figure, show
from fedntd.runs import read_columns, read_run
from fedntd.sweep.execute import Event, train_group, until_settled
from fedntd.sweep.plan import Changes, Job, Sweep, job_of, runs_by_identity, safe_name, with_changes

Study: TypeAlias = Any  # Optuna's, which is an extra
Handle: TypeAlias = Any  # its Trial
stdout, stderr = Console(), Console(stderr=True)
KEYS = ("sampler", "trials", "measure", "pruner", "warmup", "batch", "seed", "keys")
RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Search:
    space: dict[str, Any]  # key -> list of choices, or a range
    sampler: str = "tpe"
    trials: int = 30
    measure: str = "final"
    pruner: str = "median"
    warmup: int = 5
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("sampler", "pruner", "measure"):
            typed(f"search.{key}", getattr(self, key), str)
        require_one_of("search.sampler", self.sampler, ("grid", "random", "tpe"))
        require_one_of("search.pruner", self.pruner, ("none", "median"))
        require_one_of("search.measure", self.measure, [key for key in HEADINGS if key != "forgetting"])
        for key in ("trials", "warmup", "batch", "seed"):
            value, least = getattr(self, key), 1 if key in ("trials", "batch") else 0
            require(type(value) is int and value >= least, f"search.{key} must be a whole number from {least}")
        require(bool(self.space), "[search.keys] names nothing to search over")
        for key, values in self.space.items():
            if isinstance(values, list):
                require(bool(values), f"search.keys: the list of '{key}' is empty")
                continue
            is_range = isinstance(values, Mapping) and {"low", "high"} <= values.keys() <= set(RANGE)
            require(is_range, f"search.keys: '{key}' must be a list, or a range such as {{ low = 0.001, high = 0.1 }}")
            require(self.sampler != "grid", f"search.keys: a grid needs a list for '{key}', not a range")
            for part, value in values.items():
                typed(f"search.keys.{key}.{part}", value, bool if part == "log" else float)


def read_search(table: Mapping[str, Any]) -> Search:
    for key in table:
        require(key in KEYS, f"unknown key 'search.{key}'; {did_you_mean(key, KEYS)}")
    rest = {key: value for key, value in table.items() if key != "keys"}
    return Search(space_of(table.get("keys", {})), **rest)


def space_of(table: Any, path: str = "") -> dict[str, Any]:
    """Flat keys; a table with `low` is a range, not a section."""
    require(isinstance(table, Mapping), "[search.keys] is a section")
    space: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and "low" not in value
        space |= space_of(value, f"{path}{key}.") if nested else {f"{path}{key}": value}
    return space


# --- trials -----------------------------------------------------------------------------------------------------


def open_study(asked: Search, out: Path) -> Study:
    optuna = need("optuna", "sweep", "a search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "grid": lambda: optuna.samplers.RandomSampler(seed=asked.seed),  # the points are all handed to it below
        "random": lambda: optuna.samplers.RandomSampler(seed=asked.seed),
        "tpe": lambda: optuna.samplers.TPESampler(seed=asked.seed),
    }
    pruners = {
        "none": lambda: optuna.pruners.NopPruner(),
        "median": lambda: optuna.pruners.MedianPruner(n_warmup_steps=asked.warmup + 1),
    }
    return optuna.create_study(
        storage=f"sqlite:///{out.resolve()}/search.db",
        study_name="search",
        direction="maximize",
        sampler=samplers[asked.sampler](),
        pruner=pruners[asked.pruner](),
        load_if_exists=True,
    )


def grid_of(asked: Search) -> list[Changes]:
    """All points of a grid, in order; none for the other samplers."""
    if asked.sampler != "grid":
        return []
    return [dict(zip(asked.space, values, strict=True)) for values in itertools.product(*asked.space.values())]


def distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    """The lists and ranges as Optuna has them, and checks them."""
    kinds = need("optuna", "sweep", "a search").distributions
    found = {}
    for key, values in space.items():
        try:
            if isinstance(values, list):
                found[key] = kinds.CategoricalDistribution(values)
            else:
                whole = all(type(value) is int for part, value in values.items() if part != "log")
                found[key] = (kinds.IntDistribution if whole else kinds.FloatDistribution)(**values)
        except ValueError as error:
            raise FedntdError(f"search.keys: '{key}' cannot be searched over: {error}") from error
    return found


def check_same_choices(study: Study, space: Mapping[str, Any]) -> None:
    """A study that goes on may have other ranges, but not other lists."""
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


def search(asked: Sweep, file: Path, out: Path, dry_run: bool, as_json: bool) -> int:
    """Ask, train, tell, until there are as many trials as were asked for. The exit code."""
    from fedntd.sweep.cli import begin

    settings = read_search(asked.search)
    space = distributions(settings.space)
    example = from_table(with_changes(asked.base, {key: first_of(value) for key, value in settings.space.items()}))
    choose_device(example)
    load_dataset(example)
    trials = len(grid_of(settings)) or settings.trials
    stderr.print(
        f"[bold]{escape(asked.name)}[/]: {trials} trials by {settings.sampler} × {len(asked.seeds)} seeds, "
        f"at most {trials * len(asked.seeds) * example.federation.rounds} rounds, in {escape(str(out))}",
        soft_wrap=True,
    )
    if dry_run:
        return 0
    if (out / "search.db").exists():
        check_same_choices(open_study(settings, out), space)
    begin(out, file)
    study = open_study(settings, out)
    for point in grid_of(settings):
        study.enqueue_trial(point, skip_if_exists=True)
    renew_abandoned(study)
    try:
        while (left := trials - settled(study)) > 0:
            there = runs_by_identity(out)
            batch = [
                make_trial(study.ask(space), settings, asked, out, there) for _ in range(min(left, settings.batch))
            ]
            play(study, batch, settings)
    except KeyboardInterrupt:
        stderr.print(f"interrupted; go on with: fedntd sweep {escape(str(file))} --out {escape(str(out))}")
        return 130
    return tell(study, settings, as_json, out)


def first_of(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value["low"]


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
    """Its runs are those that are there, or join them: trials of one batch that chose the same values share them."""
    changes = {key: handle.params[key] for key in settings.space}
    name = ",".join(f"{key.split('.')[-1]}={show(value)}" for key, value in changes.items())
    jobs = []
    for seed in asked.seeds:
        config = from_table(with_changes(asked.base, {**changes, "seed": seed}))
        folder = safe_name(f"{name},seed={seed}" if len(asked.seeds) > 1 else name)
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
        with closing(until_settled(train_group, [*todo.values()])) as events:
            stopped = watch(events, batch)
        if not stopped:
            break
    optuna = need("optuna", "sweep", "a search")
    for trial in batch:
        if trial.failed:
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
        stdout.print(f"{done} trials finished, {states.count('PRUNED')} pruned, {failed} failed", highlight=False)
        if best and best.value is not None:
            chosen = ", ".join(f"{key} = {show(value)}" for key, value in best.params.items())
            stdout.print(f"best: {chosen} ({settings.measure} {figure('final', best.value)} %)", highlight=False)
        stdout.print(f"look at it: fedntd report {escape(str(out))}", soft_wrap=True, highlight=False)
    return 1 if failed else 0
