"""Tile sizes of the kernels in triton_kernels.py.

A tile is the piece of a convolution that one program computes. It should be small enough to occupy all processors of a
chip, and large enough to reuse what it reads.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

# By kernel and bits: (rows, depth, warps, stages) for few channels and for many. The fastest of those tried on an H200
# with the paper's layers (ten clients, batch 50), except for the 32-bit weight gradient, which has changed since.
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
LEAST_ROWS = 64  # with fewer rows, tensor cores are not fully used


class Chip(NamedTuple):
    processors: int
    shared: int  # bytes of shared memory available to a program


@cache
def chip_of(device: torch.device) -> Chip:
    if device.type != "cuda":  # for Triton's interpreter: the numbers of an H200
        return Chip(132, 232448)
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)  # pyright: ignore
    return Chip(properties["multiprocessor_count"], properties["max_shared_mem"])


def stages_that_fit(wanted: int, numbers: int, x: Tensor, reserved: int = 0) -> int:
    """The number of pipeline stages, at most `wanted`, that fit into shared memory.

    Each stage holds `numbers` numbers of the type of `x`; `reserved` more are needed for other purposes.
    """
    room = chip_of(x.device).shared - reserved * x.element_size()
    return max(1, min(wanted, room // (numbers * x.element_size())))


def tile(wanted: int, most: int) -> int:
    """A power of two from 16 (the least a matrix instruction takes) to `most` that covers `wanted` if it can."""
    return min(most, max(16, triton.next_power_of_2(wanted)))


class Tiles(NamedTuple):
    """The tile size of a program (rows, columns, and depth of each step), its warps and its pipeline stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    parts: int = 1  # into which a sum over rows is cut, each computed by a program of its own


def forward_tiles(kind: str, images: Tensor, features: int, outputs: int) -> Tiles:
    groups, channels = len(images), images.shape[-1]
    rows, depth, warps, stages = TILES[kind, 8 * images.element_size()][channels >= 16]
    patches, places = (4 if kind == "pooled forward" else 1), (4 if kind == "window forward" else 1)
    columns = tile(features, 64 if places == 1 else 32)
    # whole windows are so much work that a second program on a processor does not pay off
    enough = chip_of(images.device).processors // (2 if places == 4 and channels >= 16 else 1)
    while rows > LEAST_ROWS and groups * triton.cdiv(outputs, rows) < enough:
        rows //= 2  # few clients: smaller tiles occupy the whole chip
        if channels >= 16:  # and deeper steps, since each one waits for its pixels
            depth, stages = (64, 4) if places == 1 else (128, 3)
    stages = stages_that_fit(stages, depth * (patches * rows + places * columns), images)
    return Tiles(rows, columns, depth, warps, stages)


def gradient_tiles(kind: str, images: Tensor, features: int, depth: int, outputs: int) -> Tiles:
    window = kind == "window weight gradient"
    rows, most, warps, stages = TILES[kind, 8 * images.element_size()][images.shape[-1] >= 16]
    columns, deep = tile(features, 32 if window else 64), tile(depth, most)
    across = triton.cdiv(depth, deep) * triton.cdiv(features, columns)
    processors = chip_of(images.device).processors
    # Parts of at least eight tiles, and no more programs than run at once; for a single group, one on each processor.
    at_once = (2 if warps == 8 else 6) * processors
    parts = min(triton.cdiv(outputs, 8 * rows), processors // across, at_once // (len(images) * across))
    reserved = rows * (deep + (4 if window else 1) * columns)
    stages = stages_that_fit(stages, rows * (deep + 2 * columns), images, reserved)
    return Tiles(rows, columns, deep, warps, stages, max(1, parts))
