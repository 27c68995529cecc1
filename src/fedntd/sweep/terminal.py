"""`fedntd sweep`: read, plan, train, tell."""

import json
import shlex
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape

from fedntd.cli.data import AsJson, Settings, Trust
from fedntd.config.build import load_dataset
from fedntd.config.schema import make_algorithm, with_own_code
from fedntd.config.unlabelled import unlabelled
from fedntd.engine.devices import choose_device, device_name
from fedntd.errors import FedntdError, require, require_one_of
from fedntd.runs.record import PATIENCE
from fedntd.support.files import whole
from fedntd.support.wording import count
from fedntd.sweep import execute, show
from fedntd.sweep.plan import Job, Sweep, groups, jobs, read_sweep

stdout, stderr = Console(), Console(stderr=True)
MOST_TOGETHER = {"cpu": 8, "cuda": 32}  # runs in one group: on a CPU there is nothing to gain from more


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What to run.", show_default=False)],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The sweep's folder.", show_default="runs/<name>")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it takes, from a few measured rounds.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", "-w", help="Processes side by side; 0: one for each GPU, or this one alone.")
    ] = 0,
    on: Annotated[
        str, typer.Option("--on", help="[b]here[/b], [b]ray[/b], [b]ray:ADDRESS[/b], or [b]slurm[/b] (write a script).")
    ] = "here",
    part: Annotated[
        str,
        typer.Option("--part", metavar="I/N", help="Only every N-th group, from the I-th (from 0): for job arrays."),
    ] = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train many runs: those of one shape together, the rest in a queue. Start it again to go on where it was.

    Example: [b]fedntd sweep experiments/sweep-demo.toml --dry-run[/b]

    Exit codes: 0 all runs finished, 1 some failed, 2 bad input, 130 interrupted.
    """
    require(workers >= 0, f"--workers must be at least 0, not {workers}")
    where, _, address = on.partition(":")
    require_one_of("--on", where, ("here", "ray", "slurm"))
    require(where == "ray" or on == where, f"--on {on}: only ray takes an address")
    require(where != "slurm" or not workers, "--on slurm: each task is one process, for one group; leave --workers")
    asked = read_sweep(file, settings or [], trust, with_own_code)
    out = out or Path("runs") / asked.name
    if asked.search is not None:
        from fedntd.sweep.search import search  # Optuna is an extra

        require(
            on == "here" and not part and workers < 2, "a search runs in one process, here; leave --on and --workers"
        )
        raise typer.Exit(search(asked, asked.search, file, out, dry_run, as_json))

    if not workers and where == "here":
        workers = max(1, len(execute.visible_gpus()))
    planned = jobs(asked.runs, out)
    check(planned, here=where != "slurm")
    grouped = groups(planned, most_together(asked, planned), max(1, workers))
    mine = part_of(grouped, part)
    if not as_json:
        tell_plan(asked, out, planned, mine, dry_run)
    if dry_run:
        if as_json:
            print(json.dumps([[job.name for job in group] for group in mine], indent=1))
        return
    if where == "slurm":
        from fedntd.sweep.slurm import write_script

        script = write_script(file, settings or [], out, len(grouped))
        submit = shlex.join(["sbatch", str(script)])
        if as_json:
            print(json.dumps({"tasks": len(grouped), "submit": submit}))
        else:
            stdout.print(escape(f"job array of {count(len(grouped), 'task')}: {submit}"), soft_wrap=True)
        return

    todo = [left for group in mine if (left := [job for job in group if job.status != "finished"])]
    board = show.Board.of([job for group in mine for job in group])
    if where == "ray" and todo:
        from fedntd.sweep.on_ray import on_ray

        with stderr.status("joining the Ray cluster" if address else "starting Ray"):
            events = on_ray(todo, out, address or None, workers)
    else:
        events = execute.here(todo) if workers == 1 else execute.in_processes(todo, min(workers, max(1, len(todo))))
    with working_in(out, file, alone=not part):
        raise typer.Exit(carry_out(events, board, out, as_json))


def most_together(asked: Sweep, planned: Sequence[Job]) -> int:
    kinds = {device_name(job.config).partition(":")[0] for job in planned}
    return asked.together or min(MOST_TOGETHER.get(kind, 8) for kind in kinds)


def part_of(grouped: list[list[Job]], part: str) -> list[list[Job]]:
    if not part:
        return grouped
    first, slash, every = part.partition("/")
    require(
        bool(slash) and first.isdecimal() and every.isdecimal() and int(first) < int(every),
        f"--part takes I/N with I from 0 and below N, such as 0/4, not '{part}'",
    )
    return grouped[int(first) :: int(every)]


def check(planned: Sequence[Job], here: bool = True) -> None:
    """What would fail every run is said before anything is written: a device that is not there, data that is not. The
    device of another machine is not looked for."""
    devices = {(job.config.device, job.config.precision): job.config for job in planned} if here else {}
    for config in devices.values():
        choose_device(config)
    todo = [job.config for job in planned if job.status != "finished"]
    for config in {config.data: config for config in todo}.values():
        load_dataset(config)
    learning_servers = [config for config in todo if make_algorithm(config).auxiliary_data]
    for config in {(config.data, config.auxiliary): config for config in learning_servers}.values():
        unlabelled(config, load_dataset(config).train.x)


@contextmanager
def working_in(out: Path, file: Path, alone: bool = True) -> Iterator[None]:
    """The sweep's folder, with a copy of its file. No two sweeps work in one folder, unless each has its part of it."""
    lock = FileLock(out / ".sweep-lock")
    require(not out.is_file(), f"{out} is a file, not a folder; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        require(not (out / "config.toml").exists(), f"{out} is the folder of a single run; choose another --out")
        if alone:
            lock.acquire(timeout=PATIENCE)
        if file.resolve() != (out / "sweep.toml").resolve():
            with whole(out / "sweep.toml") as aside:
                shutil.copyfile(file, aside)
    except Timeout:
        raise FedntdError(f"another sweep is working on {out}; wait for it or choose another --out") from None
    except OSError as error:
        raise FedntdError(f"{out} cannot be written to: {error.strerror}; choose another --out") from error
    try:
        yield
    finally:
        lock.release()


def same_command() -> str:
    """What to type to go on: also the settings that were given there are part of the runs."""
    return shlex.join(["fedntd", *sys.argv[1:]])


def tell_plan(asked: Sweep, out: Path, planned: Sequence[Job], mine: Sequence[Sequence[Job]], measure: bool) -> None:
    runs = sum(map(len, mine))
    rounds = sum(map(show.rounds_left, mine))
    same = f" ({asked.asked - len(planned)} asked for twice)" if asked.asked > len(planned) else ""
    finished = sum(job.status == "finished" for group in mine for job in group)
    kept = f", {finished} of them finished" if finished else ""
    stderr.print(
        f"[bold]{escape(asked.name)}[/]: {count(runs, 'run')}{same}{kept}, in {count(len(mine), 'group')}, "
        f"{count(rounds, 'round')} to go, in {escape(str(out))}",
        soft_wrap=True,
    )
    if not measure:
        return
    from fedntd.sweep.estimate import estimate, told

    with stderr.status("measuring a few rounds"):
        estimates = estimate(mine)
    stdout.print(show.plan_table(mine, [told(one) for one in estimates]))
    for number, one in enumerate(estimates, start=1):
        if one.failure:
            told_why = f"[red]a run of group {number} failed when it was tried:[/] {escape(one.failure)}"
            stdout.print(told_why, soft_wrap=True, highlight=False)
    total = show.duration(sum(one.seconds for one in estimates))
    stdout.print(f"about {total} on one device, one group after the other; nothing was written")


def carry_out(events: Generator[execute.Event], board: show.Board, out: Path, as_json: bool) -> int:
    """Train, tell how it went; the exit code."""
    interrupted = False
    try:
        # what methods and Ray print meanwhile must not come between the lines of the answer
        with redirect_stdout(sys.stderr), closing(events):
            show.follow(events, board, stderr)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        rows = [{"run": row.name, "status": row.status, "reason": row.reason} for row in board.rows.values()]
        print(json.dumps(rows, indent=1))
    else:
        for text in show.summary_lines(board, interrupted):
            stdout.print(text, soft_wrap=True, highlight=False)
        look = shlex.join(["fedntd", "compare", str(out)])
        then = f"go on with: {same_command()}" if interrupted else f"look at it: {look}"
        stdout.print(escape(then), soft_wrap=True, highlight=False)
    return 130 if interrupted else 1 if board.count("failed") else 0
