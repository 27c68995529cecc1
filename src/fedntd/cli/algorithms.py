"""`fedntd algorithms`: the methods, and what each needs beyond FedAvg."""

import json
from dataclasses import fields

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedntd.algorithms import ALGORITHMS
from fedntd.algorithms.requirements import requirements
from fedntd.cli.options import AsJson
from fedntd.models.cnn import CNN
from fedntd.models.functional import Model

stdout = Console()


def algorithms(as_json: AsJson = False) -> None:
    """The needs are derived from the methods' definitions. The lines below the table explain its columns.

    Example: [b]fedntd algorithms --json[/b]
    """
    w = Model(CNN((3, 32, 32), 10)).weights()
    rows = []
    for name, method in ALGORITHMS.items():
        settings = {f.name: f.default for f in fields(method)}
        rows.append({"name": name, "settings": settings, **requirements(method(), w)._asdict()})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)  # 80 columns leave room for the settings
    for title in ("method", "state", "up", "down", "fwd", "bwd", "data"):
        table.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    table.add_column("settings")
    for row in rows:
        counts = (row[key] for key in ("state_bytes", "extra_up_bytes", "extra_down_bytes"))
        sizes = (f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count} B" if count else "–" for count in counts)
        passes = (f"+{row[key]}" if row[key] else "–" for key in ("extra_forwards", "extra_backwards"))
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], *sizes, *passes, "yes" if row["auxiliary_data"] else "–", settings)
    stdout.print(table)
    stdout.print(
        "Beyond FedAvg: state: kept by a client; up, down: traffic of a client per round; "
        "fwd, bwd: forward and backward passes per step; data: auxiliary data that belongs to no client.",
        style="dim",
    )
