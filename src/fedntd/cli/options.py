"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import code from anywhere that the config of a run folder names.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change one setting, e.g. partition.s=5; repeatable."),
]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.", show_default=False)
]
By = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY", help="Group runs by this setting alone, e.g. algorithm.name; repeatable."),
]
BaselineOption = Annotated[
    str | None,
    typer.Option("--baseline", metavar="METHOD|KEY=VALUE", help="Difference to these runs, paired over seeds."),
]
Target = Annotated[
    float | None, typer.Option("--target", metavar="PERCENT", help="Rounds and bytes until this accuracy.")
]
