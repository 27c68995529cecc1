"""The command line: one file per command, imported only when the command is called or asked for its help."""

import importlib
import importlib.util
import platform
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from fedntd import __version__
from fedntd.errors import told
from fedntd.support.interrupts import ending_once
from fedntd.support.wording import write_in_any_locale

# The first line of each command's help. It is here so that `fedntd --help` need not import the commands and thereby
# torch, which takes more than a second. The rest of the help is in the command's docstring.
COMMANDS = {
    "run": "Train one federation and record it in a run folder, or several at once if a setting is a list.",
    "sweep": "Train many runs, those of one shape together. Run the same command again to resume.",
    "compare": "Print a table of runs. Runs that differ only in their seed form one row: mean ± std.",
    "report": "Write a self-contained HTML page about one run, several runs or a sweep.",
    "export": "Export runs to a CSV or Parquet file, or to an experiment tracker.",
    "leaderboard": "Print a Markdown table of methods by the other settings of a sweep: mean accuracy of the last ten "
    "rounds.",
    "algorithms": "List the methods, their settings, and what each needs beyond FedAvg (on the paper's CIFAR-10 CNN).",
    "bench": "Measure the speed of this machine: rounds of the demo in each engine and precision, in about a minute.",
    "data": "Datasets: list, download, check, and show how they are partitioned.",
    "paper": "Reproduce the paper's tables and figures, beside the published numbers.",
    "flower": "Real federations with Flower: create an app, certificates and keys.",
}


class Commands(TyperGroup):
    """Lists the commands without importing them, and loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else command, rest


def load(name: str) -> Any:
    """The command in fedntd/cli/<name>.py: the function of that name, or an `app` with commands of its own."""
    module = importlib.import_module(f"fedntd.cli.{name}")
    parent = typer.Typer()
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name, help=COMMANDS[name])
    else:
        command = getattr(module, name)
        parent.command(name, help=f"{COMMANDS[name]}\n\n    {command.__doc__}")(command)
    return typer.main.get_group(parent).commands[name]


def print_versions(wanted: bool) -> None:
    if wanted:
        print(f"fedntd {__version__}, torch {torch_version()}, Python {platform.python_version()}")
        raise typer.Exit


def torch_version() -> str:
    """torch.__version__, such as 2.13.0+cu130, without importing torch. Package metadata may lack the last part."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "not installed"
    return runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"]


app = typer.Typer(
    cls=Commands,
    help="Federated learning under heterogeneous data: train FedNTD and other methods, and measure what they forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_versions, is_eager=True, help="Show the versions in use and exit."),
    ] = False,
) -> None: ...


for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)  # placeholder: `Commands` loads the real command


def main() -> None:
    """Entry point. Errors are printed as one sentence, with exit code 2."""
    write_in_any_locale()
    try:
        with ending_once():
            app()
    except Exception as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(told(error))}", soft_wrap=True)
        sys.exit(2)
