"""What a sweep will take, from a few rounds of each group."""

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

ROUNDS = 3  # the first of them compiles and warms up
ENOUGH = 60.0  # seconds of measuring, after which the groups left are taken to be like those before


class Estimate(NamedTuple):
    seconds: float
    bytes: int  # of the device at most; on a CPU, of the process
    measured: bool
    failure: str = ""  # why a run failed that was tried


def estimate(groups: Sequence[Sequence[Job]]) -> list[Estimate]:
    """Of each group: what is left of it."""
    estimates: list[Estimate] = []
    paces: list[float] = []  # seconds that one round of one run took
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
    """Seconds before the second round, seconds that a round of one run takes, memory, and why a run failed.

    On a GPU all runs of the group are tried, since together they are faster than one by one; on a CPU one of them."""
    device = choose_device(group[0].config)
    on_gpu = device.type == "cuda"
    rounds = min(ROUNDS, group[0].config.federation.rounds)
    tried = [replace(job.config, federation=replace(job.config.federation, rounds=rounds)) for job in group]
    tried = tried if on_gpu else tried[:1]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    arrived = {}
    failure = ""
    try:
        for _, got in federate_together(tried, [None] * len(tried)):
            if isinstance(got, FedntdError):
                failure = failure or str(got)
            else:
                arrived[got.round] = time.perf_counter()
    except Exception as error:  # such as too little memory for all of them, which the sweep itself deals with
        failure = reason_of(error)
    if not arrived:
        return time.perf_counter() - started, 0.0, 0, failure
    last = max(arrived)
    pace = (arrived[last] - arrived[1]) / (last - 1) / len(tried) if last > 1 else arrived[1] - started
    memory = torch.cuda.max_memory_allocated(device) if on_gpu else process_memory()
    return max(0.0, arrived[1] - started - pace * len(tried)), pace, memory, failure


def process_memory() -> int:
    """0 where it is not to be had."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def told(one: Estimate) -> tuple[str, str]:
    if one.failure and not one.bytes:
        return "–", "–"
    sign = "" if one.measured else "≈ "
    return sign + duration(one.seconds), f"{sign}{one.bytes / 1e9:.1f} GB" if one.bytes else "–"
