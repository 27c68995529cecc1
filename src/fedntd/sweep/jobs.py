"""Read a sweep file: from TOML to configs, jobs (a config with its run folder) and groups of jobs.

    base = "demo"                         a preset, or a config file relative to this one; default: the defaults
    seeds = [0, 1, 2]
    [settings]                            changes to the base for all runs
    [grid]                                every combination of the listed values
    [zip]                                 the first values together, then the second values together, ...
    [[runs]]                              one table per run; lists in it stand for all combinations, as in [grid]
    [search]                              values that Optuna chooses (search.py)

The parts are combined: each of `runs` with each point of the grid, each point of the zip and each seed.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedntd.config import presets
from fedntd.config.build import load_dataset
from fedntd.config.grids import expand
from fedntd.config.schema import Config, make_algorithm
from fedntd.config.toml import from_table, identity, read, toml_value, with_settings
from fedntd.config.trust import is_sweep_copy, require_trust
from fedntd.config.unlabelled import unlabelled
from fedntd.engine.devices import choose_device, device_name
from fedntd.errors import FedntdError, require, require_known
from fedntd.simulation.sharing import shape
from fedntd.support.wording import show, thing

KEYS = ("base", "seeds", "settings", "grid", "zip", "runs", "search", "together")
MOST_TOGETHER = {"cpu": 8, "cuda": 32}  # runs in one group; larger groups are no faster on a CPU
Thing = TypeVar("Thing")
Changes = dict[str, Any]  # "section.key" -> value


@dataclass(frozen=True)
class Planned:
    """A run that a sweep asks for."""

    name: str  # of its folder: the settings in which it differs from the other runs
    config: Config


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read and expanded."""

    name: str
    base: Mapping[str, Any]
    runs: list[Planned]
    asked: int  # number of runs that the file lists, repetitions included
    together: int = 0  # most runs in one group; 0: chosen by the device
    search: Mapping[str, Any] | None = None
    seeds: Sequence[int] = (0,)


def read_sweep(
    file: Path,
    settings: Iterable[str] = (),
    trust: bool = False,
    prepare: Callable[[Config], Config] | None = None,
) -> Sweep:
    """Read a sweep file and expand it into runs; `settings` (KEY=VALUE) change its base.

    `prepare` is applied to every config. Pass `with_own_code` to import the user's own code, as training needs.
    """
    table = read(file)
    for key in table:
        require_known(key, KEYS, f"unknown key '{key}' in {file}")
    if prepare is None:  # a command that only reads imports nothing, so it needs no trust
        prepare, trust = as_read, True
    source = find_base(table.get("base", {}), file.parent, trust)
    if is_sweep_copy(file):
        require_trust({**table, "base": source}, file, trust)
    base = with_settings(with_changes(source, flatten(section(table, "settings"))), settings)
    check_base(base, prepare)  # so that a mistake in the base is not reported for each run
    seeds = table.get("seeds", [])
    require(
        isinstance(seeds, list) and all(type(seed) is int for seed in seeds),
        f"seeds must be a list of whole numbers, not {seeds!r}",
    )
    require(bool(seeds) or "seeds" not in table, "the list of 'seeds' is empty")
    together = table.get("together", 0)
    require(type(together) is int and together >= 0, f"together must be a whole number from 0, not {together!r}")
    search = section(table, "search")
    if "search" in table:
        for key in ("grid", "zip", "runs"):
            require(
                key not in table, f"{file} has [search] and '{key}'; put the values to choose from in [search.keys]"
            )
        return Sweep(file.stem, base, [], 0, together, search, seeds or [from_table(base).seed])
    points = all_points(table, seeds)
    require(bool(points), f"{file} asks for no run: 'runs' or a list in [zip] is empty")
    return Sweep(file.stem, base, planned_runs(base, points, prepare), len(points), together)


def as_read(config: Config) -> Config:
    return config


def find_base(source: Any, folder: Path, trust: bool) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    require(isinstance(source, str), f"base must be a preset, a config file or a table, not {source!r}")
    file = folder / source
    return presets.find_table(str(file) if file.is_file() else source, trust)


def check_base(base: Mapping[str, Any], prepare: Callable[[Config], Config]) -> None:
    try:
        prepare(from_table(base))
    except FedntdError as error:
        if not isinstance(flatten(base).get(error.key), list):
            raise
        raise FedntdError(f"{error}; a list of values to try goes into [grid]") from error


