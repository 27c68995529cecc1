"""Triton kernels for the grouped convolutions of convolution.py.

cuDNN computes grouped convolutions one group at a time, in part without tensor cores. Here the groups are one axis of
the launch grid, and bias, 2x2 max-pooling and ReLU are applied before anything is written. Both kernels are implicit
matrix products over channels-last images with a border of zeros, where each row of a patch is contiguous in memory:

    forward          out[m, n] = sum_k patch[m, k] · weight[k, n]    m: a place in an image, k: (row, column, channel)
    weight gradient  dw[k, n]  = sum_m patch[m, k] · dy[m, n]        in parts, summed by another kernel
    bias gradient    db[n]     = sum_m dy[m, n]                      as a last row of dw

With WINDOW, m is a 2x2 pooling window. Its patch has one more row and column, and there are four tables of weights side
by side, one for each place of the window: 4·N columns.

Neighbouring patches overlap, so every pixel is read up to 25 times. `.ca` keeps it in the processor's own cache (Triton
3.6 respects this only for loads of less than 16 bytes).
There are no atomic additions, so repeated runs are bit-identical.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false
# (Triton compiles these functions; their types are not Python's)

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedntd.kernels.tiles import forward_tiles, gradient_tiles


@triton.jit
def corner_of(m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BORDER: tl.constexpr, STEP: tl.constexpr):
    """The first pixel, in the bordered images, of the patch of output m. Outputs are STEP pixels apart."""
    column = m % (WIDTH // STEP) * STEP
    row = m // (WIDTH // STEP) % (HEIGHT // STEP) * STEP
    image = m // (HEIGHT // STEP * (WIDTH // STEP))
    return (image * (HEIGHT + 2 * BORDER) + row) * (WIDTH + 2 * BORDER) + column


@triton.jit
def along_patch(k, ROW: tl.constexpr, PITCH: tl.constexpr, RUN: tl.constexpr):
    """The offset of the k-th number of a patch from its first. A patch has ROW numbers in each row of the image."""
    return tl.max_contiguous(tl.multiple_of(k // ROW * PITCH + k % ROW, RUN), RUN)


@triton.jit
def load_patch(pointers, k, DEPTH: tl.constexpr, BK: tl.constexpr):
    if DEPTH % BK == 0:
        return tl.load(pointers, cache_modifier=".ca")
    else:
        return tl.load(pointers, mask=(k < DEPTH)[None, :], other=0.0, cache_modifier=".ca")


@triton.jit
def columns_of(tile, PLACES: tl.constexpr, BN: tl.constexpr):
    """The place and the feature of each column. The places are side by side, each with the same features."""
    column = tl.arange(0, PLACES * BN)
    return column // BN, tile * BN + column % BN


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, index_ptr, x_group, w_group, b_group, outputs,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
    RUN: tl.constexpr, STEP: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    SIDE: tl.constexpr = SIZE + 1 if WINDOW else SIZE
    PLACES: tl.constexpr = 4 if WINDOW else 1
    DEPTH: tl.constexpr = SIDE * SIDE * C
    PITCH: tl.constexpr = (WIDTH + SIZE - 1) * C
    group = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    place, feature = columns_of(tl.program_id(2), PLACES, BN)
    n = tl.program_id(2) * BN + tl.arange(0, BN) if POOL else feature  # pooling reduces the four places to one
    x_ptr += group * x_group
    w_ptr += group * w_group
    patch_ptr = x_ptr + (corner_of(tl.minimum(m, outputs - 1), HEIGHT, WIDTH, SIZE // 2, STEP) * C)[:, None]
    bias = tl.zeros(n.shape, dtype=tl.float32)
    if BIAS:
        bias = tl.load(b_ptr + group * b_group + n, mask=n < N, other=0.0).to(tl.float32)
    total = tl.zeros((BM, PLACES * BN), dtype=tl.float32)
    right, below, across = total, total, total
    for k0 in range(0, DEPTH, BK):
        k = k0 + tl.arange(0, BK)
        table = w_ptr + (k * PLACES * N)[:, None] + (place * N + feature)[None, :]
        weight = tl.load(table, mask=(k < DEPTH)[:, None] & (feature < N)[None, :], other=0.0)
        run = patch_ptr + along_patch(k, SIDE * C, PITCH, RUN)[None, :]
        total = tl.dot(load_patch(run, k, DEPTH, BK), weight, total, input_precision=PRECISION)
        if POOL and not WINDOW:  # the other three places of the window
            down = run + PITCH
            right = tl.dot(load_patch(run + C, k, DEPTH, BK), weight, right, input_precision=PRECISION)
            below = tl.dot(load_patch(down, k, DEPTH, BK), weight, below, input_precision=PRECISION)
            across = tl.dot(load_patch(down + C, k, DEPTH, BK), weight, across, input_precision=PRECISION)
    where = (group * outputs + m)[:, None] * N + n[None, :]
    good = (m < outputs)[:, None] & (n < N)[None, :]
    if POOL:
        if WINDOW:
            left, right = total.reshape(BM, 2, 2, BN).permute(0, 3, 1, 2).split()
            total, below = left.split()
            right, across = right.split()
        lower = tl.maximum(below, across)
        others = tl.maximum(right, lower)
        corner = tl.where(total >= others, 0, tl.where(right >= lower, 1, tl.where(below >= across, 2, 3)))
        total = tl.maximum(total, others) + bias[None, :]
        tl.store(index_ptr + where, tl.where(total > 0, corner, 4).to(tl.uint8), mask=good)
        total = tl.maximum(total, 0.0)
    else:
        total += bias[None, :]
        if WINDOW:  # all four
            pixel = group * outputs * PLACES + corner_of(m, HEIGHT, WIDTH, 0, STEP)
            where = (pixel[:, None] + (place // 2 * WIDTH + place % 2)[None, :]) * N + n[None, :]
    tl.store(out_ptr + where, total.to(out_ptr.dtype.element_ty), mask=good)


@triton.jit
def of_gradient(m, n, rows, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
                WINDOW: tl.constexpr):  # fmt: skip
    """The offsets in dy of outputs m and features n, and whether they exist.

    With WINDOW, dy has no border. Otherwise it has the border of the images, and an output is at the middle of its
    patch.
    """
    middle = corner_of(tl.minimum(m, rows - 1), HEIGHT, WIDTH, SIZE // 2, 1) + (WIDTH + SIZE) * (SIZE // 2)
    return ((m if WINDOW else middle) * N)[:, None] + n[None, :], (m < rows)[:, None] & (n < N)[None, :]


@triton.jit
def weight_gradient_kernel(
    dy_ptr, index_ptr, x_ptr, part_ptr, dy_group, index_group, x_group, rows, share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
    RUN: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    SIDE: tl.constexpr = SIZE + 1 if WINDOW else SIZE
    PLACES: tl.constexpr = 4 if WINDOW else 1
    DEPTH: tl.constexpr = SIDE * SIDE * C
    PITCH: tl.constexpr = (WIDTH + SIZE - 1) * C
    column_tiles = tl.cdiv(N, BN)
    k = tl.program_id(0) // column_tiles * BK + tl.arange(0, BK)
    n = tl.program_id(0) % column_tiles * BN + tl.arange(0, BN)
    place, feature = columns_of(tl.program_id(0) % column_tiles, PLACES, BN)
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    first, end = part * share, min(part * share + share, rows)
    x_ptr += group * x_group
    dy_ptr += group * dy_group
    index_ptr += group * index_group
    part_ptr += (group * tl.num_programs(2) + part) * (DEPTH + BIAS) * PLACES * N
    if BIAS and tl.program_id(0) // column_tiles == tl.cdiv(DEPTH, BK):  # separate programs for the bias
        sums = tl.zeros((2 * BM, BN), dtype=tl.float32)
        for m0 in tl.range(first, end, 2 * BM, num_stages=4):  # without a product, prefetching is not automatic
            where, good = of_gradient(m0 + tl.arange(0, 2 * BM), n, end, HEIGHT, WIDTH, N, SIZE, WINDOW)
            dy = tl.load(dy_ptr + where, mask=good, other=0.0).to(tl.float32)
            if WINDOW:
                dy = tl.where(tl.load(index_ptr + where, mask=good, other=4) < 4, dy, 0.0)
            sums += dy
        sums = tl.sum(sums, 0)
        for p in tl.static_range(PLACES):
            tl.store(part_ptr + (DEPTH * PLACES + p) * N + n, sums if p == 0 else tl.zeros_like(sums), mask=n < N)
    else:
        away = along_patch(k, SIDE * C, PITCH, RUN)
        total = tl.zeros((BK, PLACES * BN), dtype=tl.float32)
        for m0 in range(first, end, BM):
            m = m0 + tl.arange(0, BM)
            corner = corner_of(tl.minimum(m, rows - 1), HEIGHT, WIDTH, SIZE // 2, 2 if WINDOW else 1)
            patch = load_patch(x_ptr + (corner * C)[:, None] + away[None, :], k, DEPTH, BK)
            where, good = of_gradient(m, n, rows, HEIGHT, WIDTH, N, SIZE, WINDOW)
            dy = tl.load(dy_ptr + where, mask=good, other=0.0)
            if WINDOW:  # four columns of places, each with the gradients of its own maxima
                index = tl.load(index_ptr + where, mask=good, other=0)
                none = tl.zeros_like(dy)
                upper = tl.join(tl.where(index == 0, dy, none), tl.where(index == 1, dy, none))
                lower = tl.join(tl.where(index == 2, dy, none), tl.where(index == 3, dy, none))
                dy = tl.join(upper, lower).permute(0, 3, 2, 1).reshape(BM, PLACES * BN)
            if SPLIT:
                # Tensor cores take transposed operands in 16 bits only. A float32 as a sum of two bfloat16 keeps 16
                # bits of its mantissa, more than TF32's 10, and three such products are still far faster.
                patch_high, dy_high = patch.to(tl.bfloat16), dy.to(tl.bfloat16)
                patch_low = tl.trans((patch - patch_high.to(tl.float32)).to(tl.bfloat16))
                dy_low = (dy - dy_high.to(tl.float32)).to(tl.bfloat16)
                patch_high = tl.trans(patch_high)
                total = tl.dot(patch_low, dy_high, total)
                total = tl.dot(patch_high, dy_low, total)
                total = tl.dot(patch_high, dy_high, total)
            else:
                total = tl.dot(tl.trans(patch), dy, total, input_precision=PRECISION)
        where = (k * PLACES * N)[:, None] + (place * N + feature)[None, :]
        tl.store(part_ptr + where, total, mask=(k < DEPTH)[:, None] & (feature < N)[None, :])


@triton.jit(do_not_specialize=["parts"])
def sum_kernel(
    part_ptr, out_ptr, parts, C: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the parts of a weight gradient, and with WINDOW its four tables. Each result is a sum of ROWS numbers."""
    SIDE: tl.constexpr = SIZE + 1 if WINDOW else SIZE
    PLACES: tl.constexpr = 4 if WINDOW else 1
    NUMBERS: tl.constexpr = (SIZE * SIZE * C + BIAS) * N
    PART: tl.constexpr = (SIDE * SIDE * C + BIAS) * PLACES * N
    group = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k, n = at // N, at % N
    of_weight, pixel = k < SIZE * SIZE * C, k // C
    corner = tl.where(of_weight, (pixel // SIZE * SIDE + pixel % SIZE) * C + k % C, SIDE * SIDE * C)
    row = tl.arange(0, ROWS)
    part, place = row // PLACES, row % PLACES
    away = tl.where(of_weight[None, :], ((place // 2 * SIDE + place % 2) * C)[:, None], 0)
    where = (part * PART + place * N)[:, None] + (corner[None, :] + away) * PLACES * N + n[None, :]
    good = (part < parts)[:, None] & (at < NUMBERS)[None, :]
    total = tl.sum(tl.load(part_ptr + group * parts * PART + where, mask=good, other=0.0), 0)
    tl.store(out_ptr + group * NUMBERS + at, total, mask=at < NUMBERS)


SUMMED = 4096  # numbers that a program of sum_kernel reads


def dot_precision(x: Tensor) -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 or x.dtype != torch.float32 else "ieee"


def run_of(row: int, pitch: int) -> int:
    """How many consecutive numbers of a patch are always contiguous in memory, at a multiple of their number."""
    return math.gcd(row, pitch, 16)


def by_group(tensor: Tensor) -> Tensor:
    """The tensor with each group contiguous. Groups that share memory continue to share it."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def forward(
    images: Tensor, tables: Tensor, bias: Tensor | None, out: Tensor, index: Tensor, size: int, step: int, pool: bool
) -> None:
    """Compute `out`, and with `pool` also `index`."""
    images, tables, added = by_group(images), by_group(tables), by_group(images if bias is None else bias)
    groups, batch, height, width, channels = images.shape
    features, window = tables.shape[3], tables.shape[2] > 1
    run = run_of((size + window) * channels, width * channels)
    height, width = height - size + 1, width - size + 1
    step = 2 if window else step  # windows are two pixels apart
    outputs = batch * (height // step) * (width // step)
    kind = "window forward" if window else "pooled forward" if pool else "forward"
    tiles = forward_tiles(kind, images, features, outputs)
    forward_kernel[(triton.cdiv(outputs, tiles.rows), groups, triton.cdiv(features, tiles.columns))](
        images, tables, added, out, index, images.stride(0), tables.stride(0), added.stride(0), outputs,
        HEIGHT=height, WIDTH=width, C=channels, N=features, SIZE=size, RUN=run, STEP=step, POOL=pool, WINDOW=window,
        BIAS=bias is not None, BM=tiles.rows, BN=tiles.columns, BK=tiles.depth, PRECISION=dot_precision(images),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def weight_gradient(dy: Tensor, index: Tensor | None, images: Tensor, table: Tensor, size: int, bias: bool) -> None:
    """Compute `table`, in parts that are then summed, so that all processors are used."""
    window = index is not None
    dy, index, images = by_group(dy), by_group(index if window else dy), by_group(images)
    groups, batch, height, width, channels = images.shape
    run = run_of((size + window) * channels, width * channels)
    height, width = height - size + 1, width - size + 1
    places, depth, features = (4 if window else 1), (size + window) ** 2 * channels, table.shape[2]
    outputs = batch * height * width // places
    tiles = gradient_tiles("window weight gradient" if window else "weight gradient", images, features, depth, outputs)
    share = tiles.rows * triton.cdiv(triton.cdiv(outputs, tiles.parts), tiles.rows)
    parts = triton.cdiv(outputs, share)
    summed = parts > 1 or window
    partial = table.new_empty(groups, parts, depth + bias, places, features) if summed else table
    across = (triton.cdiv(depth, tiles.depth) + bias) * triton.cdiv(features, tiles.columns)
    weight_gradient_kernel[(across, groups, parts)](
        dy, index, images, partial, dy.stride(0), index.stride(0), images.stride(0), outputs, share,
        HEIGHT=height, WIDTH=width, C=channels, N=features, SIZE=size, RUN=run, WINDOW=window, BIAS=bias,
        BM=tiles.rows, BN=tiles.columns, BK=tiles.depth,
        SPLIT=dy.dtype == torch.float32 and dot_precision(dy) == "tf32", PRECISION=dot_precision(dy),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if summed:
        rows = triton.next_power_of_2(parts * places)
        block = max(1, SUMMED // rows)
        sum_kernel[(triton.cdiv(table[0].numel(), block), groups)](
            partial, table, parts, C=channels, N=features, SIZE=size, WINDOW=window, BIAS=bias, ROWS=rows, BLOCK=block
        )
