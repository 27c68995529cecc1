"""What a sweep tells in the terminal: its plan before, how it went after."""

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
from fedntd.sweep.cost import estimate, told
from fedntd.sweep.jobs import Job, Sweep

stdout, stderr = Console(), Console(stderr=True)


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


def same_command() -> str:
    """What to type to go on: also the settings that were given there are part of the runs."""
    return shlex.join(["fedntd", *sys.argv[1:]])
