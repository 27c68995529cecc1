"""How long it takes to look at many finished runs: `fedntd compare` and `fedntd report`, each as a process of its own.

    PYTHONPATH=src python benchmarks/many_runs.py

First makes the run folders of a sweep: 5 methods × 2 partitions × 10 learning rates × 10 seeds, 200 rounds each, with
made-up numbers in place of training. Each command then runs --repeat times; the fastest is reported, from the start of
Python to its end.
"""

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import fedntd
from fedntd.config.build import deal
from fedntd.config.schema import Config
from fedntd.config.toml import from_table, to_toml
from fedntd.data.partition import class_counts
from fedntd.runs.record import Record, to_line
from fedntd.support.environment import environment

METHODS = ("fedavg", "fedprox", "scaffold", "moon", "fedntd")
PARTITIONS = ({"name": "sharding", "s": 2}, {"name": "lda", "alpha": 0.1})
RATES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
CLASSES = [str(i) for i in range(10)]


def configs(seeds: int, rounds: int) -> list[Config]:
    return [
        from_table(
            {
                "seed": seed,
                "data": {"name": "cifar10"},
                "algorithm": {"name": method},
                "partition": partition,
                "optimiser": {"lr": rate},
                "federation": {"rounds": rounds},
                "measure": {"local_every": 10},
            }
        )
        for method, partition, rate, seed in itertools.product(METHODS, PARTITIONS, RATES, range(seeds))
    ]


def made_up(config: Config, rng: np.random.Generator) -> list[Record]:
    records = []
    for round in range(1, config.federation.rounds + 1):
        classes = (0.7 * (1 - np.exp(-round / 40)) + 0.1 * rng.random(10)).tolist()
        a, b, c, d, e, f, g, h, i, j, k, m = rng.random(12).tolist()
        local = {"in_local": a, "in_local_std": b, "out_local": c, "out_local_std": d} if round % 10 == 0 else {}
        records.append(
            Record(
                round=round,
                accuracy=float(np.mean(classes)),
                loss=e,
                class_accuracy=classes,
                similarity=f if round > 1 else None,
                forgetting=0.3 * g,
                train_loss=h,
                cohort=rng.choice(config.federation.clients, 10, replace=False).tolist(),
                lr=config.optimiser.lr * config.optimiser.decay ** (round - 1),
                bytes_down=86_259_600,
                bytes_up=86_259_600,
                seconds=0.04 + 0.01 * i,
                global_in_before=j,
                global_in_after=k,
                global_out_before=m,
                global_out_after=a,
                **local,
            )
        )
    return records


def make_folders(folder: Path, wanted: list[Config]) -> int:
    """Write the files of finished runs, except checkpoints, which are not read; return their size in bytes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 5000)
    started = [environment(torch.device("cpu"))]
    size = 0
    for number, config in enumerate(wanted):
        counts = class_counts(labels, deal(config, labels), 10)
        files = {
            "config.toml": to_toml(config),
            "environment.json": json.dumps(started, indent=1),
            "partition.json": json.dumps({"classes": CLASSES, "counts": counts.tolist()}, indent=1),
            "records.jsonl": "".join(map(to_line, made_up(config, rng))),
            "status.json": json.dumps({"status": "finished", "reason": ""}),
            ".lock": "",
        }
        (folder / f"{number:04}").mkdir(parents=True)
        for name, text in files.items():
            (folder / f"{number:04}" / name).write_text(text)
            size += len(text)
    return size


def timed(*arguments: str) -> tuple[float, float]:
    """Seconds on the clock, and of the processors."""
    source = str(Path(fedntd.__file__).parents[1])
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from fedntd.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": source},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    passed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="runs are 100 times as many (default 10)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3, help="times that each command runs (default 3)")
    parser.add_argument("--keep", type=Path, help="make the runs here, or take those that are here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "runs"
        if not folder.exists():
            size = make_folders(folder, configs(arguments.seeds, arguments.rounds))
            print(f"made {size / 1e6:.0f} MB of run folders", file=sys.stderr)
        count = len(list(folder.iterdir()))
        print(f"{count} runs, torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
        commands = {
            "compare": ("compare", str(folder)),
            "report": ("report", str(folder), "-o", str(Path(temporary) / "report.html")),
        }
        for name, command in commands.items():
            passed, cpu = min(timed(*command) for _ in range(arguments.repeat))
            print(f"fedntd {name:8} {passed:6.2f} s, of which the processors worked {cpu:.2f} s")


if __name__ == "__main__":
    main()
