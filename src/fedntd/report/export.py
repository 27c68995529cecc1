"""Export runs: rows for CSV, Parquet and pandas, and experiment trackers."""

import csv
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from fedntd.errors import FedntdError, reason, require_one_of
from fedntd.report.summary import differing, summarise
from fedntd.runs.reader import Run, find_runs, is_locked, read_runs
from fedntd.runs.record import Record
from fedntd.support.files import whole

ROWS = ("round", "run")


def need(package: str, extra: str, what: str) -> Any:
    """Import a package; raise an error that says how to install it if it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise FedntdError(f"{what} needs the package {name}: pip install 'fedntd[{extra}]' ({error})") from None


def names_of(paths: Sequence[Path]) -> list[str]:
    """The names of the folders, with as many parent folders as are needed to make them unique."""
    absolute = [Path(os.path.abspath(path)) for path in paths]
    names = [path.name for path in absolute]
    for depth in range(2, max((len(path.parts) for path in absolute), default=0)):
        counts = Counter(names)
        pairs = zip(absolute, names, strict=True)
        names = ["/".join(path.parts[-depth:]) if counts[name] > 1 else name for path, name in pairs]
    return names


# --- rows -------------------------------------------------------------------------------------------------------


def rows_of(runs: Sequence[Run], per: str = "round") -> list[dict[str, Any]]:
    """One row per round with the settings in which runs differ, or one per run with all settings and its summary."""
    require_one_of("per", per, ROWS)
    named = list(zip(names_of([run.path for run in runs]), runs, strict=True))
    if per == "run":
        keys = list(dict.fromkeys(key for run in runs for key in run.settings))
        return [
            {"run": name, **{key: run.settings.get(key) for key in keys}, **asdict(summarise(run))}
            for name, run in named
        ]
    keys = list(dict.fromkeys(["algorithm.name", "seed", *differing(runs)]))
    measured = [f.name for f in fields(Record)]
    rows = []
    for name, run in named:
        shared = {"run": name, "status": run.status, **{key: run.settings.get(key) for key in keys}}
        rows += [shared | {key: getattr(record, key) for key in measured} for record in run.records]
    return rows


def load(folder: str | Path, per: str = "round") -> Any:
    """A pandas DataFrame of one or several runs: one row per round, or with `per="run"` one row per run.

    `folder` is a run folder or a folder of run folders.
    """
    pandas = need("pandas", "frames", "a frame")
    return pandas.DataFrame(rows_of(read_runs([Path(folder)], "columns" if per == "run" else "records"), per))


def write_rows(runs: Sequence[Run], file: Path, per: str) -> None:
    """Write runs to a .csv or .parquet file, with one row per "round" or per "run"."""
    require_one_of("ending", file.suffix, (".csv", ".parquet"))
    rows = rows_of(runs, per)
    with whole(file) as aside:
        if file.suffix == ".csv":
            with open(aside, "w", newline="", encoding="utf-8") as opened:
                writer = csv.DictWriter(opened, list(rows[0]) if rows else ["run"])
                writer.writeheader()
                writer.writerows(rows)
        else:
            need("pyarrow", "frames", "Parquet")
            frame = need("pandas", "frames", "Parquet").DataFrame(of_one_kind(rows))
            frame.to_parquet(aside, engine="pyarrow", index=False)


def of_one_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert settings with values of several kinds to text, since a Parquet column has one type.

    Two methods may have a setting of the same name that is a word in one and a number in the other.
    """
    measured = {f.name for f in fields(Record)}
    kinds_of: dict[str, set[str]] = {}
    for row in rows:
        for key in row.keys() - measured:
            kinds_of.setdefault(key, set()).update(kinds(row[key]))
    mixed = {key for key, its_kinds in kinds_of.items() if len(its_kinds) > 1}
    return [{k: str(v) if k in mixed and v is not None else v for k, v in row.items()} for row in rows]


def kinds(value: Any) -> set[str]:
    """The kinds of a value: one, or for a list those of its elements. Two for what Parquet cannot hold."""
    if isinstance(value, list):
        return {f"list of {kind}" for element in value for kind in kinds(element)}
    if isinstance(value, Mapping) or (isinstance(value, int) and abs(value) >= 2**63):
        return {"one", "another"}  # two, so that the column becomes text
    return set() if value is None else {"number" if type(value) in (int, float) else type(value).__name__}


# --- trackers ---------------------------------------------------------------------------------------------------
# Each function opens a run in a tracker and returns two functions: one logs a record, the other closes the run.

Opened = tuple[Callable[[Record], None], Callable[[str], None]]


def measures(record: Record) -> dict[str, float]:
    """The scalars of a record that were measured."""
    return {
        f.name: float(value)
        for f in fields(record)
        if f.name != "round" and isinstance(value := getattr(record, f.name), int | float)
    }