def section(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    require(isinstance(value, Mapping), f"'{key}' is a section, written [{key}], not a single value")
    return value


# --- what varies ------------------------------------------------------------------------------------------------


def all_points(table: Mapping[str, Any], seeds: Sequence[int]) -> list[Changes]:
    """The changes to the base that define each run."""
    run_tables = table.get("runs", [{}])
    require(
        isinstance(run_tables, list) and all(isinstance(run, Mapping) for run in run_tables),
        "'runs' is a list of tables, each written [[runs]]",
    )
    parts = [
        [point for run in run_tables for point in grid_points(run)],
        grid_points(section(table, "grid")),
        zip_points(section(table, "zip")),
        [{"seed": seed} for seed in seeds] or [{}],
    ]
    merged = []
    for combination in itertools.product(*parts):
        keys = [key for part in combination for key in part]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        require(twice is None, f"'{twice}' is varied twice; let one of seeds, grid, zip and runs do it")
        merged.append({key: value for part in combination for key, value in part.items()})
    return merged


def grid_points(table: Mapping[str, Any]) -> list[Changes]:
    """Every combination of the listed values.

    >>> grid_points({"algorithm": {"name": ["fedntd"], "beta": [0.1, 1.0]}})
    [{'algorithm.name': 'fedntd', 'algorithm.beta': 0.1}, {'algorithm.name': 'fedntd', 'algorithm.beta': 1.0}]
    >>> grid_points({"partition": [{"name": "iid"}, {"name": "lda", "alpha": 0.1}]})
    [{'partition.name': 'iid'}, {'partition.name': 'lda', 'partition.alpha': 0.1}]
    """
    return [flatten(point) for _, point in expand(flatten(table))]


def zip_points(table: Mapping[str, Any]) -> list[Changes]:
    """The first values of all lists, the second values of all lists, and so on.

    >>> zip_points({"partition.name": ["lda", "iid"], "seed": [1, 2]})
    [{'partition.name': 'lda', 'seed': 1}, {'partition.name': 'iid', 'seed': 2}]
    """
    flat = flatten(table)
    for key, values in flat.items():
        require(isinstance(values, list), f"'{key}' in [zip] must be a list, not {values!r}")
    lengths = {key: len(values) for key, values in flat.items()}
    counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
    require(len(set(lengths.values())) <= 1, f"lists in [zip] must be equally long, but {counts}")
    if not flat:
        return [{}]
    return [flatten(dict(zip(flat, values, strict=True))) for values in zip(*flat.values(), strict=True)]


def flatten(table: Mapping[str, Any], path: str = "") -> Changes:
    """Nested tables as one table with dotted keys.

    >>> flatten({"seed": 1, "algorithm": {"name": "fedavg"}, "optimiser.lr": 0.1})
    {'seed': 1, 'algorithm.name': 'fedavg', 'optimiser.lr': 0.1}
    """
    flat: Changes = {}
    for key, value in table.items():
        part = flatten(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
        twice = next((key for key in part if key in flat), None)
        require(twice is None, f"'{twice}' is given twice in one section, once as a table and once in quotes")
        flat |= part
    return flat


def with_changes(table: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    for key in changes:
        require("=" not in key, f"'{key}' is no key of a setting")  # it would become another key, and its value
    return with_settings(table, [f"{key}={toml_value(value)}" for key, value in changes.items()])


# --- runs and their names ---------------------------------------------------------------------------------------


def planned_runs(
    base: Mapping[str, Any], points: Sequence[Changes], prepare: Callable[[Config], Config]
) -> list[Planned]:
    """The runs without repetitions: two points may be the same run, such as FedNTD by name and by default."""
    runs: dict[str, Planned] = {}
    taken: set[str] = set()
    for name, changes in zip(folder_names(points), points, strict=True):
        try:
            config = prepare(from_table(with_changes(base, changes)))
        except FedntdError as error:
            if len(points) == 1:
                raise
            raise FedntdError(f"run '{name}': {error}") from error
        key = identity(config)
        if key not in runs:
            runs[key] = Planned(free_name(name, key, taken), config)
    return list(runs.values())


def folder_names(points: Sequence[Changes]) -> list[str]:
    """Name each run by the settings in which the runs differ.

    >>> folder_names([{"algorithm.name": "fedavg", "seed": 0}, {"algorithm.name": "fedntd", "seed": 0}])
    ['fedavg', 'fedntd']
    >>> folder_names([{"seed": 0, "optimiser.lr": 0.1}, {"seed": 0, "optimiser.lr": 0.01}, {"seed": 1}])
    ['lr=0.1,seed=0', 'lr=0.01,seed=0', 'seed=1']
    """
    absent = object()
    keys = [
        key
        for key in dict.fromkeys(key for point in points for key in point)
        if len({repr(point.get(key, absent)) for point in points}) > 1
    ]
    keys.sort(key=lambda key: (key == "seed", not key.endswith(".name")))  # names first, then options, then the seed
    endings = [key.split(".")[-1] for key in keys]

    def part(key: str, value: Any) -> str:
        ending = key.split(".")[-1]
        if ending == "name":
            return thing(str(value))
        return f"{ending if endings.count(ending) == 1 else key}={show(value)}"

    names = [",".join(part(key, point[key]) for key in keys if key in point) for point in points]
    return [safe_name(name) for name in names]


def safe_name(name: str) -> str:
    """`name` with characters that are safe in a folder name."""
    return re.sub(r"[^\w.=+,-]+", "_", name).strip(".") or "run"


def free_name(name: str, key: str, taken: set[str]) -> str:
    """A folder name that is not in `taken`, and is added to it; made unique or shorter with the identity `key`."""
    name = safe_name(name)
    if len(name.encode()) > 120 or name.lower() in taken:  # some file systems ignore case
        name = f"{name.encode()[:110].decode(errors='ignore')}-{key[:8]}"
    taken.add(name.lower())
    return name


# --- jobs and groups --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A run with its folder and its progress."""

    name: str
    config: Config
    folder: Path
    rounds_done: int = 0
    status: str = "new"  # or the status in the folder: finished, failed, interrupted, running, pruned


def jobs(runs: Sequence[Planned], out: Path) -> list[Job]:
    """Assign each run its folder: the existing one with the same config, or a new one."""
    existing = runs_by_identity(out)
    return [job_of(run.name, run.config, out, existing) for run in runs]


def job_of(name: str, config: Config, out: Path, existing: Mapping[str, Job]) -> Job:
    """The existing job with this config; else a new one, renamed if another run has its name."""
    key = identity(config)
    if key in existing:
        return existing[key]
    taken = (out / name / "config.toml").exists() or any(job.name == name for job in existing.values())
    name = f"{name}-{key[:8]}" if taken else name
    return Job(name, config, out / name)


def runs_by_identity(out: Path) -> dict[str, Job]:
    """The runs in a folder, by the identity of their configs.

    Each keeps its stored config: a resumed run may not change how it is computed (its engine, say).
    """
    existing: dict[str, Job] = {}
    for file in sorted(out.glob("*/config.toml")):
        try:
            config = from_table(read(file))
        except FedntdError:  # e.g. a method that no longer exists: not a run of this sweep
            continue
        job = Job(file.parent.name, config, file.parent, rounds_done(file.parent), status(file.parent))
        key = identity(config)
        if key not in existing or job.status == "finished":
            existing[key] = job
    return existing


def status(folder: Path) -> str:
    """The status that the folder records; a run that was killed may still say "running"."""
    try:
        return json.loads((folder / "status.json").read_text(encoding="utf-8"))["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return "interrupted"


def rounds_done(folder: Path) -> int:
    file = folder / "records.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def groups(planned_jobs: Sequence[Job], most: int, parts: int = 1) -> list[list[Job]]:
    """Group jobs of one shape: at most `most` in a group, and if possible at least `parts` groups."""
    most = max(1, min(most, -(-len(planned_jobs) // parts)))
    return [
        [*same[start : start + size]]
        for same in by_shape(planned_jobs, lambda job: job.config)
        for size in [-(-len(same) // -(-len(same) // most))]  # pieces of nearly equal size
        for start in range(0, len(same), size)
    ]


def by_shape(things: Iterable[Thing], config_of: Callable[[Thing], Config]) -> list[list[Thing]]:
    """Group things whose configs can be trained in one step, in order of appearance."""
    shapes: dict[str, list[Thing]] = {}
    for item in things:
        shapes.setdefault(shape(config_of(item)), []).append(item)
    return list(shapes.values())


def most_together(sweep: Sweep, planned_jobs: Sequence[Job]) -> int:
    kinds = {device_name(job.config).partition(":")[0] for job in planned_jobs}
    return sweep.together or min(MOST_TOGETHER.get(kind, 8) for kind in kinds)


def check(planned_jobs: Sequence[Job], here: bool = True) -> None:
    """Report a missing device or dataset before anything is written. With `here=False` devices are not checked, since
    the runs will be trained on another machine."""
    devices = {(job.config.device, job.config.precision): job.config for job in planned_jobs} if here else {}
    for config in devices.values():
        choose_device(config)
    todo = [job.config for job in planned_jobs if job.status != "finished"]
    for config in {config.data: config for config in todo}.values():
        load_dataset(config)
    learning_servers = [config for config in todo if make_algorithm(config).auxiliary_data]
    for config in {(config.data, config.auxiliary): config for config in learning_servers}.values():
        unlabelled(config, load_dataset(config).train.x)
