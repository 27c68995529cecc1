"""How the cost of a round grows: with the cohort, the population, the local epochs, and the model.

    PYTHONPATH=src python benchmarks/scaling.py [--only population ...] [--out FILE.json]

FedNTD on this machine, on the GPU if there is one. A round's time is the median of five after the first. Samples are
random: they take the same time. For the population, each client owns two samples of eight numbers and 10 clients are
drawn a round, so that a million clients fit into memory. "Further MB" is the growth of the process's (or the GPU's)
peak memory while those five rounds are played.
"""

import argparse
import json
import resource
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedntd import Augment, Dataset, Federation, from_tensors
from fedntd.config.toml import from_table
from fedntd.support.environment import environment

ROUNDS = 5
ON_GPU = torch.cuda.is_available()


def images(samples: int) -> Dataset:
    """Random images of MNIST's shape on a CPU and of CIFAR-10's on a GPU."""
    shape = (3, 32, 32) if ON_GPU else (1, 28, 28)
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=rng)
    part = (x, torch.arange(samples) % 10)
    return from_tensors("noise", part, (x[:500], part[1][:500]), augment=Augment(pad=4, flip=True, cutout=16))


def vectors(samples: int) -> Dataset:
    part = (torch.randn(samples, 8, generator=torch.Generator().manual_seed(0)), torch.arange(samples) % 10)
    return from_tensors("vectors", part, (part[0][:500], part[1][:500]))


def peak_memory() -> float:
    """In MB, so far."""
    return (
        torch.cuda.max_memory_allocated() / 1e6 if ON_GPU else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    )


def measure(dataset: Dataset, net: nn.Module | None, **sections: Any) -> dict[str, float]:
    table = {"partition": {"name": "iid"}, "measure": {"local_every": 0}, **sections}
    federation = Federation(from_table({"precision": "bf16" if ON_GPU else "fp32", **table}), dataset, net)
    first = federation.play_round().seconds
    before = peak_memory()
    seconds = float(np.median([federation.play_round().seconds for _ in range(ROUNDS)]))
    return {"first round": first, "a round": seconds, "further MB": peak_memory() - before}


def cohort(clients: int) -> dict[str, float]:
    """All clients train, 20 samples each."""
    return measure(
        images(20 * clients), None, federation={"clients": clients, "ratio": 1.0, "local_epochs": 1, "batch_size": 20}
    )


def population(clients: int) -> dict[str, float]:
    """Ten clients train, of two samples each."""
    federation = {"clients": clients, "ratio": 10 / clients, "local_epochs": 1, "batch_size": 2}
    return measure(vectors(2 * clients), nn.Linear(8, 10), federation=federation)


def epochs(number: int) -> dict[str, float]:
    return measure(images(1000), None, federation={"clients": 10, "ratio": 1.0, "local_epochs": number})


def model(name: str) -> dict[str, float]:
    return measure(
        images(1000), None, model={"name": name}, federation={"clients": 10, "ratio": 1.0, "local_epochs": 1}
    )


QUESTIONS = {
    "cohort": (cohort, (10, 30, 100, 300, 1000)),
    "population": (population, (100, 1_000, 10_000, 100_000, 1_000_000)),
    "epochs": (epochs, (1, 2, 4, 8)),
    "model": (model, ("cnn", "resnet10", "resnet18")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--out", type=Path, help="also write the table as JSON")
    arguments = parser.parse_args()
    where = environment(torch.device("cuda" if ON_GPU else "cpu"))
    print(f"{date.today()}  {where['device']}, {where['cores']} cores, torch {torch.__version__}")
    rows = []
    for question in arguments.only:
        function, values = QUESTIONS[question]
        print(f"\n{question:>12}{'first round':>14}{'a round':>12}{'further MB':>13}")
        for value in values:
            row = function(value)
            rows.append({"question": question, "value": value, **row})
            print(
                f"{value:>12}{row['first round']:>12.2f} s{1000 * row['a round']:>9.1f} ms{row['further MB']:>13.1f}",
                flush=True,
            )
            if arguments.out:
                arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
