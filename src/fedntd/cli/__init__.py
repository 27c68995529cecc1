"""The command line: run, sweep, compare, report, export, leaderboard, algorithms, bench, data, paper."""

import json
import platform
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedntd import __version__
from fedntd.cli.algorithms import algorithms
from fedntd.cli.data import AsJson, Settings, Trust
from fedntd.cli.data import app as data_app
from fedntd.cli.flower import app as flower_app
from fedntd.cli.paper import app as paper_app
from fedntd.cli.progress import Outcomes, method_of, show_progress
from fedntd.config.grids import expand
from fedntd.config.presets import find_table
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import from_table, identity, with_settings
from fedntd.errors import Diverged, FedntdError, require, require_one_of, told
from fedntd.report.compare import compare_json, compare_table
from fedntd.report.export import ROWS, TRACKERS, track, write_rows
from fedntd.report.latex import compare_latex
from fedntd.report.leaderboard import collect, leaderboard, made_of, put_into
from fedntd.report.statistics import extras, parse_target
from fedntd.report.wording import count, thing, write_in_any_locale
from fedntd.runs.reader import read_run, read_runs
from fedntd.runs.record import Record
from fedntd.simulation.speed import measure_speed
from fedntd.simulation.together import federate, federate_together
from fedntd.support.collector import collector_paused
from fedntd.support.interrupts import ending_once
from fedntd.sweep.cli import sweep
from fedntd.sweep.pictures import search_pictures
from fedntd.sweep.plan import free_name

app = typer.Typer(
    help="Federated learning under heterogeneous data: train FedNTD and other methods, measure what they forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def tell_versions(asked: bool) -> None:
    if asked:
        print(f"fedntd {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_versions, is_eager=True, help="Show the versions in use and exit."),
    ] = False,
) -> None: ...


app.add_typer(data_app, name="data")
app.add_typer(paper_app, name="paper")
app.add_typer(flower_app, name="flower")

stdout, stderr = Console(), Console(stderr=True)
OF_SWEEPS = {"base", "settings", "grid", "zip", "runs", "search"}  # keys that the settings of a run never have

RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.", show_default=False)
]

By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY", help="Group runs by this setting alone, e.g. algorithm.name; repeatable."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option("--baseline", metavar="METHOD|KEY=VALUE", help="Difference to these runs, paired over seeds."),
]
Target = Annotated[
    float | None, typer.Option("--target", metavar="PERCENT", help="Rounds and bytes until this accuracy.")
]


@app.command()
def run(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG.toml|PRESET]",
            help="A config file, or a preset such as [b]demo[/b], [b]cifar10-s2[/b], [b]cifar10-lda0.1[/b], "
            "[b]mnist-s2[/b], [b]cifar100-s10[/b], [b]cinic10-lda0.1[/b], [b]fedalign[/b].",
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
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train one federation and keep its records in a run folder; or several at once, where a key is a list.

    Example: [b]fedntd run cifar10-s2 --set algorithm.name=fedavg --set seed=1 --out runs/fedavg-1[/b]

    Several: [b]fedntd run cifar10-s2 --set 'seeds=[0,1,2]' --set 'algorithm.beta=[0.5,1.0]' --out runs/beta[/b]

    Resume:  [b]fedntd run --resume --out runs/fedavg-1[/b]
    """
    require(not resume or out is not None, "--resume needs --out DIR: the folder of the run to go on with")
    if resume and out is not None and source is None:
        require((out / "config.toml").is_file(), f"there is no run to resume in {out}; leave out --resume to start")
        table = find_table(str(out / "config.toml"), trust, of_run=True)
    else:
        table = find_table(source or "demo", trust)
        require(not table.keys() & OF_SWEEPS, f"{source} is the file of a sweep; train it with: fedntd sweep {source}")
    names, tables = zip(*expand(with_settings(table, settings or []), table), strict=True)
    configs = [with_own_code(from_table(table)) for table in tables]
    several = names != ("",)
    out = out or free_folder(default_folder(source or "demo", configs[0], several))
    outs = folders_of(names, configs, out) if several else [out]

    if several:
        outcomes = federate_together(configs, outs, resume)
    else:
        outcomes = outcomes_of(federate(configs[0], out=out, resume=resume))
    failed: dict[Path, FedntdError] = {}
    try:
        for i, outcome in show_progress(outcomes, configs, names, stderr):
            if isinstance(outcome, FedntdError):
                failed[outs[i]] = outcome
    except KeyboardInterrupt:
        outcomes.close()
        again = "the same command and --resume" if several else f"fedntd run --resume --out {out}"
        started = any((folder / "config.toml").exists() for folder in outs)
        then = f"go on with: {again}" if started else "nothing was written yet"
        stderr.print(f"interrupted; {escape(then)}", soft_wrap=True)
        raise typer.Exit(130) from None
    for folder, error in failed.items():
        kept = f"\nrecords are kept in {folder}" if (folder / "config.toml").exists() else f" ({folder.name})"
        stderr.print(f"[bold red]failed:[/] {escape(f'{error}{kept}')}", soft_wrap=True)
    finished = [read_run(folder) for folder in outs if folder not in failed]
    if as_json:
        found = compare_json(finished)
        print(json.dumps(found if several else found[0] if found else None))
    elif finished:
        stdout.print(compare_table(finished))
        stdout.print(f"{'run folders in' if several else 'run folder'}: {escape(str(out))}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


app.command()(sweep)  # here, since the help lists commands in this order


@app.command()
@collector_paused()
def compare(
    runs: RunFolders,
    by: By = None,
    baseline: BaselineOption = None,
    target: Target = None,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, for a paper.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a table of runs; runs that differ only in seed become one row, mean ± std.

    Example: [b]fedntd compare runs/demo/fedavg runs/demo/fedntd[/b]

    Of a sweep: [b]fedntd compare runs/my-sweep --by algorithm.name --baseline fedavg --target 50[/b]

    For a paper: [b]fedntd compare runs/my-sweep --latex > table.tex[/b]
    """
    require(not (as_latex and as_json), "--latex and --json are two ways to print one table; choose one")
    found = read_runs(runs, "columns")
    columns = extras(found, baseline, parse_target(target))
    if as_json:
        print(json.dumps(compare_json(found, by or (), columns), indent=1))
    elif as_latex:
        print(compare_latex(found, by or (), columns), end="")
    else:
        stdout.print(compare_table(found, by or (), columns))