def tensorboard(run: Run, name: str, out: Path) -> Opened:
    """Write event files to `out`; show them with: tensorboard --logdir OUT."""
    need("tensorboard", "tensorboard", "TensorBoard")
    from torch.utils.tensorboard.writer import SummaryWriter

    # Hide what an earlier export of this run wrote; otherwise every round would appear twice.
    writer = SummaryWriter(str(out / name), purge_step=0)
    writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in run.settings.items()))

    def log(record: Record) -> None:
        for key, value in measures(record).items():
            writer.add_scalar(key, value, record.round)

    return log, lambda _: writer.close()


def wandb(run: Run, name: str, out: Path) -> Opened:
    """Log to Weights & Biases; with WANDB_MODE=offline, files stay in `out` until `wandb sync`."""
    package = need("wandb", "wandb", "Weights & Biases")
    opened = package.init(
        project=os.environ.get("WANDB_PROJECT", "fedntd"),
        id=run.key,  # so that exporting a run again continues the same one
        resume="allow",
        name=name,
        dir=str(out),
        config=run.settings,
        reinit="create_new",
        settings=package.Settings(console="off", silent=True),
    )
    if opened.offline:
        for folder in (out / "wandb").glob(f"offline-run-*-{run.key}"):  # from an earlier export; rewritten in full
            if folder.resolve() not in Path(opened.dir).resolve().parents:
                shutil.rmtree(folder, ignore_errors=True)

    def log(record: Record) -> None:
        if record.round >= opened.starting_step:
            opened.log(measures(record), step=record.round)

    return log, lambda status: opened.finish(exit_code=int(status == "failed"))


def mlflow(run: Run, name: str, out: Path) -> Opened:
    """Log to MLFLOW_TRACKING_URI, or to `out`; show with: mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db."""
    package = need("mlflow", "mlflow", "MLflow")
    client = package.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out.resolve()}/mlflow.db")
    existing = client.get_experiment_by_name("fedntd")
    experiment = existing.experiment_id if existing else client.create_experiment("fedntd")
    entities = package.entities
    earlier = client.search_runs([experiment], f"tags.fedntd = '{run.key}'", max_results=1)
    if earlier:  # exported before: continue that run
        key = earlier[0].info.run_id
        client.update_run(key, status="RUNNING")
        last = max((metric.step for metric in client.get_metric_history(key, "accuracy")), default=0)
    else:
        key, last = client.create_run(experiment, run_name=name, tags={"fedntd": run.key}).info.run_id, 0
        client.log_batch(key, params=[entities.Param(name, str(value)) for name, value in run.settings.items()])

    def log(record: Record) -> None:
        if record.round <= last:
            return
        now = round(1000 * time.time())
        metrics = [entities.Metric(name, value, now, record.round) for name, value in measures(record).items()]
        client.log_batch(key, metrics)  # one transaction: ten times as fast as one by one

    return log, lambda status: client.set_terminated(key, "FAILED" if status == "failed" else "FINISHED")


TRACKERS: dict[str, Callable[[Run, str, Path], Opened]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


@contextmanager
def speaking_to(tracker: str, out: Path) -> Iterator[None]:
    """Turn any error of a tracker into one sentence."""
    try:
        yield
    except OSError as error:
        raise FedntdError(f"{out} cannot be written to: {error.strerror or error}; choose another --out") from error
    except FedntdError:
        raise
    except Exception as error:  # e.g. a missing login, or no connection to its server
        raise FedntdError(f"{tracker} cannot be used: {reason(error)}") from error


def open_run(tracker: str, run: Run, name: str, out: Path) -> Opened:
    out.mkdir(parents=True, exist_ok=True)
    return TRACKERS[tracker](run, name, out)


def track(folders: Sequence[Path], tracker: str, out: Path, follow: bool) -> Iterator[Run]:
    """Export all records to a tracker, and yield each run when it is done.

    With `follow`, also export new records until no run is training and no sweep is working in `folders`. Meanwhile
    interrupted runs stay open, and failed ones while a sweep is working, since it may resume them. A run that was
    killed and resumed repeats some rounds with the same records; these are exported once.
    """
    opened: dict[Path, tuple[Opened, int]] = {}
    over: set[Path] = set()
    wait = True
    while wait:
        sweeping = follow and any(
            is_locked(folder, ".sweep-lock") for folder in folders
        )  # read before the runs, so that none is missed
        paths = find_runs(folders)
        names = dict(zip(paths, names_of(paths), strict=True))
        runs = read_runs(folders, "records", "starts", over=over)
        over |= {*paths} - {run.path for run in runs}  # warn about a damaged folder once
        wait = sweeping or (follow and any(run.status == "running" for run in runs))
        for run in runs:
            ends = not wait or run.status in ("finished", "pruned") or (run.status == "failed" and not sweeping)
            with speaking_to(tracker, out):
                (log, close), done = opened.get(run.path) or (open_run(tracker, run, names[run.path], out), 0)
                for record in run.records[done:]:
                    log(record)
                opened[run.path] = (log, close), max(done, len(run.records))
                if ends:
                    close(run.status)
            if ends:
                over.add(run.path)
                yield run
        if wait:
            time.sleep(1)
