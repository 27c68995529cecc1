"""Many small runs on this GPU: trained together in one process, against one after the other.

    PYTHONPATH=src python benchmarks/small_runs.py [--runs 100] [--rounds 30] [--alone 5]

Runs of the demo's setting that differ in their seed alone (FedNTD, the packaged images, 10 of 100 clients a round),
without run folders. Only a few runs are trained one after the other, and the total is extrapolated from their mean. The
first of them is left out of the mean, because it compiles what the others find in the cache. Data and partitions are
loaded before the clock starts. A second ratio leaves out every first round, in which steps are traced, compiled and
captured: it is the ratio for runs so long that the first round does not matter.
"""

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import date

import torch

from fedntd import Config, federate, federate_together
from fedntd.config.build import deal, load_dataset
from fedntd.config.presets import preset
from fedntd.config.toml import from_table


def seconds(rounds: Iterable, a_round: int) -> tuple[float, float]:
    """Until the end, and from the end of the first round on; `a_round` records make one."""
    started = time.perf_counter()
    first = started
    for i, _ in enumerate(rounds, 1):
        if i == a_round:
            first = time.perf_counter()
    ended = time.perf_counter()
    return ended - started, ended - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--alone", type=int, default=5, help="runs to make one after the other, besides the first")
    arguments = parser.parse_args()
    settings = {"engine": "vectorised", "precision": "bf16" if torch.cuda.is_available() else "fp32"}
    one = from_table(preset("demo") | settings | {"measure": {"local_every": 0}})
    one = replace(one, federation=replace(one.federation, rounds=arguments.rounds))
    configs: list[Config] = [replace(one, seed=seed) for seed in range(arguments.runs)]
    dataset = load_dataset(one)
    for config in configs:
        deal(config, dataset.train.y.numpy())
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{date.today()}  {where}, torch {torch.__version__}: {len(configs)} runs of {arguments.rounds} rounds")

    times = [seconds(federate(config, dataset), 1) for config in configs[: arguments.alone + 1]][1:]
    alone = [len(configs) * sum(column) / len(times) for column in zip(*times, strict=True)]
    together = seconds(federate_together(configs, dataset=dataset), len(configs))
    for what, apart, joint in zip(("in all", "without first rounds"), alone, together, strict=True):
        print(f"{what:22} one after the other {apart:8.1f} s   together {joint:7.1f} s   {apart / joint:6.1f} x")


if __name__ == "__main__":
    main()
