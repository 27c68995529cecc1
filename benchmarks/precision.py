"""Does the precision change the result? CIFAR-10, FedNTD, 200 rounds, some seeds at each precision.

    PYTHONPATH=src python benchmarks/precision.py [--data DIR] [--seeds 3] [--out FILE.json]

The runs of one precision are trained together.
"""

import argparse
import json
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from fedntd import Record, federate_together
from fedntd.config.presets import preset
from fedntd.config.toml import from_table
from fedntd.data.datasets import DATASETS
from fedntd.runs.measures import moving_average


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder of the CIFAR-10 files; empty: the data folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--presets", nargs="+", default=["cifar10-s2", "cifar10-lda0.1"])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "tf32", "fp32"])
    parser.add_argument("--out", type=Path, help="also write the runs as JSON")
    arguments = parser.parse_args()
    dataset = DATASETS["cifar10"](arguments.data)
    print(f"{date.today()}  {torch.cuda.get_device_name()}, torch {torch.__version__}")
    which = [(name, seed) for name in arguments.presets for seed in range(arguments.seeds)]
    runs = []
    for precision in arguments.precisions:
        settings = {"precision": precision, "measure": {"local_every": 0}}
        configs = [from_table(preset(name) | settings | {"seed": seed}) for name, seed in which]
        started = time.perf_counter()
        records: list[list[Record]] = [[] for _ in configs]
        for i, record in federate_together(configs, dataset=dataset):
            if isinstance(record, Record):
                records[i].append(record)
            else:
                raise record
        print(f"{precision}: {len(configs)} runs in {time.perf_counter() - started:.1f} s")
        for (name, seed), rounds in zip(which, records, strict=True):
            accuracies = [record.accuracy for record in rounds]
            run = {
                "preset": name,
                "precision": precision,
                "seed": seed,
                "final": accuracies[-1],
                "last 10": float(np.mean(accuracies[-10:])),
                "ema": moving_average(accuracies),
                "F": rounds[-1].forgetting,
                "accuracies": accuracies,
            }
            runs.append(run)
            numbers = "  ".join(f"{key} {100 * run[key]:5.2f}" for key in ("final", "last 10", "ema", "F"))
            print(f"{name:16} {precision:5} seed {seed}  {numbers}", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(runs))


if __name__ == "__main__":
    main()