@app.command()
@collector_paused()
def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="Also write each figure here, as PNG and PDF.")
    ] = None,
    by: By = None,
    baseline: BaselineOption = None,
    target: Target = None,
) -> None:
    """Write one self-contained HTML page about one run, several side by side, or a sweep.

    Example: [b]fedntd report runs/demo -o report.html --figures figures[/b]
    """
    from fedntd.report.html import View, write_report

    found = read_runs(runs, "columns", "starts", "counts")
    pictures = [picture for path in runs for picture in search_pictures(path)]
    written = write_report(found, out, view=View(by or (), baseline, parse_target(target), pictures))
    stdout.print(f"report: {escape(str(written.resolve()))}", soft_wrap=True)
    if figures is not None:
        from fedntd.report.figures import save_figures  # matplotlib takes its time to import

        files = save_figures(found, figures, by or (), baseline)
        stdout.print(f"figures: {len(files)} files in {escape(str(figures.resolve()))}", soft_wrap=True)


@app.command()
def export(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="A .csv or .parquet file, or a folder.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TRACKER", help="[b]tensorboard[/b], [b]wandb[/b] or [b]mlflow[/b].")
    ] = None,
    per: Annotated[
        str, typer.Option("--per", help="Rows of a file: one a [b]round[/b], or one a [b]run[/b].")
    ] = "round",
    follow: Annotated[bool, typer.Option("--follow", help="Go on while runs go on (with --to).")] = False,
) -> None:
    """Hand runs over to other programs: as a CSV or Parquet file, or to a tracker.

    Example: [b]fedntd export runs/my-sweep -o sweep.parquet[/b]

    Or:      [b]fedntd export runs/my-sweep --to tensorboard -o logs --follow[/b]
    """
    require_one_of("--per", per, ROWS)
    if to is None:
        require(not follow, "--follow needs --to: a file is written once")
        require(out.suffix in (".csv", ".parquet"), f"{out} must end in .csv or .parquet; or name a tracker with --to")
        found = read_runs(runs, "columns" if per == "run" else "records")
        write_rows(found, out, per)
    else:
        require_one_of("--to", to, TRACKERS)
        found = []
        for done in track(runs, to, out, follow):
            found.append(done)
            print(f"{done.name}: {count(len(done.records), 'round')}, {done.status}", file=sys.stderr, flush=True)
    stdout.print(f"{count(len(found), 'run')} to {escape(str(out))}", soft_wrap=True, highlight=False)


@app.command("leaderboard")
def write_leaderboard(
    runs: RunFolders,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="PAGE.md", help="Write it into this page, between its marks; a new one is made."
        ),
    ] = None,
    of: Annotated[Path | None, typer.Option(metavar="SWEEP.toml", help="Only the runs that this asks for.")] = None,
) -> None:
    """Print a table of methods by the other settings of a sweep, as Markdown: mean accuracies of the last ten rounds.

    Of run folders, and of ledgers that [b]fedntd paper record[/b] has written.

    Example: [b]fedntd leaderboard runs/leaderboard -o docs/leaderboard.md[/b]
    """
    found, planned = collect(runs, of)
    table = leaderboard(found)
    if out is None:
        print(table, end="")
        return
    put_into(out, "leaderboard", f"\n\n{made_of(found, planned)}\n\n{table}\n")
    stdout.print(f"leaderboard: {escape(str(out))}", soft_wrap=True)


app.command()(algorithms)


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


def outcomes_of(records: Generator[Record]) -> Outcomes:
    """Of one run by itself, as if it were one of several."""
    try:
        for record in records:
            yield 0, record
    except Diverged as error:
        yield 0, error


def folders_of(names: Sequence[str], configs: Sequence[Config], out: Path) -> list[Path]:
    """Of several runs, right inside `out`, where others look for them."""
    taken: set[str] = set()
    return [out / free_name(name, identity(config), taken) for name, config in zip(names, configs, strict=True)]


def default_folder(source: str, config: Config, several: bool) -> Path:
    stem = Path(source).stem if source.endswith(".toml") else source
    end = "" if several else f"-seed{config.seed}"
    return Path("runs") / f"{stem}-{thing(method_of(config))}{end}"


def free_folder(path: Path) -> Path:
    """`path`, or the first of path-2, path-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2."""
    write_in_any_locale()
    try:
        with ending_once():
            app()
    except Exception as error:
        stderr.print(f"[bold red]error:[/] {escape(told(error))}", soft_wrap=True)
        sys.exit(2)
