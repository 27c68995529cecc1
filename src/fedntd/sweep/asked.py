"""Collect runs from run folders and ledgers, or only those that a sweep file asks for."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedntd.config.schema import Config, own_names
from fedntd.config.toml import flat, how, identity
from fedntd.errors import require
from fedntd.runs.ledger import is_ledger, read_recorded
from fedntd.runs.reader import Run, find_runs, read_sound
from fedntd.sweep.jobs import read_sweep


def collect(places: Sequence[Path], sweep: Path | None) -> tuple[list[Run], int]:
    """Return the runs in these run folders and ledgers, and their planned number.

    With a `sweep` file, only the runs that it asks for; the planned number is then the number of runs in the file.
    """
    runs: list[Run] = []
    for place in places:
        if is_ledger(place):
            runs += read_recorded(place)
        else:
            runs += read_sound(find_runs([place]), "columns", "starts", named=places)
    runs = list({run.path.resolve(): run for run in runs}.values())  # folders may repeat or be nested
    if sweep is None:
        return runs, len(runs)
    wanted = [planned.config for planned in read_sweep(sweep).runs]
    # A run may be both in a ledger and in a folder: keep one, and prefer a finished one.
    by_identity = {identity(run.config): run for run in sorted(runs, key=lambda run: run.status == "finished")}
    found = [
        run for config in wanted if (run := by_identity.get(identity(config)) or run_with(config, by_identity.values()))
    ]
    require(bool(found), f"none of the {len(runs)} runs is one of {sweep}")
    return found, len(wanted)


def run_with(config: Config, runs: Iterable[Run]) -> Run | None:
    """Find the run of a config that names the user's own code.

    Its identity does not match the run's, since the defaults of that code are unknown until it is imported.
    """
    if not own_names(config):
        return None
    settings = flat(config)
    wanted = {key: settings[key] for key in settings.keys() - how(settings)}

    def has_all(run: Run) -> bool:
        present = flat(run.config)
        return all(key in present and present[key] == value for key, value in wanted.items())

    return next(filter(has_all, runs), None)
