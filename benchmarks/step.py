"""What one optimiser step of the vectorised engine costs on this GPU, by the number of clients in it.

    PYTHONPATH=src python benchmarks/step.py [--clients 1 2 10 100] [--precision bf16] [--kernels] [--timeline]

FedNTD on the paper's network, batch 50, images of CIFAR-10's shape (random ones: they take the same time). A step's
time is that of replaying its CUDA graphs, with its share of the work done ahead. `--kernels` also shows the kernels
that take longest, and `--timeline` what runs when and on which stream, for looking ahead and two steps.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cpu_round import cifar10_or_noise
from fedntd import Federation
from fedntd.config.toml import from_table
from fedntd.data.dataset import Part
from fedntd.engine.compiler import AHEAD, Prefetch, Step
from fedntd.engine.vectorised import Vectorised

REPEATS = 1000  # steps that are timed; as many before them wake the chip up from its idle clock
SHOWN = 100  # steps whose kernels are shown


def federation_of(clients: int, arguments: argparse.Namespace) -> Federation:
    settings = {
        "precision": arguments.precision,
        "engine": "vectorised",
        "partition": {"name": "iid"},
        "algorithm": {"name": arguments.algorithm},
        "model": {"name": arguments.model},
        "measure": {"local_every": 0},
        "federation": {"clients": clients, "ratio": 1.0, "local_epochs": 1},
    }
    dataset, _ = cifar10_or_noise("")
    samples = slice(0, 500 * clients)
    part = Part(dataset.train.x[samples], dataset.train.y[samples])
    return Federation(from_table(settings), replace(dataset, train=part))


def take_steps(step: Step, prefetch: Prefetch, plan: torch.Tensor, number: int) -> None:
    for i in range(number):
        if i % AHEAD == 0:
            prefetch.look_ahead(plan)
        step.take()


def show_timeline(profile: torch.profiler.profile) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    for kernel in kernels:
        begin = kernel["ts"] - kernels[0]["ts"]
        stream, name = kernel["args"]["stream"], kernel["name"][:100]
        print(f"    {begin:8.1f} to {begin + kernel['dur']:8.1f} µs  stream {stream:<4} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 2, 3, 4, 6, 8, 10, 30, 100])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--algorithm", default="fedntd")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--kernels", action="store_true", help="also show the kernels that take longest")
    parser.add_argument("--timeline", action="store_true", help="also show what runs when")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.algorithm}, {arguments.precision}")
    for clients in arguments.clients:
        federation = federation_of(clients, arguments)
        federation.play_round()
        engine = federation.engine
        assert isinstance(engine, Vectorised)
        (step,), (prefetch,) = engine.steps.values(), engine.prefetches.values()
        plan = engine.prepare([federation.task(1, k) for k in federation.cohort(1)]).chunks[0].plan[: AHEAD * clients]
        step.begin()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        take_steps(step, prefetch, plan, REPEATS)
        start.record()
        take_steps(step, prefetch, plan, REPEATS)
        end.record()
        torch.cuda.synchronize()
        milliseconds = start.elapsed_time(end) / REPEATS
        print(f"{clients:4} clients  {milliseconds:7.3f} ms a step  {1000 * milliseconds / clients:7.1f} µs a client")
        if arguments.kernels:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                take_steps(step, prefetch, plan, SHOWN)
                torch.cuda.synchronize()
            kernels = sorted(profile.key_averages(), key=lambda k: -k.device_time_total)
            for kernel in kernels[:40]:
                share = kernel.device_time_total / SHOWN
                print(f"    {share:7.1f} µs  {kernel.count / SHOWN:5.1f} x  {kernel.key[:110]}")
        if arguments.timeline:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                take_steps(step, prefetch, plan, 2)
                torch.cuda.synchronize()
            show_timeline(profile)


if __name__ == "__main__":
    main()
