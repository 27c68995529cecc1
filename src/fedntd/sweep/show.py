"""What a sweep shows: its plan, a live table in a terminal or plain lines in a pipe, and a summary."""

import json
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedntd.support.wording import duration
from fedntd.sweep.execute import Event
from fedntd.sweep.jobs import Job, rounds_done

STYLES = {"running": "cyan", "finished": "green", "kept": "dim green", "failed": "bold red", "waiting": "dim"}
ORDER = ("running", "failed", "finished", "waiting", "kept")
HEARTBEAT = 60.0  # seconds of silence after which plain output prints a progress line


@dataclass
class Row:
    """The progress of one run."""

    name: str
    rounds: int
    status: str = "waiting"
    round: int = 0
    accuracy: float | None = None
    forgetting: float | None = None
    seconds: float = 0.0
    reason: str = ""
    touched: float = 0.0  # time of its last event


@dataclass
class Board:
    """The progress of all runs."""

    rows: dict[str, Row]
    started: float = field(default_factory=time.monotonic)
    first: float | None = None  # end of the first round, which includes compiling on a GPU
    rounds_before: int = 0  # rounds done by then

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "Board":
        rows = {}
        for job in jobs:
            row = Row(job.name, job.config.federation.rounds)
            if job.status == "finished":
                row.status, row.round = "kept", row.rounds
                row.accuracy, row.forgetting = last_figures(job.folder / "records.jsonl")
            else:
                row.round = min(rounds_done(job.folder), row.rounds)
            rows[job.name] = row
        return cls(rows)

    def take(self, event: Event) -> Row:
        row = self.rows[event["run"]]
        row.touched = time.monotonic()
        if "failed" in event:
            row.status, row.reason = "failed", event["failed"]
        else:
            row.status = "finished" if event["round"] == row.rounds else "running"
            row.round, row.accuracy, row.forgetting = event["round"], event["accuracy"], event["forgetting"]
            row.seconds += event["seconds"]
        if self.first is None:
            self.first, self.rounds_before = row.touched, sum(row.round for row in self.rows.values())
        return row

    def settle(self) -> None:
        """After the last group: mark runs that did not fail as finished, even those with no rounds left to train."""
        for row in self.rows.values():
            if row.status in ("waiting", "running"):
                row.status, row.round = "finished", row.rounds

    def count(self, *statuses: str) -> int:
        return sum(row.status in statuses for row in self.rows.values())

    @property
    def left(self) -> float | None:
        """Estimated seconds left, from the pace after the first round."""
        rows = self.rows.values()
        trained = sum(row.round for row in rows) - self.rounds_before
        to_go = sum(row.rounds - row.round for row in rows if row.status in ("waiting", "running"))
        return (time.monotonic() - self.first) / trained * to_go if self.first and trained > 0 else None

    def headline(self) -> str:
        parts = [f"{self.count('finished', 'kept')}/{len(self.rows)} finished"]
        for status in ("failed", "running", "waiting"):
            if self.count(status):
                parts.append(f"{self.count(status)} {status}")
        parts.append(duration(time.monotonic() - self.started))
        if self.left:
            parts.append(f"about {duration(self.left)} left")
        return ", ".join(parts)


def last_figures(file: Path) -> tuple[float | None, float | None]:
    """Accuracy and forgetting of the last round. Only its line is parsed: a sweep may have a thousand runs."""
    try:
        last = json.loads(file.read_text(encoding="utf-8").rstrip().rpartition("\n")[2])
        return last["accuracy"], last["forgetting"]
    except (OSError, ValueError, KeyError):
        return None, None


def follow(events: Iterator[Event], board: Board, console: Console) -> None:
    """Consume all events and show them as they come."""
    if console.is_terminal:
        with live(board, console):
            for event in events:
                board.take(event)
            board.settle()
        return
    last_line = time.monotonic()
    width = max(map(len, board.rows), default=0)
    for event in events:
        row = board.take(event)
        if row.status != "running":
            done = board.count("finished", "kept", "failed")
            say(f"[{done:{len(str(len(board.rows)))}}/{len(board.rows)}] {row.name:{width}}  {line(row)}")
            last_line = time.monotonic()
        elif time.monotonic() - last_line > HEARTBEAT:
            say(board.headline())
            last_line = time.monotonic()
    board.settle()


