"""How large a piece of a convolution one program of triton_kernels.py works on: small enough that all processors of a
chip have something to do, large enough that what is read is used often."""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

# rows, depth, warps, stages, for few channels and for many: fastest of those tried on an H200 with the paper's layers
# (ten clients, batch 50), but for the 32-bit weight gradient, which has changed since
TILES = {
    ("forward", 16): ((128, 32, 4, 3), (256, 32, 4, 2)),
    ("forward", 32): ((128, 32, 4, 3), (256, 32, 4, 3)),
    ("pooled forward", 16): ((128, 32, 4, 2), (64, 32, 4, 4)),
    ("pooled forward", 32): ((32, 64, 4, 2), (128, 32, 8, 3)),
    ("window forward", 16): ((128, 16, 4, 4), (128, 64, 4, 3)),
    ("weight gradient", 16): ((32, 128, 4, 3), (64, 128, 8, 4)),
    ("weight gradient", 32): ((32, 128, 4, 2), (32, 64, 4, 2)),
    ("window weight gradient", 16): ((64, 64, 4, 4),),
}
LEAST_ROWS = 64  # with fewer, tensor cores are not used in full


class Chip(NamedTuple):
    processors: int
    shared: int  # bytes of shared memory that a program can have


@cache
def chip_of(device: torch.device) -> Chip:
    if device.type != "cuda":  # the interpreter: those of an H200
        return Chip(132, 232448)
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)  # pyright: ignore
    return Chip(properties["multiprocessor_count"], properties["max_shared_mem"])


def stages_that_fit(wanted: int, numbers: int, x: Tensor, besides: int = 0) -> int:
    """How many steps can be under way at once, each with so many numbers in shared memory."""
    room = chip_of(x.device).shared - besides * x.element_size()
    return max(1, min(wanted, room // (numbers * x.element_size())))


def tile(wanted: int, most: int) -> int:
    """A power of two from 16 (the least a matrix instruction takes) to `most` that covers `wanted` if it can."""
    return min(most, max(16, triton.next_power_of_2(wanted)))


class Tiles(NamedTuple):
    """What one program of a kernel does: so many rows, columns and depth at a time, with how many warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1  # of a sum over rows, each a program's


def forward_tiles(kind: str, images: Tensor, features: int, outputs: int) -> Tiles:
    groups, channels = len(images), images.shape[-1]
    rows, depth, warps, stages = TILES[kind, 8 * images.element_size()][channels >= 16]
    patches, places = (4 if kind == "pooled forward" else 1), (4 if kind == "window forward" else 1)
    columns = tile(features, 64 if places == 1 else 32)
    # whole windows are so much work that it does not pay to have more than one program on a processor
    enough = chip_of(images.device).processors // (2 if places == 4 and channels >= 16 else 1)
    while rows > LEAST_ROWS and groups * triton.cdiv(outputs, rows) < enough:
        rows //= 2  # few clients: smaller tiles, so that the whole chip has something to do
        if channels >= 16:  # and longer steps, since each waits for its pixels
            depth, stages = (64, 4) if places == 1 else (128, 3)
    stages = stages_that_fit(stages, depth * (patches * rows + places * columns), images)
    return Tiles(rows, columns, depth, warps, stages)


def gradient_tiles(kind: str, images: Tensor, features: int, depth: int, outputs: int) -> Tiles:
    window = kind == "window weight gradient"
    rows, most, warps, stages = TILES[kind, 8 * images.element_size()][images.shape[-1] >= 16]
    columns, deep = tile(features, 32 if window else 64), tile(depth, most)
    across = triton.cdiv(depth, deep) * triton.cdiv(features, columns)
    processors = chip_of(images.device).processors
    # of at least eight tiles each; some programs keep a processor busy, and for one group one on each are enough
    at_once = (2 if warps == 8 else 6) * processors
    parts = min(triton.cdiv(outputs, 8 * rows), processors // across, at_once // (len(images) * across))
    besides = rows * (deep + (4 if window else 1) * columns)
    stages = stages_that_fit(stages, rows * (deep + 2 * columns), images, besides)
    return Tiles(rows, columns, deep, warps, stages, max(1, parts))
