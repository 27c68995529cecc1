"""`fedntd compare`: print a table of runs."""

import json
from typing import Annotated

import typer
from rich.console import Console

from fedntd.cli.options import AsJson, BaselineOption, By, RunFolders, Target
from fedntd.errors import require
from fedntd.report.compare import compare_json, compare_table
from fedntd.report.latex import compare_latex
from fedntd.report.statistics import extras, parse_target
from fedntd.runs.reader import read_runs
from fedntd.support.collector import collector_paused

stdout = Console()


@collector_paused()
def compare(
    runs: RunFolders,
    by: By = None,
    baseline: BaselineOption = None,
    target: Target = None,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, for a paper.")] = False,
    as_json: AsJson = False,
) -> None:
    """Example: [b]fedntd compare runs/demo/fedavg runs/demo/fedntd[/b]

    A sweep: [b]fedntd compare runs/my-sweep --by algorithm.name --baseline fedavg --target 50[/b]

    For a paper: [b]fedntd compare runs/my-sweep --latex > table.tex[/b]
    """
    require(not (as_latex and as_json), "--latex and --json cannot be combined; choose one")
    loaded = read_runs(runs, "columns")
    columns = extras(loaded, baseline, parse_target(target))
    if as_json:
        print(json.dumps(compare_json(loaded, by or (), columns), indent=1))
    elif as_latex:
        print(compare_latex(loaded, by or (), columns), end="")
    else:
        stdout.print(compare_table(loaded, by or (), columns))
