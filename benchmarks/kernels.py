"""Each of the convolutions of the paper's network on this GPU, with several tile sizes.

    PYTHONPATH=src python benchmarks/kernels.py [--clients 10] [--precision bf16] [--tune]

Shows the time of a launch for all clients (batch 50), and what it achieves; `--tune` tries other tiles than those in
`triton_kernels.TILES`, the fastest first. The time of a weight gradient is with the sum of its parts.
"""

import argparse
import contextlib
import multiprocessing
from collections.abc import Callable

import torch
from triton.testing import do_bench_cudagraph

from fedntd import kernels, triton_kernels

BATCH = 50
# what, kind of tiles, channels, outputs, side of the image, pooling; a data gradient is a forward pass of the gradient
LAYERS = [
    ("conv1 forward", "window forward", 4, 32, 32, True),
    ("conv2 forward", "pooled forward", 32, 64, 16, True),
    ("conv2 data gradient", "forward", 64, 32, 16, False),
    ("conv1 weight gradient", "window weight gradient", 4, 32, 32, True),
    ("conv2 weight gradient", "weight gradient", 32, 64, 16, False),
]
ROWS = {
    "forward": (64, 128, 256),
    "pooled forward": (32, 64, 128),
    "window forward": (64, 128, 256),
    "weight gradient": (32, 64, 128),
    "window weight gradient": (32, 64, 128),
}
DEPTHS = {
    "forward": (32, 64),
    "pooled forward": (32, 64),
    "window forward": (16, 32, 64),
    "weight gradient": (64, 128, 256),
    "window weight gradient": (64, 128, 256),
}


def launch(kind: str, clients: int, channels: int, outputs: int, side: int, pool: bool, dtype: torch.dtype) -> Callable:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(clients, *shape, device="cuda").to(dtype)

    images = random(BATCH, side + 4, side + 4, channels)
    if kind == "weight gradient":
        dy = random(BATCH, side + 4, side + 4, outputs)
        return lambda: kernels.conv_weight_gradient(dy, None, images, 5)
    if kind == "window weight gradient":
        dy = random(BATCH, side // 2, side // 2, outputs)
        index = torch.randint(5, dy.shape, device="cuda", dtype=torch.uint8)
        return lambda: kernels.conv_weight_gradient(dy, index, images, 5)
    tables = random(36 * channels, 4, outputs) if kind == "window forward" else random(25 * channels, 1, outputs)
    bias = torch.zeros(clients, outputs, device="cuda").to(dtype)
    return lambda: kernels.conv_forward(images, tables, bias, 5, 2 if pool else 1, pool)


def compile_once(layer: tuple, tile: tuple, clients: int, dtype: torch.dtype) -> None:
    """In a process of its own, so that many compile side by side; what they compile is kept on disk."""
    torch.backends.cuda.matmul.allow_tf32 = True
    _, kind, channels, outputs, side, pool = layer
    triton_kernels.TILES[kind, 8 * dtype.itemsize] = (tile, tile)
    with contextlib.suppress(Exception):  # a tile that asks for too much shared memory: said when it is timed
        launch(kind, clients, channels, outputs, side, pool, dtype)()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--precision", choices=["bf16", "tf32"], default="bf16")
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    dtype, bits = (torch.bfloat16, 16) if arguments.precision == "bf16" else (torch.float32, 32)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.clients} clients, {arguments.precision}"
    )
    tried = {layer[0]: [triton_kernels.TILES[layer[1], bits][layer[2] >= 16]] for layer in LAYERS}
    if arguments.tune:
        for what, kind, *_ in LAYERS:
            more = ((m, k, w, s) for m in ROWS[kind] for k in DEPTHS[kind] for w in (4, 8) for s in (2, 3, 4))
            tried[what] = list(dict.fromkeys([*tried[what], *more]))
        with multiprocessing.get_context("spawn").Pool() as workers:
            work = [(layer, tile, arguments.clients, dtype) for layer in LAYERS for tile in tried[layer[0]]]
            workers.starmap(compile_once, work, chunksize=4)
    for what, kind, channels, outputs, side, pool in LAYERS:
        run = launch(kind, arguments.clients, channels, outputs, side, pool, dtype)
        operations = 2 * 25 * channels * outputs * side**2 * BATCH * arguments.clients
        tiles = triton_kernels.TILES[kind, bits]
        chosen = tiles[channels >= 16]
        times = {}
        for tile in tried[what]:
            triton_kernels.TILES[kind, bits] = (tile, tile)
            try:
                times[tile] = do_bench_cudagraph(run)
            except Exception as error:  # tiles that ask for more shared memory than there is
                print(f"    {tile}: {str(error).splitlines()[0]}")
        triton_kernels.TILES[kind, bits] = tiles
        for tile, milliseconds in sorted(times.items(), key=lambda item: item[1])[:5]:
            rate = operations / milliseconds / 1e9
            mark = "  in use" if tile == chosen else ""
            print(f"{what:22} {tile!s:20} {1000 * milliseconds:7.1f} µs {rate:7.0f} TFLOP/s{mark}", flush=True)
        if times and chosen not in sorted(times, key=lambda tile: times[tile])[:5] and chosen in times:
            print(f"{what:22} {chosen!s:20} {1000 * times[chosen]:7.1f} µs, in use", flush=True)


if __name__ == "__main__":
    main()
