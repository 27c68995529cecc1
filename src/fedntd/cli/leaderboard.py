"""`fedntd leaderboard`: print or write a table of methods."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedntd.cli.options import RunFolders
from fedntd.report import leaderboard as board
from fedntd.sweep.asked import collect

stdout = Console()


def leaderboard(
    runs: RunFolders,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PAGE.md",
            help="Write the table into this page, between its marks; create the page if needed.",
        ),
    ] = None,
    of: Annotated[
        Path | None, typer.Option(metavar="SWEEP.toml", help="Only the runs that this sweep file asks for.")
    ] = None,
) -> None:
    """Reads run folders, and ledgers written by [b]fedntd paper record[/b].

    Example: [b]fedntd leaderboard runs/leaderboard -o docs/leaderboard.md[/b]
    """
    found, planned = collect(runs, of)
    table = board.leaderboard(found)
    if out is None:
        print(table, end="")
        return
    board.put_into(out, "leaderboard", f"\n\n{board.made_of(found, planned)}\n\n{table}\n")
    stdout.print(f"leaderboard: {escape(str(out))}", soft_wrap=True)
