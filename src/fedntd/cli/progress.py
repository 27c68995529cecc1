"""Progress of runs: a bar or a table in a terminal, otherwise a line for each round."""

import sys
from collections.abc import Generator, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedntd.config.schema import Config
from fedntd.errors import FedntdError
from fedntd.runs.record import Record
from fedntd.support.wording import thing
from fedntd.sweep.execute import event_of
from fedntd.sweep.show import Board, Row, live

Outcomes = Generator[tuple[int, Record | FedntdError]]  # as `federate_together` yields them


def show_progress(outcomes: Outcomes, configs: Sequence[Config], names: Sequence[str], console: Console) -> Outcomes:
    """Pass outcomes on and show them. The name of a single run is empty."""
    if not console.is_terminal:
        return in_lines(outcomes, configs, names)
    if len(names) > 1:
        return in_a_table(outcomes, configs, names, console)
    return in_a_bar(outcomes, configs[0], console)


def in_lines(outcomes: Outcomes, configs: Sequence[Config], names: Sequence[str]) -> Outcomes:
    for i, outcome in outcomes:
        if isinstance(outcome, Record):
            label = f"{title(configs[i])}, {names[i]}" if names[i] else title(configs[i])
            line = f"{label}  round {outcome.round}/{configs[i].federation.rounds}"
            line += f"  accuracy {100 * outcome.accuracy:.2f} %  F {outcome.forgetting:z.3f}  {outcome.seconds:.2f} s"
            print(line, file=sys.stderr, flush=True)
        yield i, outcome


def in_a_table(outcomes: Outcomes, configs: Sequence[Config], names: Sequence[str], console: Console) -> Outcomes:
    rows = [Row(name, config.federation.rounds) for name, config in zip(names, configs, strict=True)]
    board = Board({row.name: row for row in rows})
    with live(board, console):
        for i, outcome in outcomes:
            board.take(event_of(names[i], outcome))
            yield i, outcome


def in_a_bar(outcomes: Outcomes, config: Config, console: Console) -> Outcomes:
    columns = [
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("accuracy [bold]{task.fields[accuracy]}[/]"),
        TextColumn("F {task.fields[forgetting]}"),
        *(
            [TextColumn("{task.fields[speed]}")] if console.width >= 100 else []
        ),  # otherwise there is no room for the time left
        TimeRemainingColumn(table_column=Column(no_wrap=True)),  # shorten the bar instead
    ]
    with Progress(*columns, console=console, expand=True) as progress:
        rounds = config.federation.rounds
        task = progress.add_task(title(config), total=rounds, accuracy="–", forgetting="–", speed="")
        for i, outcome in outcomes:
            if isinstance(outcome, Record):
                progress.update(
                    task,
                    completed=outcome.round,
                    accuracy=f"{100 * outcome.accuracy:5.2f} %",
                    forgetting=f"{outcome.forgetting:z.3f}",
                    speed=f"{outcome.seconds:.2f} s/round",
                )
            yield i, outcome


def title(config: Config) -> str:
    return f"{method_of(config)} on {config.data.name}"


def method_of(config: Config) -> str:
    server = config.server.name
    return config.algorithm.name + (f"+{thing(server)}" if server != "none" else "")
