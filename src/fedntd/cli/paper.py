"""`fedntd paper`: reproduce the paper's tables and figures, estimate their cost, and record results in the ledger."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from fedntd.cli.options import AsJson, Settings
from fedntd.config.schema import Config
from fedntd.errors import Diverged, FedntdError, require
from fedntd.paper.item import RULES, Setting
from fedntd.paper.items import ITEMS, find
from fedntd.paper.runner import Workshop, choose, describe, fitting, groups, wanted
from fedntd.paper.tables import Table, aside
from fedntd.runs.ledger import distinct, find_runs, read_store, record
from fedntd.simulation.together import in_one_step
from fedntd.support.files import put, read_json
from fedntd.support.wording import duration, thing

LEDGER = Path("docs/results/ledger")

app = typer.Typer(no_args_is_help=True, epilog="Items: " + ", ".join(ITEMS))
stdout, stderr = Console(), Console(stderr=True)

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Folder for runs and pages.", show_default="runs/paper"),
]
Ledger = Annotated[Path, typer.Option("--ledger", metavar="DIR", help="Recorded runs, which are not trained again.")]
Small = Annotated[bool, typer.Option("--small", help="Rehearse on the packaged images, in minutes on a CPU.")]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Number of runs per cell.", show_default="the item's own: 3 for tables"),
]
Protocol = Annotated[
    str,
    typer.Option("--protocol", help=f"{' or '.join(RULES)}: sets the learning rate and which accuracy tables show."),
]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cells", metavar="CELL", help='Only these cells: a row, a column, or "row/column"; repeatable.'),
]
NoTrain = Annotated[bool, typer.Option("--no-train", help="Draw existing results; train nothing.")]


def open_workshop(out: Path | None, small: bool, ledger: Path) -> Workshop:
    out = out or Path("runs/paper-small" if small else "runs/paper")
    book = ledger if ledger.is_dir() else None
    return Workshop(out, read_store(out, book), book)


# --- what there is ----------------------------------------------------------------------------------------------


@app.command("list")
def list_items(
    out: Out = None,
    small: Small = False,
    seeds: Seeds = None,
    protocol: Protocol = "released",
    settings: Settings = None,
    ledger: Ledger = LEDGER,
    as_json: AsJson = False,
) -> None:
    """List the items: their runs, how many are done, and about how long the others take on this machine.

    Runs of one group can be trained together. The time assumes that runs are trained one after the other.

    It is based on a measurement that is made once and kept in --out.

    Example: [b]fedntd paper list --small[/b]
    """
    from fedntd.paper.estimate import estimate

    setting = Setting(small, seeds, protocol, tuple(settings or ()))
    shop = open_workshop(out, small, ledger)
    rows = []
    for name in ITEMS:
        item = find(name)
        runs = distinct([run.config for run in wanted(item, setting)])
        missing = distinct(shop.missing(item, setting))
        seconds = sum(estimate(missing, shop.out))
        row = {"name": name, "title": item.title, "paper": item.paper, "runs": len(runs)}
        rows.append({**row, "done": len(runs) - len(missing), "groups": len(groups(missing)), "seconds": seconds})
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    table = Grid(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("item", no_wrap=True, min_width=max(len(row["name"]) for row in rows))
    table.add_column("what it shows")
    for title in ("runs", "done", "groups", "time left"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        left = "–" if row["done"] == row["runs"] else duration(row["seconds"])
        counts = (str(row[key] or "–") for key in ("runs", "done", "groups"))
        table.add_row(row["name"], row["title"], *counts, left)
    stdout.print(table)
    stdout.print(
        "Groups and time are those of the runs that are left. Together the items take less than the sum: they share "
        "runs, and on a GPU the runs of a group are trained in one step, which is compiled once."
    )


# --- making items -----------------------------------------------------------------------------------------------


def make(
    names: Sequence[str],
    setting: Setting,
    cells: Sequence[str],
    out: Path | None,
    ledger: Path,
    no_train: bool,
) -> None:
    require(not cells or len(names) < len(ITEMS), "--cells is for items by name: fedntd paper make ITEM... --cells ...")
    items = [find(name) for name in names]
    chosen = {item.name: [cell for cell in cells if fitting(item, cell)] for item in items}
    for cell in cells:
        if not any(cell in fit for fit in chosen.values()):
            choose(items[0], [cell])  # raises an error that lists the cells
    shop = open_workshop(out, setting.small, ledger)
    missing = distinct([config for item in items for config in shop.missing(item, setting, chosen[item.name])])
    problems: dict[str, int] = {}
    if missing and not no_train:
        try:
            problems = train(shop, missing)
        except KeyboardInterrupt:
            stderr.print("interrupted; the same command goes on where this one stopped", soft_wrap=True)
            raise typer.Exit(130) from None
        shop = open_workshop(shop.out, setting.small, ledger)

    # matplotlib is slow to import
    from fedntd.paper.render import draw, write_item, write_page

    for item in items:
        if shop.measure(item, setting):
            print(f"{item.name}: measured", file=sys.stderr)
        results = shop.results(item, setting)
        write_item(results, shop.out)
        if len(items) == 1:
            for drawn in draw(results):
                if isinstance(drawn, Table):
                    print_table(drawn)
    page = write_page(shop.out, setting.small)
    stdout.print(f"page: {escape(str(page.resolve()))}", soft_wrap=True)
    for problem, count in problems.items():
        stderr.print(f"[bold red]not made:[/] {count} runs: {escape(problem)}", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def train(shop: Workshop, configs: Sequence[Config]) -> dict[str, int]:
    """Train runs and show progress. Returns the errors that prevented runs, each with the number of runs."""
    problems: dict[str, int] = {}
    rounds, began = sum(config.federation.rounds for config in configs), time.monotonic()
    ended = 0
    columns = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=None))
    columns += (TextColumn("{task.completed}/{task.total} rounds"), TimeRemainingColumn())
    with Progress(*columns, console=stderr, expand=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(f"{len(configs)} runs", total=rounds)

        def say(line: str) -> None:
            stderr.print(line, markup=False, soft_wrap=True)

        all_groups = groups(configs)
        for number, group in enumerate(all_groups, start=1):
            if in_one_step(group[0]):
                what = f"{group[0].algorithm.name} on {thing(group[0].data.name)}"
                so_far = duration(time.monotonic() - began)
                say(f"group {number} of {len(all_groups)}: {len(group)} runs of {what}, after {so_far}")
            with closing(shop.train(group)) as events:
                for config, event in events:
                    ending = ""
                    if isinstance(event, Diverged):
                        ending = f"failed: {event}"
                    elif isinstance(event, FedntdError):
                        ending = f"not made: {event}"
                        problems[str(event)] = problems.get(str(event), 0) + 1
                    else:
                        bar.update(task, completed=bar.tasks[0].completed + 1)
                        if event.round == config.federation.rounds:
                            ending = f"accuracy {100 * event.accuracy:.2f} %, F {event.forgetting:.2f}"
                    if ending:
                        ended += 1
                        bar.update(task, description=f"{ended} of {len(configs)} runs")
                        say(f"[{ended} of {len(configs)}] {describe(config, configs)}: {ending}")
    return problems


def print_table(table: Table) -> None:
    """Print the measured part of a table, as a list if the table is too wide."""
    stdout.print(Text(table.title, style="bold"))
    if table.is_open:
        stdout.print("  nothing has been measured yet\n")
        return
    part = table.measured_part()
    wide = terminal_table(part)
    fits = Console(width=10_000).measure(wide).maximum <= stdout.width
    stdout.print(wide if fits else terminal_list(part))
    left_out = table.left_out_of(part)
    if left_out:
        stdout.print(Padding(Text(left_out, style="dim"), (0, 0, 1, 2)))


def terminal_table(table: Table) -> Grid:
    grid = Grid(box=SIMPLE_HEAD, leading=1)
    grid.add_column(table.corner)
    for column in table.columns:
        grid.add_column(column, justify="right")
    for row in table.rows:
        texts = []
        for column in table.columns:
            cell = table.cell(row, column)
            if isinstance(cell, str):
                texts.append(Text(cell))
                continue
            text = Text(table.measured(cell), style="bold" if table.is_best(row, column) else "")
            extra = [table.beside(cell), table.arrow(row, column)]
            text.append("".join(f" {part}" for part in extra if part), style="not bold")
            for line in filter(None, (aside(table, cell), table.notes(cell))):
                text.append(f"\n{line}", style="not bold dim")
            texts.append(text)
        grid.add_row(row, *texts)
    return grid


def terminal_list(table: Table) -> Grid:
    """One line per cell, for tables that are too wide."""
    grid = Grid(box=SIMPLE_HEAD)
    for heading in (table.corner, ""):
        grid.add_column(heading, overflow="fold")  # long names wrap; numbers are never cut
    for heading in ("measured", "paper", "difference"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in table.rows:
        for column in table.columns:
            cell = table.cell(row, column)
            if isinstance(cell, str):
                grid.add_row(row, column, cell, "", "")
                continue
            style = "bold" if table.is_best(row, column) else ""
            parts = (table.measured(cell), table.beside(cell), table.arrow(row, column), table.notes(cell))
            measured = Text(" ".join(filter(None, parts)), style=style)
            grid.add_row(row, column, measured, table.printed(cell), table.difference(cell))
        grid.add_section()
    return grid


def command(names: Sequence[str]) -> Callable[..., None]:
    def run(
        cells: Cells = None,
        seeds: Seeds = None,
        out: Out = None,
        small: Small = False,
        protocol: Protocol = "released",
        settings: Settings = None,
        ledger: Ledger = LEDGER,
        no_train: NoTrain = False,
    ) -> None:
        setting = Setting(small, seeds, protocol, tuple(settings or ()))
        make(names, setting, cells or (), out, ledger, no_train)

    return run


for name in ITEMS:
    text = f"Make {name}: train missing runs, then draw the results."
    app.command(name, help=f"{text}\n\nExample: [b]fedntd paper {name} --small[/b]", hidden=True)(command([name]))


@app.command("make")
def make_several(
    names: Annotated[
        list[str],
        typer.Argument(metavar="ITEM...", help="Items by name. An item that has none of the --cells is made in full."),
    ],
    cells: Cells = None,
    seeds: Seeds = None,
    out: Out = None,
    small: Small = False,
    protocol: Protocol = "released",
    settings: Settings = None,
    ledger: Ledger = LEDGER,
    no_train: NoTrain = False,
) -> None:
    """Make several items at once. On a GPU, their runs of one shape are trained together, which saves compiling.

    Example: [b]fedntd paper make mse fig-hyper --small[/b]
    """
    setting = Setting(small, seeds, protocol, tuple(settings or ()))
    make(list(dict.fromkeys(names)), setting, cells or (), out, ledger, no_train)


app.command("all", help="Make every item.\n\nExample: [b]fedntd paper all --small[/b]")(command(list(ITEMS)))


# --- the ledger -------------------------------------------------------------------------------------------------


@app.command("record")
def record_runs(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, folders of them, or --out folders of items.")
    ],
    ledger: Ledger = LEDGER,
) -> None:
    """Add finished runs, and the items' measurements on them, to the ledger.

    Example: [b]fedntd paper record runs/paper[/b]
    """
    paths = [path for place in runs for path in find_runs(place)]
    files = record(paths, ledger)
    measured = [file for place in runs for file in sorted((place / "measured").glob("*.json"))]
    kept = [file for file in measured if not read_json(file)["small"]]
    for file in kept:
        put(ledger / "measured" / file.name, file.read_text(encoding="utf-8"))
    stdout.print(f"{len(files)} runs and {len(kept)} measurements recorded in {escape(str(ledger))}", soft_wrap=True)


@app.command("page")
def write_results(
    ledger: Ledger = LEDGER,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path(
        "docs/results.md"
    ),
) -> None:
    """Write the results in the ledger as a Markdown page: tables, figures, and whether the paper's claims hold.

    Example: [b]fedntd paper page[/b]
    """
    from fedntd.paper.results import write_results_page

    require(ledger.is_dir(), f"there is no ledger {ledger}; create one with: fedntd paper record")
    stdout.print(f"page: {escape(str(write_results_page(ledger, out).resolve()))}", soft_wrap=True)
