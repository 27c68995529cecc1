"""The command line: one file a command, imported when the command is called or asked for its help."""

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

# The first line of each command's help, here so that `fedntd --help` need not import the commands: torch takes more
# than a second. The rest of the help is with the command.
COMMANDS = {
    "run": "Train one federation and keep its records in a run folder; or several at once, where a key is a list.",
    "sweep": "Train many runs: those of one shape together, the rest in a queue. Start it again to go on where it was.",
    "compare": "Print a table of runs; runs that differ only in seed become one row, mean ± std.",
    "report": "Write one self-contained HTML page about one run, several side by side, or a sweep.",
    "export": "Hand runs over to other programs: as a CSV or Parquet file, or to a tracker.",
    "leaderboard": "Print a table of methods by the other settings of a sweep, as Markdown: mean accuracies of the "
    "last ten rounds.",
    "algorithms": "List the methods: their settings, and what each asks for beyond FedAvg on the paper's CIFAR-10 "
    "network.",
    "bench": "Measure the speed of this machine in a minute: rounds of the demo in each engine and precision that it "
    "has.",
    "data": "Datasets: which there are, getting and checking them, who gets what.",
    "paper": "The paper's tables and figures by name, beside the published numbers.",
    "flower": "Real federations through Flower: a new app, certificates and keys.",
}


class Commands(TyperGroup):
    """Lists the commands by their first lines, and loads the one that is called."""

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


def tell_versions(asked: bool) -> None:
    if asked:
        print(f"fedntd {__version__}, torch {torch_version()}, Python {platform.python_version()}")
        raise typer.Exit


def torch_version() -> str:
    """As torch itself tells it, such as 2.13.0+cu130: the version of the installed package may lack the last part."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "not installed"
    return runpy.run_path(str(Path(found.origin).with_name("version.py")))["__version__"]


app = typer.Typer(
    cls=Commands,
    help="Federated learning under heterogeneous data: train FedNTD and other methods, measure what they forget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=tell_versions, is_eager=True, help="Show the versions in use and exit."),
    ] = False,
) -> None: ...


for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)  # `Commands` puts the command itself in its place


def main() -> None:
    """Entry point: bad input is one sentence and exit code 2."""
    write_in_any_locale()
    try:
        with ending_once():
            app()
    except Exception as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(told(error))}", soft_wrap=True)
        sys.exit(2)
