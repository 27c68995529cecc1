"""Each of the convolutions of the paper's network on this GPU, with several tile sizes.

    PYTHONPATH=src python benchmarks/kernels.py [--clients 1 10] [--precision bf16] [--tune]

Shows the time of a launch for all clients (batch 50), and its TFLOP/s; `--tune` tries other tiles than those
that tiles.py chooses, and lists the fastest first. The time of a weight gradient includes the sum of its parts.
"""

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from itertools import product

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from fedntd.kernels import convolution as kernels
from fedntd.kernels import triton_kernels
from fedntd.kernels.tiles import Tiles

BATCH = 50
# what, kind of tiles, channels, outputs, side of the image, pooling; a data gradient is a forward pass of the gradient
LAYERS = [
    ("conv1 forward", "window forward", 4, 32, 32, True),
    ("conv2 forward", "pooled forward", 32, 64, 16, True),
    ("conv2 data gradient", "window forward", 64, 32, 16, False),
    ("conv1 weight gradient", "window weight gradient", 4, 32, 32, True),
    ("conv2 weight gradient", "weight gradient", 32, 64, 16, False),
]
# in 32 bits, nothing reads whole windows
PLAIN = {("window forward", True): "pooled forward", ("window forward", False): "forward"}
PLAIN |= {("window weight gradient", True): "weight gradient"}
WITHOUT_WINDOWS = [(what, PLAIN.get((kind, pool), kind), c, n, side, pool) for what, kind, c, n, side, pool in LAYERS]
FORWARD = {"rows": (16, 32, 64, 128, 256), "columns": (16, 32, 64), "depth": (16, 32, 64, 128), "parts": (1,)}
GRADIENT = {"rows": (16, 32, 64, 128), "columns": (32, 64), "depth": (32, 64, 128), "parts": (1, 2, 4, 8, 16, 32, 64)}
SHOWN = 5  # of the tiles that were tried
LAUNCHES, REPEATS = 20, 5  # in a graph, and of it


def launch(kind: str, clients: int, channels: int, outputs: int, side: int, pool: bool, dtype: torch.dtype) -> Callable:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(clients, *shape, device="cuda").to(dtype)

    images = random(BATCH, side + 4, side + 4, channels)
    if kind == "weight gradient":
        dy = random(BATCH, side + 4, side + 4, outputs)
        return lambda: kernels.conv_weight_gradient(dy, None, images, 5, True)
    if kind == "window weight gradient":
        dy = random(BATCH, side // 2, side // 2, outputs)
        index = torch.randint(5, dy.shape, device="cuda", dtype=torch.uint8)
        return lambda: kernels.conv_weight_gradient(dy, index, images, 5, True)
    tables = random(36 * channels, 4, outputs) if kind == "window forward" else random(25 * channels, 1, outputs)
    bias = torch.zeros(clients, outputs, device="cuda").to(dtype)
    return lambda: kernels.conv_forward(images, tables, bias, 5, 2 if pool else 1, pool)


def microseconds(run: Callable, tiles: Tiles | None) -> float | None:
    """Of a launch with these tiles, or those that are chosen; None if the GPU has no room for them."""
    chosen = triton_kernels.forward_tiles, triton_kernels.gradient_tiles
    if tiles:
        triton_kernels.forward_tiles = triton_kernels.gradient_tiles = lambda *_: tiles
    try:
        run()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # torch.cuda.graph would empty the cache each time
            graph.capture_begin()
            for _ in range(LAUNCHES):
                run()
            graph.capture_end()
    except (OutOfResources, CompilationError):
        return None
    finally:
        triton_kernels.forward_tiles, triton_kernels.gradient_tiles = chosen
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end) / LAUNCHES)
    return statistics.median(times)


def candidates(kind: str, outputs: int) -> list[Tiles]:
    """Tiles to be tried; what asks for more than a program can have is left out."""
    sizes = GRADIENT if "gradient" in kind else FORWARD
    found = []
    for rows, columns, depth, parts in product(*(sizes[axis] for axis in ("rows", "columns", "depth", "parts"))):
        sums = (depth if "gradient" in kind else rows) * columns * (1 if kind in ("forward", "weight gradient") else 4)
        if columns <= outputs and 512 <= sums <= 32768:
            warps = (4,) if sums < 8192 else (4, 8)
            found += [Tiles(rows, columns, depth, w, stages, parts) for w in warps for stages in (2, 3, 4)]
    return found


def compile_once(layer: tuple, tiles: Tiles, clients: int, dtype: torch.dtype) -> None:
    """In a process of its own, so that many compile side by side; what they compile is kept on disk."""
    torch.backends.cuda.matmul.allow_tf32 = True
    _, kind, channels, outputs, side, pool = layer
    microseconds(launch(kind, clients, channels, outputs, side, pool, dtype), tiles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=[10])
    parser.add_argument("--precision", choices=["bf16", "tf32"], default="bf16")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.precision}")
    layers = LAYERS if dtype == torch.bfloat16 else WITHOUT_WINDOWS
    tried = {layer: candidates(layer[1], layer[3]) if arguments.tune else [] for layer in layers}
    if arguments.tune:
        with multiprocessing.get_context("spawn").Pool() as workers:
            # the number of parts is not compiled in
            work = [(layer, t, 1, dtype) for layer in layers for t in tried[layer] if t.parts == 1]
            workers.starmap(compile_once, work, chunksize=4)
    for clients, layer in product(arguments.clients, layers):
        what, kind, channels, outputs, side, pool = layer
        run = launch(kind, clients, channels, outputs, side, pool, dtype)
        operations = 2 * 25 * channels * outputs * side**2 * BATCH * clients
        found = {tiles: time for tiles in tried[layer] if (time := microseconds(run, tiles))}
        fastest = sorted(found, key=found.__getitem__)[:SHOWN]
        for tiles, time in [(None, microseconds(run, None)), *((t, found[t]) for t in fastest)]:
            shown = tuple(tiles) if tiles else "in use"
            rate = operations / time / 1e6
            print(f"{clients:3} {what:22} {shown!s:26} {time:7.1f} µs {rate:7.0f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
