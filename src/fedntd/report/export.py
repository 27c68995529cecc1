"""Runs for other programs: rows for CSV, Parquet and pandas, and the trackers that people already use."""

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
    """The package, or one sentence that says how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise FedntdError(f"{what} needs the package {name}: pip install 'fedntd[{extra}]' ({error})") from None


def names_of(paths: Sequence[Path]) -> list[str]:
    """Those of the folders; where some are the same, with as much of what is around them as tells them apart."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    names = [path.name for path in whole]
    for depth in range(2, max((len(path.parts) for path in whole), default=0)):
        times = Counter(names)
        names = ["/".join(p.parts[-depth:]) if times[name] > 1 else name for p, name in zip(whole, names, strict=True)]
    return names


# --- rows -------------------------------------------------------------------------------------------------------


def rows_of(runs: Sequence[Run], per: str = "round") -> list[dict[str, Any]]:
    """One row a round, with the settings that differ; or one row a run, with all settings and its figures."""
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
        same = {"run": name, "status": run.status, **{key: run.settings.get(key) for key in keys}}
        rows += [same | {key: getattr(record, key) for key in measured} for record in run.records]
    return rows


def load(folder: str | Path, per: str = "round") -> Any:
    """A pandas frame of a run folder or a folder of them: one row a round, or one row a run (`per="run"`)."""
    pandas = need("pandas", "frames", "a frame")
    return pandas.DataFrame(rows_of(read_runs([Path(folder)], "columns" if per == "run" else "records"), per))


def write_rows(runs: Sequence[Run], file: Path, per: str) -> None:
    """As the name's ending says, CSV or Parquet."""
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
    """As text, a setting of several kinds: two methods may have one of the same name, a word of one, a number of the
    other. Parquet takes one kind a column, and the same keys in all tables."""
    measured = {f.name for f in fields(Record)}
    found: dict[str, set[str]] = {}
    for row in rows:
        for key in row.keys() - measured:
            found.setdefault(key, set()).update(kinds(row[key]))
    mixed = {key for key, several in found.items() if len(several) > 1}
    return [{k: str(v) if k in mixed and v is not None else v for k, v in row.items()} for row in rows]


def kinds(value: Any) -> set[str]:
    """Those of a list are those of what is in it."""
    if isinstance(value, list):
        return {f"list of {kind}" for each in value for kind in kinds(each)}
    if isinstance(value, Mapping) or (isinstance(value, int) and abs(value) >= 2**63):
        return {"one", "another"}  # never one kind, so that it becomes text
    return set() if value is None else {"number" if type(value) in (int, float) else type(value).__name__}


# --- trackers ---------------------------------------------------------------------------------------------------
# Each opens a tracker's own run for one of ours and returns a function that takes records, and one that ends it.

Opened = tuple[Callable[[Record], None], Callable[[str], None]]


def measures(record: Record) -> dict[str, float]:
    """The single numbers of a record; what was not measured is left out."""
    return {
        f.name: float(value)
        for f in fields(record)
        if f.name != "round" and isinstance(value := getattr(record, f.name), int | float)
    }


def tensorboard(run: Run, name: str, out: Path) -> Opened:
    """Event files under `out`: tensorboard --logdir OUT."""
    need("tensorboard", "tensorboard", "TensorBoard")
    from torch.utils.tensorboard.writer import SummaryWriter

    # what an earlier export wrote for this run is no longer shown, else every round would be there twice
    writer = SummaryWriter(str(out / name), purge_step=0)
    writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in run.settings.items()))

    def log(record: Record) -> None:
        for key, value in measures(record).items():
            writer.add_scalar(key, value, record.round)

    return log, lambda _: writer.close()


