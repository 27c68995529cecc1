"""Options and arguments shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Trust = Annotated[bool, typer.Option("--trust", help="Allow the config of a run folder to import code from anywhere.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change one setting, e.g. partition.s=5; repeatable."),
]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.", show_default=False)
]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY", help="Group runs by this setting only, e.g. algorithm.name; repeatable."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option("--baseline", metavar="METHOD|KEY=VALUE", help="Add the difference to these runs, paired by seed."),
]
Target = Annotated[
    float | None,
    typer.Option("--target", metavar="PERCENT", help="Add the rounds and bytes needed to reach this accuracy."),
]
