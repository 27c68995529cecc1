"""`fedntd run`: train one federation, or several at once."""

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedntd.cli.options import AsJson, Settings, Trust
from fedntd.cli.progress import Outcomes, method_of, show_progress
from fedntd.config.grids import expand
from fedntd.config.presets import find_table
from fedntd.config.schema import Config, with_own_code
from fedntd.config.toml import from_table, identity, with_settings
from fedntd.errors import Diverged, FedntdError, require
from fedntd.report.compare import compare_json, compare_table
from fedntd.runs.reader import read_run
from fedntd.runs.record import Record
from fedntd.simulation.together import federate, federate_together
from fedntd.support.wording import thing
from fedntd.sweep.jobs import free_name

stdout, stderr = Console(), Console(stderr=True)
OF_SWEEPS = {"base", "settings", "grid", "zip", "runs", "search"}  # keys that only a sweep file has


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
    resume: Annotated[bool, typer.Option("--resume", help="Resume the interrupted or killed run in --out.")] = False,
    trust: Trust = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print device, engine and precision, and why a run is slower than it could be."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Example: [b]fedntd run cifar10-s2 --set algorithm.name=fedavg --set seed=1 --out runs/fedavg-1[/b]

    Several: [b]fedntd run cifar10-s2 --set 'seeds=[0,1,2]' --set 'algorithm.beta=[0.5,1.0]' --out runs/beta[/b]

    Resume:  [b]fedntd run --resume --out runs/fedavg-1[/b]
    """
    require(not resume or out is not None, "--resume needs --out DIR: the folder of the run to resume")
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
    described: set[Path] = set()
    try:
        for i, outcome in show_progress(outcomes, configs, names, stderr):
            if isinstance(outcome, FedntdError):
                failed[outs[i]] = outcome
            elif verbose and outs[i] not in described:
                described.add(outs[i])
                print_engine(outs[i], names[i])
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
        rows = compare_json(finished)
        print(json.dumps(rows if several else rows[0] if rows else None))
    elif finished:
        stdout.print(compare_table(finished))
        stdout.print(f"{'run folders in' if several else 'run folder'}: {escape(str(out))}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def print_engine(folder: Path, name: str) -> None:
    """Print engine, device, precision and the engine's notes. Called after the first round, when all is compiled."""
    environment = read_run(folder).environment
    stderr.print(
        f"{f'{name}: ' if name else ''}{environment.get('engine')} engine, "
        f"{environment['device']}, {environment.get('precision')}",
        soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    for note in environment.get("notes", []):
        stderr.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)


def outcomes_of(records: Generator[Record]) -> Outcomes:
    """The records of a single run in the form that `federate_together` yields."""
    try:
        for record in records:
            yield 0, record
    except Diverged as error:
        yield 0, error


def folders_of(names: Sequence[str], configs: Sequence[Config], out: Path) -> list[Path]:
    """A folder in `out` for each of several runs."""
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
