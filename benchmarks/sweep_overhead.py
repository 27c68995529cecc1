"""What the sweep layer costs: many short runs through `fedntd sweep`'s own path, against the same runs one by one.

    PYTHONPATH=src python benchmarks/sweep_overhead.py --runs 100 --rounds 5

Both train the same runs of the demo into run folders, in one process: each by `federate`, and all of them planned,
grouped, trained and shown as a sweep does it. Passes alternate, so that a machine that gets slower meanwhile does not
favour one of them. The overhead is computed from the medians, in wall-clock seconds and in CPU seconds, which depend
less on what else runs. The sweep's planning (its file, configs, groups) is included.
"""

import argparse
import io
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from fedntd import federate
from fedntd.sweep import execute, show
from fedntd.sweep.jobs import groups, jobs, read_sweep

SWEEP = """
base = "demo"
seeds = [{seeds}]
[settings]
device = "cpu"
federation.rounds = {rounds}
measure.local_every = 0
[grid]
algorithm.name = ["fedavg", "fedntd"]
"""


def one_by_one(file: Path, out: Path) -> None:
    for run in read_sweep(file).runs:
        for _ in federate(run.config, out=out / run.name):
            pass


def as_a_sweep(file: Path, out: Path) -> None:
    planned = jobs(read_sweep(file).runs, out)
    board = show.Board.of(planned)
    with closing(execute.here(groups(planned, 8))) as events, redirect_stderr(io.StringIO()):
        show.follow(events, board, Console(file=io.StringIO()))
    assert board.count("finished") == len(planned)


class Seconds(NamedTuple):
    wall: float
    processors: float


def timed(way: Callable[[Path, Path], None], file: Path, out: Path) -> Seconds:
    started = time.perf_counter(), time.process_time()
    way(file, out)
    return Seconds(time.perf_counter() - started[0], time.process_time() - started[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        seeds = ", ".join(map(str, range(-(-arguments.runs // 2))))
        file.write_text(SWEEP.format(seeds=seeds, rounds=arguments.rounds))
        alone: list[Seconds] = []
        swept: list[Seconds] = []
        for i in range(arguments.passes):
            pair = [(one_by_one, alone), (as_a_sweep, swept)]
            for way, times in pair if i % 2 == 0 else reversed(pair):
                times.append(timed(way, file, Path(folder) / f"{way.__name__}-{i}"))
                print(f"{way.__name__}: {times[-1].wall:.2f} s, processors {times[-1].processors:.2f} s", flush=True)
    before, after = (Seconds(*map(statistics.median, zip(*times, strict=True))) for times in (alone, swept))
    result = {
        "runs": arguments.runs,
        "rounds": arguments.rounds,
        "one_by_one_seconds": before._asdict(),
        "sweep_seconds": after._asdict(),
        "overhead_percent": {k: 100 * (v / before._asdict()[k] - 1) for k, v in after._asdict().items()},
        "torch": torch.__version__,
        "machine": f"{platform.processor() or platform.machine()}, {platform.platform()}",
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
