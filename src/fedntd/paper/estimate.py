"""Estimate the time of runs on this machine: the number of forward passes times a measured time per pass."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from fedntd.algorithms.requirements import requirements
from fedntd.config.build import load_dataset
from fedntd.config.cohort import cohort_size
from fedntd.config.registry import call
from fedntd.config.schema import Config
from fedntd.config.toml import from_table
from fedntd.data.dataset import from_tensors
from fedntd.data.download import SUMMARIES
from fedntd.engine.devices import choose_device
from fedntd.runs.ledger import compact
from fedntd.simulation.federation import Federation
from fedntd.support.environment import environment
from fedntd.support.files import put, read_json

BACKWARD = 2  # a backward pass costs about two forward passes


class Sizes(NamedTuple):
    train: int
    test: int
    shape: tuple[int, ...]


def sizes(config: Config) -> Sizes:
    """The sizes of the dataset. The files of a known dataset need not be present."""
    if config.data.name in SUMMARIES:
        known = SUMMARIES[config.data.name]
        return Sizes(config.data.train_size or known.train, known.test, known.shape)
    dataset = load_dataset(config)
    return Sizes(len(dataset.train.y), len(dataset.test.y), dataset.shape)


def passes(config: Config) -> float:
    """The work of a run, in forward passes of one sample."""
    data, settings, every = sizes(config), config.federation, config.measure.local_every
    cohort = cohort_size(settings.clients, settings.ratio)
    size = data.train / settings.clients
    needs = requirements(call("algorithm", config.algorithm), {"w": torch.zeros(1)})
    step = 1 + BACKWARD + needs.extra_forwards + BACKWARD * needs.extra_backwards
    training = cohort * (size * settings.local_epochs * step + needs.measure_samples * (1 + BACKWARD))
    testing = data.test + (cohort * (data.test + size) / every if every else 0)
    return settings.rounds * (training + testing)


def speed_key(config: Config) -> str:
    """A key for what the time of a pass depends on."""
    device = environment(choose_device(config))["device"]
    shape = "×".join(map(str, sizes(config).shape))
    return f"{device}, {config.engine}, {config.precision}, {config.model.name} on {shape}"


def measure_pass(config: Config) -> float:
    """Measure the seconds of one forward pass of one sample, from a round of FedAvg on random images.

    Ten clients, or on a CPU at most one per core, have fifty images each.
    """
    shape, classes = sizes(config).shape, 10
    clients = 10 if choose_device(config).type != "cpu" else min(10, os.cpu_count() or 1)
    samples, test = 50 * clients, 10 * clients
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=draw)
    dataset = from_tensors("random", (x, torch.arange(samples) % classes), (x[:test], torch.arange(test) % classes))
    tiny = from_table(
        {
            "engine": config.engine,
            "device": config.device,
            "precision": config.precision,
            "partition": {"name": "iid"},
            "model": {"name": config.model.name, **config.model.options},
            "algorithm": {"name": "fedavg"},
            "federation": {"clients": clients, "ratio": 1.0, "local_epochs": 1, "rounds": 2},
            "measure": {"local_every": 0},
        }
    )
    _, second = Federation(tiny, dataset)  # the first round warms up, and on a GPU compiles
    return second.seconds / (samples * (1 + BACKWARD) + test)


def estimate(configs: Iterable[Config], out: Path) -> list[float]:
    """Seconds of each run if trained alone; runs trained together on a GPU take less. Speeds are cached in `out`."""
    file = out / "speed.json"
    speeds = read_json(file) if file.exists() else {}
    seconds = []
    for config in configs:
        key = speed_key(config)
        if key not in speeds:
            print(f"measuring: {key}", file=sys.stderr)
            speeds[key] = measure_pass(config)
            put(file, compact(speeds) + "\n")
        seconds.append(passes(config) * speeds[key])
    return seconds
