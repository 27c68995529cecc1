"""`fedntd export`: export runs to files and trackers."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedntd.cli.options import RunFolders
from fedntd.errors import require, require_one_of
from fedntd.report.export import ROWS, TRACKERS, track, write_rows
from fedntd.runs.reader import read_runs
from fedntd.support.wording import count

stdout = Console()


def export(
    runs: RunFolders,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="PATH", help="A .csv or .parquet file, or with --to a folder.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TRACKER", help="Export to [b]tensorboard[/b], [b]wandb[/b] or [b]mlflow[/b]."),
    ] = None,
    per: Annotated[
        str, typer.Option("--per", help="Rows of the file: one per [b]round[/b] or one per [b]run[/b].")
    ] = "round",
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep exporting while runs are training (with --to).")
    ] = False,
) -> None:
    """Example: [b]fedntd export runs/my-sweep -o sweep.parquet[/b]

    Or:      [b]fedntd export runs/my-sweep --to tensorboard -o logs --follow[/b]
    """
    require_one_of("--per", per, ROWS)
    if to is None:
        require(not follow, "--follow needs --to: a file is written once")
        require(out.suffix in (".csv", ".parquet"), f"{out} must end in .csv or .parquet; or name a tracker with --to")
        exported = read_runs(runs, "columns" if per == "run" else "records")
        write_rows(exported, out, per)
    else:
        require_one_of("--to", to, TRACKERS)
        exported = []
        for done in track(runs, to, out, follow):
            exported.append(done)
            print(f"{done.name}: {count(len(done.records), 'round')}, {done.status}", file=sys.stderr, flush=True)
    stdout.print(f"{count(len(exported), 'run')} to {escape(str(out))}", soft_wrap=True, highlight=False)
