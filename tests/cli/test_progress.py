"""The progress of runs in a terminal."""

import io
from dataclasses import replace

from make_runs import plain_record
from rich.console import Console

from fedntd import configure
from fedntd.cli.progress import show_progress


def test_the_time_left_has_room_in_80_columns():
    config = configure("mnist-s2", ["data.name=fashion-mnist", "algorithm.name=fedntd-mse"])
    records = [replace(plain_record(t, 0.5), seconds=61.25) for t in range(1, 201)]
    shown = {}
    for width in (80, 140):
        file = io.StringIO()
        console = Console(file=file, width=width, force_terminal=True, color_system=None)
        list(show_progress(((0, record) for record in records), [config], [""], console))
        shown[width] = [line for line in file.getvalue().splitlines() if "200/200" in line][-1]
    assert shown[80].rstrip().endswith("round 200/200 accuracy 50.00 % F 0.100 0:00:00")
    assert shown[140].rstrip().endswith("F 0.100 61.25 s/round 0:00:00")
    assert "…" not in shown[80] + shown[140]
