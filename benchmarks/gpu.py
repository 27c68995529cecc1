"""How fast the vectorised engine is on this GPU, against the loop engine on the same GPU, in one run.

    PYTHONPATH=src python benchmarks/gpu.py [--data DIR] [--only NAME ...] [--no-loop] [--out FILE.json]

Every row is a setting of a FedNTD run of 200 rounds on CIFAR-10 (batch 50, 5 epochs, full augmentation, class-wise
accuracy of the global model every round). The first round compiles and is shown separately. "A round" is the median of
the later rounds, "200 rounds" 200 times their mean: over 199 rounds (five with ResNet-10 and with ratio 1.0), unless
--rounds sets another number. The loop's round is timed in the same process.

TFLOP/s counts the multiplications and additions of the convolutions and linear layers alone: 3 forward passes a
trained sample (one forward, two backward, but no gradient of the images), 1 for the teacher, 1 a tested sample. Without
the CIFAR-10 files, random images of the same shape are used, which take the same time.

"three seeds" are three runs trained together in one process: a round trains all three. At the end, the first row's
setting is started once more in a new process, which is timed until its first trained round, with a warm compile cache.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cpu_round import cifar10_or_noise
from fedntd import Dataset, Federation
from fedntd.config.presets import preset
from fedntd.config.toml import from_table
from fedntd.runs.record import Record
from fedntd.simulation.federation import play_together

SETTINGS: dict[str, dict[str, Any]] = {
    "s=2, bf16": {"precision": "bf16"},
    "s=2, TF32": {"precision": "tf32"},
    "s=2, fp32": {"precision": "fp32"},
    "s=2, bf16, every local model tested": {"precision": "bf16", "measure": {"local_every": 1}},
    "LDA 0.1, bf16": {"precision": "bf16", "preset": "cifar10-lda0.1"},
    "s=2, bf16, three seeds": {"precision": "bf16", "seeds": 3},
    "s=2, bf16, sampling ratio 1.0": {"precision": "bf16", "federation": {"clients": 100, "ratio": 1.0}},
    "s=2, bf16, ResNet-10": {"precision": "bf16", "model": {"name": "resnet10"}},
}
MEGAFLOP = {"cnn": 35.3, "resnet10": 507.0}  # of one forward pass on 32x32 images
FIRST_LAYER = {"cnn": 4.9, "resnet10": 3.5}  # whose data gradient is not needed
BF16_PEAK = 790.0  # TFLOP/s of large bf16 products, as measured on an H200


def set_up(dataset: Dataset, engine: str, settings: dict[str, Any]) -> list[Federation]:
    """The runs of a setting, to be trained together."""
    settings = dict(settings)
    base, seeds = preset(settings.pop("preset", "cifar10-s2")), range(settings.pop("seeds", 1))
    runs: list[Federation] = []
    for seed in seeds:
        table = base | {"measure": {"local_every": 0}} | settings | {"engine": engine, "seed": seed}
        runs.append(
            Federation(from_table(table), dataset, share_with=runs[0] if runs else None, several_runs=len(seeds) > 1)
        )
    return runs


class Timed(NamedTuple):
    first: float  # seconds of the first round
    median: float  # of those after it
    mean: float
    rate: float  # trained samples a second in those


def time_rounds(runs: list[Federation], rounds: int) -> Timed:
    started = time.perf_counter()
    play_together(runs)
    first = time.perf_counter() - started
    for note in runs[0].engine.notes:
        print(f"note: {note}", file=sys.stderr)
    seconds, samples = [], 0
    for _ in range(rounds):
        records = [record for record in play_together(runs) if isinstance(record, Record)]
        seconds.append(sum(record.seconds for record in records))
        for run, record in zip(runs, records, strict=True):
            samples += run.config.federation.local_epochs * sum(len(run.parts[k]) for k in record.cohort)
    return Timed(first, float(np.median(seconds)), float(np.mean(seconds)), samples / sum(seconds))


def teraflops(runs: list[Federation], samples_a_second: float, seconds: float) -> float:
    """Achieved, by the arithmetic that cannot be avoided."""
    federation = runs[0]
    name = federation.config.model.name
    trained = samples_a_second * (4 * MEGAFLOP[name] - FIRST_LAYER[name])
    models = 1 + (round(federation.config.federation.clients * federation.config.federation.ratio)
                  if federation.config.measure.local_every else 0)  # fmt: skip
    tested = len(runs) * models * len(federation.dataset.test.y) / seconds * MEGAFLOP[name]
    return (trained + tested) / 1e6


def start(arguments: argparse.Namespace) -> None:
    """One round of the first row, telling what is done."""
    print("torch is imported", flush=True)
    dataset, _ = cifar10_or_noise(arguments.data)
    runs = set_up(dataset, "vectorised", SETTINGS[arguments.only[0]])
    print("the data is on the device", flush=True)
    importlib.import_module("torch._inductor.compile_fx")
    print("its compiler is imported", flush=True)
    play_together(runs)
    print("trained", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder of the CIFAR-10 files; empty: the data folder")
    parser.add_argument("--only", nargs="+", default=list(SETTINGS), help="names of rows")
    parser.add_argument("--rounds", type=int, default=199, help="rounds to time after the first")
    parser.add_argument("--no-loop", action="store_true", help="do not time the loop engine")
    parser.add_argument("--start", action="store_true", help="play one round of the first row and say what is done")
    parser.add_argument("--out", type=Path, help="also write the table as JSON")
    arguments = parser.parse_args()

    if arguments.start:
        start(arguments)
        return
    dataset, what = cifar10_or_noise(arguments.data)
    print(f"{date.today()}  {torch.cuda.get_device_name()}, torch {torch.__version__}, {what}\n")
    columns = {"first round": 12, "a round": 10, "200 rounds": 12, "loop": 9, "ratio": 7, "TFLOP/s": 9, "floor": 7}
    print(f"{'setting':40}" + "".join(f"{name:>{width}}" for name, width in columns.items()))
    rows = []
    for name in arguments.only:
        runs = set_up(dataset, "vectorised", SETTINGS[name])
        few = min(5 if "ResNet" in name or "1.0" in name else 199, arguments.rounds)
        timed = time_rounds(runs, few)
        achieved = teraflops(runs, timed.rate, timed.mean)
        loop = ratio = None
        if "1.0" not in name and "seeds" not in name and not arguments.no_loop:  # there it would take a minute
            of_loop = time_rounds(set_up(dataset, "sequential", SETTINGS[name]), 1)
            loop, ratio = of_loop.mean, timed.rate / of_loop.rate
        row = {
            "setting": name,
            "first round": timed.first,
            "round": timed.median,
            "200 rounds": 200 * timed.mean,
            "loop round": loop,
            "ratio": ratio,
            "TFLOP/s": achieved,
            "share of the floor": achieved / BF16_PEAK,
            "samples a second": timed.rate,
        }
        rows.append(row)
        against_loop = f"{loop:7.2f} s{ratio:6.1f}x" if loop and ratio else f"{'–':>9}{'–':>7}"
        print(
            f"{name:40}{timed.first:10.1f} s{1000 * timed.median:7.1f} ms{200 * timed.mean:10.1f} s{against_loop}"
            f"{achieved:9.0f}{100 * achieved / BF16_PEAK:6.0f}%",
            flush=True,
        )
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1))
    by_name = {row["setting"]: row for row in rows}
    if {"s=2, bf16", "LDA 0.1, bf16"} <= by_name.keys():
        ratio = by_name["s=2, bf16"]["samples a second"] / by_name["LDA 0.1, bf16"]["samples a second"]
        print(f"\nLDA 0.1 takes {ratio:.2f} times the seconds per trained sample of sharding")
    if {"s=2, bf16", "s=2, bf16, sampling ratio 1.0"} <= by_name.keys():
        ratio = by_name["s=2, bf16, sampling ratio 1.0"]["round"] / by_name["s=2, bf16"]["round"]
        print(f"sampling ratio 1.0 takes {ratio:.1f} times as long as 0.1")
    if {"s=2, bf16", "s=2, bf16, three seeds"} <= by_name.keys():
        ratio = by_name["s=2, bf16, three seeds"]["round"] / by_name["s=2, bf16"]["round"]
        print(f"three seeds in one process take {ratio:.2f} times as long as one")
    started = time.perf_counter()
    command = [sys.executable, __file__, "--start", "--only", arguments.only[0], "--data", arguments.data]
    print("from nothing to the first trained round, with a warm compile cache:")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(f"{time.perf_counter() - started:10.1f} s  {line.strip()}")
    assert process.returncode == 0, f"{command} failed"


if __name__ == "__main__":
    main()
