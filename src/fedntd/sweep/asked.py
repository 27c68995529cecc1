"""The runs that are there, of those that a sweep's file asks for."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedntd.config.schema import Config, own_names
from fedntd.config.toml import flat, how, identity
from fedntd.errors import require
from fedntd.runs.ledger import is_ledger, read_recorded
from fedntd.runs.reader import Run, find_runs, read_sound
from fedntd.sweep.jobs import read_sweep


def collect(places: Sequence[Path], sweep: Path | None) -> tuple[list[Run], int]:
    """The runs in these run folders and ledgers, or only those that a sweep's file asks for; and how many it does."""
    runs: list[Run] = []
    for place in places:
        if is_ledger(place):
            runs += read_recorded(place)
        else:
            runs += read_sound(find_runs([place]), "columns", "starts", named=places)
    runs = list({run.path.resolve(): run for run in runs}.values())  # a folder may be given twice, or lie in another
    if sweep is None:
        return runs, len(runs)
    wanted = [planned.config for planned in read_sweep(sweep).runs]
    # one of each, rather one that has finished: a run may be in a ledger and have its folder
    had = {identity(run.config): run for run in sorted(runs, key=lambda run: run.status == "finished")}
    found = [run for one in wanted if (run := had.get(identity(one)) or run_with(one, had.values()))]
    require(bool(found), f"none of the {len(runs)} runs is one of {sweep}")
    return found, len(wanted)


def run_with(asked: Config, runs: Iterable[Run]) -> Run | None:
    """The run of a config that names code of the user's own, whose defaults only those know who import it."""
    if not own_names(asked):
        return None
    settings = flat(asked)
    wanted = {key: settings[key] for key in settings.keys() - how(settings)}

    def has_all(run: Run) -> bool:
        had = flat(run.config)
        return all(key in had and had[key] == value for key, value in wanted.items())

    return next(filter(has_all, runs), None)
