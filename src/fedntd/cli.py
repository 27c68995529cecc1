"""The command line: run, compare, report, algorithms, bench, data."""

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedntd.algorithms import ALGORITHMS
from fedntd.algorithms.requirements import requirements
from fedntd.bench import measure_speed
from fedntd.config import from_table, read, with_settings
from fedntd.data.cli import AsJson, Settings
from fedntd.data.cli import app as data_app
from fedntd.errors import FedntdError, require
from fedntd.federation import Diverged, federate
from fedntd.flower.cli import app as flower_app
from fedntd.models.cnn import CNN
from fedntd.models.functional import Model
from fedntd.presets import find_table
from fedntd.record import Record, read_run
from fedntd.report.summary import compare_json, compare_table

app = typer.Typer(
    help="Federated learning under heterogeneous data: train FedNTD and other methods, measure what they forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")

stdout = Console()
SIZES = ("state_bytes", "extra_up_bytes", "extra_down_bytes")
stderr = Console(stderr=True)

RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.", show_default=False)
]


@app.command()
def run(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG.toml|PRESET]",
            help="A config file, or a preset such as [b]demo[/b], [b]cifar10-s2[/b], [b]cifar10-lda0.1[/b], "
            "[b]mnist-s2[/b], [b]cifar100-s10[/b], [b]cinic10-lda0.1[/b].",
            show_default="demo",
        ),
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The run folder.", show_default="runs/<name>")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, killed or interrupted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one federation and keep its records in a run folder.

    Example: [b]fedntd run cifar10-s2 --set algorithm.name=fedavg --set seed=1 --out runs/fedavg-1[/b]

    Resume:  [b]fedntd run --resume --out runs/fedavg-1[/b]
    """
    require(not resume or out is not None, "--resume needs --out DIR: the folder of the run to go on with")
    if resume and out is not None and source is None:
        table = read(out / "config.toml") if out.is_dir() else {}
    else:
        table = find_table(source or "demo")
    config = from_table(with_settings(table, settings or []))
    if out is None:
        stem = Path(source).stem if source and source.endswith(".toml") else (source or "demo")
        out = free_folder(Path("runs") / f"{stem}-{config.algorithm.name.split(':')[-1]}-seed{config.seed}")

    label = f"{config.algorithm.name} on {config.data.name}"
    records = federate(config, out=out, resume=resume)
    try:
        for _ in show_progress(records, config.federation.rounds, label):
            pass
    except Diverged as error:
        stderr.print(
            f"[bold red]failed:[/] {escape(str(error))}\nrecords are kept in {escape(str(out))}", soft_wrap=True
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        records.close()
        started = (out / "config.toml").exists()
        advice = f"go on with: fedntd run --resume --out {out}" if started else "nothing was written yet"
        stderr.print(f"interrupted; {escape(advice)}", soft_wrap=True)
        raise typer.Exit(130) from None
    finished = [read_run(out)]
    if as_json:
        print(json.dumps(compare_json(finished)[0]))
    else:
        stdout.print(compare_table(finished))
        stdout.print(f"run folder: {escape(str(out))}", soft_wrap=True)


@app.command()
def compare(runs: RunFolders, as_json: AsJson = False) -> None:
    """Print a table of runs; runs that differ only in seed become one row, mean ± std.

    Example: [b]fedntd compare runs/demo/fedavg runs/demo/fedntd[/b]
    """
    found = [read_run(path) for path in find_runs(runs)]
    if as_json:
        print(json.dumps(compare_json(found), indent=1))
    else:
        stdout.print(compare_table(found))


@app.command()
def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="Also write each figure here, as PNG and PDF.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about one run, or several side by side.

    Example: [b]fedntd report runs/demo -o report.html --figures figures[/b]
    """
    # matplotlib takes its time to import
    from fedntd.report.figures import save_figures
    from fedntd.report.html import write_report

    found = [read_run(path) for path in find_runs(runs)]
    written = write_report(found, out)
    stdout.print(f"report: {escape(str(written.resolve()))}", soft_wrap=True)
    if figures is not None:
        files = save_figures(found, figures)
        stdout.print(f"figures: {len(files)} files in {escape(str(figures.resolve()))}", soft_wrap=True)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the methods: their settings, and what each asks for beyond FedAvg on the paper's CIFAR-10 network.

    Found out from the definitions: state that a client keeps, extra bytes sent up and down by one client in a round,
    extra forward and backward passes in a step, and data that belongs to no client.

    Example: [b]fedntd algorithms --json[/b]
    """
    w = Model(CNN((3, 32, 32), 10)).weights()
    rows = []
    for name, method in ALGORITHMS.items():
        settings = {f.name: f.default for f in fields(method)}
        rows.append({"name": name, "settings": settings, **requirements(method(), w)._asdict()})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("method", "settings", box=SIMPLE_HEAD)
    for title in ("state", "up", "down", "forwards", "backwards", "aux. data"):
        table.add_column(title, justify="right")
    for row in rows:
        sizes = (
            f"{row[key] / 1e6:.1f} MB" if row[key] >= 1e5 else f"{row[key]} B" if row[key] else "–" for key in SIZES
        )
        passes = (f"+{row[key]}" if row[key] else "–" for key in ("extra_forwards", "extra_backwards"))
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], settings, *sizes, *passes, "yes" if row["auxiliary_data"] else "–")
    stdout.print(table)


@app.command()
def bench(as_json: AsJson = False) -> None:
    """Measure the speed of this machine in a minute: rounds of the demo in each engine and precision that it has.

    Example: [b]fedntd bench[/b]
    """
    speeds = []
    for speed in measure_speed():
        speeds.append(speed)
        print(f"{speed.device}, {speed.engine}, {speed.precision}: {speed.round:.3f} s a round", file=sys.stderr)
    if as_json:
        print(json.dumps([speed._asdict() for speed in speeds], indent=1))
        return
    table = Table("device", "engine", "precision", box=SIMPLE_HEAD)
    for title in ("first round", "a round", "samples a second"):
        table.add_column(title, justify="right")
    for speed in speeds:
        times = (f"{speed.first_round:.2f} s", f"{speed.round:.3f} s", f"{speed.samples_per_second:,.0f}")
        table.add_row(speed.device, speed.engine, speed.precision, *times)
    stdout.print(table)


def show_progress(records: Iterator[Record], rounds: int, label: str) -> Iterator[Record]:
    """Pass the records on; in a terminal with a live bar, else with a plain line for each round."""
    if not stderr.is_terminal:
        for record in records:
            line = f"{label}  round {record.round}/{rounds}  accuracy {100 * record.accuracy:.2f} %"
            print(f"{line}  F {record.forgetting:.3f}  {record.seconds:.2f} s", file=sys.stderr, flush=True)
            yield record
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("accuracy [bold]{task.fields[accuracy]}[/]"),
        TextColumn("F {task.fields[forgetting]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, expand=True) as progress:
        task = progress.add_task(label, total=rounds, accuracy="–", forgetting="–", speed="")
        for record in records:
            progress.update(
                task,
                completed=record.round,
                accuracy=f"{100 * record.accuracy:5.2f} %",
                forgetting=f"{record.forgetting:.3f}",
                speed=f"{record.seconds:.2f} s/round",
            )
            yield record


def find_runs(paths: list[Path]) -> list[Path]:
    """The run folders among `paths`, and those right inside them."""
    found: list[Path] = []
    for path in paths:
        require(path.exists(), f"there is no folder {path}")
        inside = sorted(config.parent for config in path.glob("*/config.toml"))
        require(
            bool(inside) or (path / "config.toml").exists(),
            f"{path} is neither a run folder nor a folder of run folders",
        )
        found += [path] if (path / "config.toml").exists() else inside
    return list(dict.fromkeys(found))


def free_folder(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2."""
    sys.path.insert(0, "")  # as `python -m` has it, so that a method or model in the current folder can be named
    try:
        app()
    except FedntdError as error:
        stderr.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
