"""Estimate the time and memory of a sweep by training a few rounds of each group."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from fedntd.engine.devices import choose_device
from fedntd.errors import FedntdError
from fedntd.simulation.together import federate_together
from fedntd.support.wording import duration
from fedntd.sweep.execute import reason_of
from fedntd.sweep.jobs import Job
from fedntd.sweep.show import rounds_left

ROUNDS = 3  # trained per group; the first one compiles and warms up
ENOUGH = 60.0  # seconds of measuring; later groups get the mean pace of those measured


class Estimate(NamedTuple):
    """The remaining cost of a group."""

    seconds: float
    bytes: int  # peak memory of the GPU, or of this process on a CPU
    measured: bool  # False: extrapolated from other groups
    failure: str = ""  # why a measured run failed


def estimate(groups: Sequence[Sequence[Job]]) -> list[Estimate]:
    """Estimate the remaining cost of each group."""
    estimates: list[Estimate] = []
    paces: list[float] = []  # measured seconds per round of one run
    started = time.monotonic()
    for group in groups:
        left = [job for job in group if job.status != "finished"]
        if not left:
            estimates.append(Estimate(0.0, 0, True))
        elif paces and time.monotonic() - started > ENOUGH:
            pace = sum(paces) / len(paces)
            estimates.append(Estimate(pace * rounds_left(left), max(e.bytes for e in estimates), False))
        else:
            first, pace, memory, failure = measure(left)
            paces += [pace] if pace else []
            estimates.append(Estimate(first + pace * rounds_left(left), memory, True, failure))
    return estimates


def measure(group: Sequence[Job]) -> tuple[float, float, int, str]:
    """Return the seconds of start-up, the seconds per round of one run, the peak memory, and why a run failed.

    On a GPU all runs of the group are trained, since together they are faster than one by one; on a CPU only one.
    """
    device = choose_device(group[0].config)
    on_gpu = device.type == "cuda"
    rounds = min(ROUNDS, group[0].config.federation.rounds)
    configs = [replace(job.config, federation=replace(job.config.federation, rounds=rounds)) for job in group]
    configs = configs if on_gpu else configs[:1]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    arrived: dict[int, float] = {}  # round -> when its record came
    failure = ""
    try:
        for _, outcome in federate_together(configs, [None] * len(configs)):
            if isinstance(outcome, FedntdError):
                failure = failure or str(outcome)
            else:
                arrived[outcome.round] = time.perf_counter()
    except Exception as error:  # e.g. out of memory, which the sweep itself handles
        failure = reason_of(error)
    if not arrived:
        return time.perf_counter() - started, 0.0, 0, failure
    last = max(arrived)
    pace = (arrived[last] - arrived[1]) / (last - 1) / len(configs) if last > 1 else arrived[1] - started
    memory = torch.cuda.max_memory_allocated(device) if on_gpu else process_memory()
    return max(0.0, arrived[1] - started - pace * len(configs)), pace, memory, failure


def process_memory() -> int:
    """Peak memory of this process in bytes; 0 where the platform does not tell."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def cost_texts(cost: Estimate) -> tuple[str, str]:
    """Time and memory as text; ≈ marks extrapolated values."""
    if cost.failure and not cost.bytes:
        return "–", "–"
    sign = "" if cost.measured else "≈ "
    return sign + duration(cost.seconds), f"{sign}{cost.bytes / 1e9:.1f} GB" if cost.bytes else "–"