def wandb(run: Run, name: str, out: Path) -> Opened:
    """Weights & Biases; with WANDB_MODE=offline the files stay under `out` until `wandb sync`."""
    package = need("wandb", "wandb", "Weights & Biases")
    opened = package.init(
        project=os.environ.get("WANDB_PROJECT", "fedntd"),
        id=run.key,  # so that a run which is handed over again is the same one there, and goes on
        resume="allow",
        name=name,
        dir=str(out),
        config=run.settings,
        reinit="create_new",
        settings=package.Settings(console="off", silent=True),
    )
    if opened.offline:
        for folder in (out / "wandb").glob(f"offline-run-*-{run.key}"):  # of earlier times: all of it is written again
            if folder.resolve() not in Path(opened.dir).resolve().parents:
                shutil.rmtree(folder, ignore_errors=True)

    def log(record: Record) -> None:
        if record.round >= opened.starting_step:
            opened.log(measures(record), step=record.round)

    return log, lambda status: opened.finish(exit_code=int(status == "failed"))


def mlflow(run: Run, name: str, out: Path) -> Opened:
    """To MLFLOW_TRACKING_URI, or a SQLite file in `out`: mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db."""
    package = need("mlflow", "mlflow", "MLflow")
    client = package.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out.resolve()}/mlflow.db")
    found = client.get_experiment_by_name("fedntd")
    experiment = found.experiment_id if found else client.create_experiment("fedntd")
    entities = package.entities
    earlier = client.search_runs([experiment], f"tags.fedntd = '{run.key}'", max_results=1)
    if earlier:  # it was handed over before: it goes on there
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
        told = [entities.Metric(name, value, now, record.round) for name, value in measures(record).items()]
        client.log_batch(key, told)  # all in one transaction: one by one takes ten times as long

    return log, lambda status: client.set_terminated(key, "FAILED" if status == "failed" else "FINISHED")


TRACKERS: dict[str, Callable[[Run, str, Path], Opened]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


@contextmanager
def speaking_to(tracker: str, out: Path) -> Iterator[None]:
    """One sentence for what a tracker says when it cannot go on."""
    try:
        yield
    except OSError as error:
        raise FedntdError(f"{out} cannot be written to: {error.strerror or error}; choose another --out") from error
    except FedntdError:
        raise
    except Exception as error:  # it may want a login, or its server
        raise FedntdError(f"{tracker} cannot be used: {reason(error)}") from error


def open_in(tracker: str, run: Run, name: str, out: Path) -> Opened:
    out.mkdir(parents=True, exist_ok=True)
    return TRACKERS[tracker](run, name, out)


def track(folders: Sequence[Path], tracker: str, out: Path, follow: bool) -> Iterator[Run]:
    """Hand all records to a tracker; with `follow`, also those to come, until no run goes on, and no sweep that may
    begin further ones. Yields what is done.

    A run that was interrupted is waited for only while others go on, since their sweep may come to it; so it may to one
    that failed. A run that was killed and resumed plays some rounds again, with the same records: they are handed over
    once.
    """
    opened: dict[Path, tuple[Opened, int]] = {}
    over: set[Path] = set()
    wait = True
    while wait:
        sweeping = follow and any(is_locked(folder, ".sweep-lock") for folder in folders)  # before its runs are read
        paths = find_runs(folders)
        names = dict(zip(paths, names_of(paths), strict=True))
        runs = read_runs(folders, "records", "starts", over=over)
        over |= {*paths} - {run.path for run in runs}  # what is damaged is told once
        wait = sweeping or (follow and any(run.status == "running" for run in runs))
        for run in runs:
            over_now = not wait or run.status in ("finished", "pruned") or (run.status == "failed" and not sweeping)
            with speaking_to(tracker, out):
                (log, close), done = opened.get(run.path) or (open_in(tracker, run, names[run.path], out), 0)
                for record in run.records[done:]:
                    log(record)
                opened[run.path] = (log, close), max(done, len(run.records))
                if over_now:
                    close(run.status)
            if over_now:
                over.add(run.path)
                yield run
        if wait:
            time.sleep(1)
