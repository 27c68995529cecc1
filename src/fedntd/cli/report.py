"""`fedntd report`: write an HTML page about runs, and their figures."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedntd.cli.options import BaselineOption, By, RunFolders, Target
from fedntd.report.html import View, write_report
from fedntd.report.statistics import parse_target
from fedntd.runs.reader import read_runs
from fedntd.support.collector import collector_paused
from fedntd.sweep.pictures import search_pictures

stdout = Console()


@collector_paused()
def report(
    runs: RunFolders,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Also write each figure to this folder, as PNG and PDF."),
    ] = None,
    by: By = None,
    baseline: BaselineOption = None,
    target: Target = None,
) -> None:
    """Example: [b]fedntd report runs/demo -o report.html --figures figures[/b]"""
    loaded = read_runs(runs, "columns", "starts", "counts")
    pictures = [picture for path in runs for picture in search_pictures(path)]
    written = write_report(loaded, out, view=View(by or (), baseline, parse_target(target), pictures))
    stdout.print(f"report: {escape(str(written.resolve()))}", soft_wrap=True)
    if figures is not None:
        from fedntd.report.figures import save_figures  # matplotlib is slow to import

        files = save_figures(loaded, figures, by or (), baseline)
        stdout.print(f"figures: {len(files)} files in {escape(str(figures.resolve()))}", soft_wrap=True)
