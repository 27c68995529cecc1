"""What `fedntd sweep` prints: the plan before training, the outcome after."""

import json
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedntd.support.wording import count
from fedntd.sweep import execute, show
from fedntd.sweep.cost import cost_texts, estimate
from fedntd.sweep.jobs import Job, Sweep

stdout, stderr = Console(), Console(stderr=True)


def tell_plan(sweep: Sweep, out: Path, planned: Sequence[Job], groups: Sequence[Sequence[Job]], measure: bool) -> None:
    """Print how many runs, groups and rounds there are; with `measure`, also their cost."""
    runs = sum(map(len, groups))
    rounds = sum(map(show.rounds_left, groups))
    repeated = f" ({sweep.asked - len(planned)} asked for twice)" if sweep.asked > len(planned) else ""
    finished = sum(job.status == "finished" for group in groups for job in group)
    kept = f", {finished} of them finished" if finished else ""
    stderr.print(
        f"[bold]{escape(sweep.name)}[/]: {count(runs, 'run')}{repeated}{kept}, in {count(len(groups), 'group')}, "
        f"{count(rounds, 'round')} to go, in {escape(str(out))}",
        soft_wrap=True,
    )
    if not measure:
        return
    with stderr.status("measuring a few rounds"):
        costs = estimate(groups)
    stdout.print(show.plan_table(groups, [cost_texts(cost) for cost in costs]))
    for number, cost in enumerate(costs, start=1):
        if cost.failure:
            message = f"[red]a run of group {number} failed when it was tried:[/] {escape(cost.failure)}"
            stdout.print(message, soft_wrap=True, highlight=False)
    total = show.duration(sum(cost.seconds for cost in costs))
    stdout.print(f"about {total} on one device, one group after the other; nothing was written")


def carry_out(events: Generator[execute.Event], board: show.Board, out: Path, as_json: bool) -> int:
    """Train, show progress, and print the outcome. Returns the exit code."""
    interrupted = False
    try:
        # What methods and Ray print must not mix with the result.
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


def same_command() -> str:
    """The command to resume with, including its --set options: they are part of the runs."""
    return shlex.join(["fedntd", *sys.argv[1:]])
