"""Measures the speed of this machine: a few rounds of the demo with each available engine and precision."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from fedntd.config.presets import configure
from fedntd.simulation.federation import Federation


class Speed(NamedTuple):
    """The speed of one device, engine and precision."""

    device: str
    engine: str
    precision: str
    first_round: float  # seconds; on a GPU they include compiling
    round: float  # seconds, the median over the rounds after the first
    samples_per_second: float  # training samples


def measure_speed() -> Iterator[Speed]:
    """Train FedNTD on the packaged images, with 10 clients in each round and a test of the global model after it."""
    for device, engine, precision in settings():
        options = (f"device={device}", f"engine={engine}", f"precision={precision}", "measure.local_every=0")
        federation = Federation(configure("demo", options))
        first, *records = [federation.play_round() for _ in range(4)]
        seconds = float(np.median([record.seconds for record in records]))
        trained = np.mean([sum(len(federation.parts[k]) for k in record.cohort) for record in records])
        rate = float(trained) * federation.config.federation.local_epochs / seconds
        yield Speed(device, engine, precision, first.seconds, seconds, rate)


def settings() -> list[tuple[str, str, str]]:
    """The combinations of device, engine and precision to measure."""
    on_cpu = [("cpu", engine, "fp32") for engine in ("sequential", "vectorised")] + [("cpu", "sequential", "bf16")]
    if not torch.cuda.is_available():
        return on_cpu
    on_gpu = [("cuda", "vectorised", precision) for precision in ("bf16", "tf32", "fp32")]
    return [*on_gpu, ("cuda", "sequential", "fp32"), ("cpu", "sequential", "fp32")]
