"""`fedntd sweep`: read a sweep file, plan its runs, train them, and print the outcome."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedntd.cli.options import AsJson, Settings, Trust
from fedntd.config.schema import with_own_code
from fedntd.errors import require, require_one_of
from fedntd.support.wording import count
from fedntd.sweep import execute
from fedntd.sweep.folder import working_in
from fedntd.sweep.jobs import Job, check, groups, jobs, most_together, read_sweep
from fedntd.sweep.show import Board
from fedntd.sweep.slurm import write_script
from fedntd.sweep.terminal import carry_out, tell_plan

stdout, stderr = Console(), Console(stderr=True)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep file.", show_default=False)],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The sweep's folder.", show_default="runs/<name>")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its cost, estimated from a few measured rounds.")
    ] = False,
    workers: Annotated[
        int, typer.Option("--workers", "-w", help="Worker processes; 0: one per GPU, or only this one.")
    ] = 0,
    on: Annotated[
        str,
        typer.Option("--on", help="[b]here[/b], [b]ray[/b], [b]ray:ADDRESS[/b], or [b]slurm[/b] (writes a script)."),
    ] = "here",
    part: Annotated[
        str,
        typer.Option("--part", metavar="I/N", help="Train every N-th group, starting at I (from 0); for job arrays."),
    ] = "",
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Example: [b]fedntd sweep experiments/sweep-demo.toml --dry-run[/b]

    Exit codes: 0 all runs finished, 1 some failed, 2 bad input, 130 interrupted.
    """
    require(workers >= 0, f"--workers must be at least 0, not {workers}")
    where, _, address = on.partition(":")
    require_one_of("--on", where, ("here", "ray", "slurm"))
    require(where == "ray" or on == where, f"--on {on}: only ray takes an address")
    require(where != "slurm" or not workers, "--on slurm: each task is one process for one group; leave out --workers")
    planned = read_sweep(file, settings or [], trust, with_own_code)
    out = out or Path("runs") / planned.name
    if planned.search is not None:
        from fedntd.sweep.search import search  # Optuna is an extra

        require(
            on == "here" and not part and workers < 2,
            "a search runs in one process on this machine; leave out --on, --part and --workers",
        )
        raise typer.Exit(search(planned, planned.search, file, out, dry_run, as_json))

    if not workers and where == "here":
        workers = max(1, len(execute.visible_gpus()))
    all_jobs = jobs(planned.runs, out)
    check(all_jobs, here=where != "slurm")
    all_groups = groups(all_jobs, most_together(planned, all_jobs), max(1, workers))
    chosen = part_of(all_groups, part)
    if not as_json:
        tell_plan(planned, out, all_jobs, chosen, dry_run)
    if dry_run:
        if as_json:
            print(json.dumps([[job.name for job in group] for group in chosen], indent=1))
        return
    if where == "slurm":
        script = write_script(file, settings or [], out, len(all_groups), trust)
        submit = shlex.join(["sbatch", str(script)])
        if as_json:
            print(json.dumps({"tasks": len(all_groups), "submit": submit}))
        else:
            stdout.print(escape(f"job array of {count(len(all_groups), 'task')}: {submit}"), soft_wrap=True)
        return

    todo = [left for group in chosen if (left := [job for job in group if job.status != "finished"])]
    board = Board.of([job for group in chosen for job in group])
    if where == "ray" and todo:
        from fedntd.sweep.on_ray import on_ray

        with stderr.status("joining the Ray cluster" if address else "starting Ray"):
            events = on_ray(todo, out, address or None, workers)
    else:
        events = execute.here(todo) if workers == 1 else execute.in_processes(todo, min(workers, max(1, len(todo))))
    with working_in(out, file, alone=not part):
        raise typer.Exit(carry_out(events, board, out, as_json))


def part_of(all_groups: list[list[Job]], part: str) -> list[list[Job]]:
    if not part:
        return all_groups
    first, slash, every = part.partition("/")
    require(
        bool(slash) and first.isdecimal() and every.isdecimal() and int(first) < int(every),
        f"--part takes I/N with I from 0 and below N, such as 0/4, not '{part}'",
    )
    return all_groups[int(first) :: int(every)]