def live(board: Board, console: Console, transient: bool = False) -> Live:
    return Live(
        console=console,
        get_renderable=lambda: live_table(board, console),
        refresh_per_second=4,
        transient=transient,
    )


def passing(events: Generator[Event], board: Board, console: Console) -> Generator[Event]:
    """Pass events on; in a terminal, show a live table of the runs meanwhile."""
    with closing(events):
        if not console.is_terminal:
            yield from events
            return
        with live(board, console, transient=True):
            for event in events:
                board.take(event)
                yield event


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def line(row: Row) -> str:
    if row.status == "failed":
        return f"failed after round {row.round}: {row.reason}"
    return f"finished  accuracy {percent(row.accuracy)} %  F {row.forgetting:z.3f}  {duration(row.seconds)}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def live_table(board: Board, console: Console) -> Group:
    """A table of as many runs as fit the window: by status, running ones first, then by the time of the last event."""
    table = Table("run", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True)
    table.columns[0].overflow, table.columns[0].no_wrap = "ellipsis", True
    table.add_column("", ratio=1, min_width=5)  # takes the width that the names leave
    for title in ("round", "accuracy %", "F"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    rows = sorted(board.rows.values(), key=lambda row: (ORDER.index(row.status), -row.touched))
    room = max(3, console.height - 7)
    shown = rows if len(rows) <= room else rows[: room - 1]
    for row in shown:
        bar = ProgressBar(row.rounds, row.round, complete_style=STYLES[row.status], finished_style=STYLES[row.status])
        forgetting = "–" if row.forgetting is None else f"{row.forgetting:z.3f}"
        status = Text(row.status, style=STYLES[row.status])
        table.add_row(Text(row.name), bar, f"{row.round}/{row.rounds}", percent(row.accuracy), forgetting, status)
    if len(shown) < len(rows):
        table.add_row(Text(f"and {len(rows) - len(shown)} more", style="dim"))
    done = sum(row.round for row in rows)
    total = sum(row.rounds for row in rows)
    below = Table.grid(expand=True)  # in a grid, since a bar does not end its line
    below.add_row(ProgressBar(total, done))
    # Not padded to the window's width: the ^C that a terminal echoes would wrap and leave a stale line behind.
    return Group(table, below, Text(board.headline(), style="bold"))


# --- before and after -------------------------------------------------------------------------------------------


def plan_table(groups: Sequence[Sequence[Job]], estimates: Sequence[tuple[str, str]] = ()) -> Table:
    """One row per group: its first and last run, the number of runs, and their cost where `estimates` are given."""
    table = Table("", "group", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title in ("runs", "finished", "rounds left", *(("time", "memory") if estimates else ())):
        table.add_column(title, justify="right", no_wrap=True)
    table.columns[1].overflow = "fold"
    for number, group in enumerate(groups, start=1):
        finished = sum(job.status == "finished" for job in group)
        names = group[0].name if len(group) == 1 else f"{group[0].name} … {group[-1].name}"
        cells = [str(len(group)), str(finished) if finished else "–", str(rounds_left(group))]
        table.add_row(str(number), Text(names), *cells, *(estimates[number - 1] if estimates else ()))
    return table


def rounds_left(group: Sequence[Job]) -> int:
    return sum(job.config.federation.rounds - job.rounds_done for job in group if job.status != "finished")


def summary_lines(board: Board, interrupted: bool) -> list[str]:
    """How the sweep ended, with the reason of each failure, in rich markup."""
    new, kept, failed = board.count("finished"), board.count("kept"), board.count("failed")
    counts = [f"{new + kept} of {len(board.rows)} runs finished" + (f" ({kept} of them before)" if kept else "")]
    counts += [f"[bold red]{failed} failed[/]"] if failed else []
    unfinished = len(board.rows) - new - kept - failed
    counts += [f"[yellow]{unfinished} to go[/]"] if unfinished else []
    took = duration(time.monotonic() - board.started)
    lines = [f"{'[yellow]interrupted:[/] ' if interrupted else ''}{', '.join(counts)}, in {took}"]
    failures: dict[str, list[str]] = {}
    for row in board.rows.values():
        if row.status == "failed":
            failures.setdefault(row.reason, []).append(row.name)
    for reason, names in failures.items():
        failed_runs = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"[red]failed:[/] {escape(failed_runs)}: {escape(reason)}")
    return lines
