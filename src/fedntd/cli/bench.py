"""`fedntd bench`: measure the speed of this machine."""

import json
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedntd.cli.options import AsJson
from fedntd.simulation.speed import measure_speed

stdout = Console()


def bench(as_json: AsJson = False) -> None:
    """Example: [b]fedntd bench[/b]"""
    speeds = []
    for speed in measure_speed():
        speeds.append(speed)
        print(f"{speed.device}, {speed.engine}, {speed.precision}: {speed.round:.3f} s a round", file=sys.stderr)
    if as_json:
        print(json.dumps([speed._asdict() for speed in speeds], indent=1))
        return
    table = Table("device", "engine", "precision", box=SIMPLE_HEAD)
    for title in ("first round", "a round", "samples a second"):
        table.add_column(title, justify="right")
    for speed in speeds:
        times = (f"{speed.first_round:.2f} s", f"{speed.round:.3f} s", f"{speed.samples_per_second:,.0f}")
        table.add_row(speed.device, speed.engine, speed.precision, *times)
    stdout.print(table)
