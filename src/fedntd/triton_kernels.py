"""Triton kernels for the grouped convolutions of kernels.py.

cuDNN works off grouped convolutions one group at a time, in part without tensor cores. Here the groups are one axis of
a launch, and bias, 2x2 max-pooling and ReLU happen before anything is written. All are implicit matrix products over
channels-last images with a border of zeros, in which each row of a patch is one run of memory:

    forward          out[m, n] = sum_k patch[m, k] · weight[k, n]    m: a place in an image, k: (row, column, channel)
    data gradient    the same, of the output's gradient with the weights turned around
    weight gradient  dw[k, n]  = sum_m patch[m, k] · dy[m, n]        in parts that are then summed

No atomic additions, so that repeated runs are the same to the last bit.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAssignmentType=false
# (Triton compiles these functions; their types are not Python's)

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def border_kernel(
    x_ptr, index_ptr, out_ptr, x_group, total, out_group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, BORDER: tl.constexpr, WIDE: tl.constexpr,
    UNPOOL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy images into a border of zeros, with WIDE channels; UNPOOL puts each value where its maximum was."""
    group = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = i % WIDE
    column = i // WIDE % (WIDTH + 2 * BORDER) - BORDER
    row = i // (WIDE * (WIDTH + 2 * BORDER)) % (HEIGHT + 2 * BORDER) - BORDER
    image = i // (WIDE * (WIDTH + 2 * BORDER) * (HEIGHT + 2 * BORDER))
    inside = (c < C) & (column >= 0) & (column < WIDTH) & (row >= 0) & (row < HEIGHT) & (i < total)
    if UNPOOL:
        where = ((image * (HEIGHT // 2) + row // 2) * (WIDTH // 2) + column // 2) * C + c
        inside &= tl.load(index_ptr + group * x_group + where, mask=inside, other=255) == row % 2 * 2 + column % 2
    else:
        where = ((image * HEIGHT + row) * WIDTH + column) * C + c
    value = tl.load(x_ptr + group * x_group + where, mask=inside, other=0.0)
    tl.store(out_ptr + group * out_group + i, value, mask=i < out_group)


@triton.jit
def corner_of(m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BORDER: tl.constexpr, POOL: tl.constexpr):
    """Where the patch of output m begins, in pixels of the bordered images; with pooling, its window's first."""
    STEP: tl.constexpr = 2 if POOL else 1
    column = m % (WIDTH // STEP) * STEP
    row = m // (WIDTH // STEP) % (HEIGHT // STEP) * STEP
    image = m // (HEIGHT // STEP * (WIDTH // STEP))
    return (image * (HEIGHT + 2 * BORDER) + row) * (WIDTH + 2 * BORDER) + column


@triton.jit
def along_patch(k, WIDTH: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr):
    """How far the k-th number of a patch lies from its first: runs of SIZE·C numbers, one from each row."""
    away = k // (SIZE * C) * ((WIDTH + SIZE - 1) * C) + k % (SIZE * C)
    return tl.max_contiguous(tl.multiple_of(away, RUN), RUN)


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, index_ptr, x_group, w_group, b_group, outputs,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
    RUN: tl.constexpr, POOL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    x_ptr += group * x_group
    w_ptr += group * w_group
    patch_ptr = x_ptr + (corner_of(tl.minimum(m, outputs - 1), HEIGHT, WIDTH, SIZE // 2, POOL) * C)[:, None]
    bias = tl.load(b_ptr + group * b_group + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32) + bias
    right, below, across = total, total, total
    for k0 in range(0, SIZE * SIZE * C, BK):
        k = k0 + tl.arange(0, BK)
        known = (k < SIZE * SIZE * C)[:, None] & (n < N)[None, :]
        weight = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=known, other=0.0)
        # past the end of a patch the weights are zero, and what is read there is a number all the same
        run = patch_ptr + along_patch(k, WIDTH, C, SIZE, RUN)[None, :]
        total = tl.dot(tl.load(run), weight, total, input_precision=PRECISION)
        if POOL:  # the other three places of the window
            right = tl.dot(tl.load(run + C), weight, right, input_precision=PRECISION)
            below = tl.dot(tl.load(run + (WIDTH + SIZE - 1) * C), weight, below, input_precision=PRECISION)
            across = tl.dot(tl.load(run + (WIDTH + SIZE) * C), weight, across, input_precision=PRECISION)
    where = (group * outputs + m)[:, None] * N + n[None, :]
    good = (m < outputs)[:, None] & (n < N)[None, :]
    if POOL:
        lower = tl.maximum(below, across)
        others = tl.maximum(right, lower)
        corner = tl.where(total >= others, 0, tl.where(right >= lower, 1, tl.where(below >= across, 2, 3)))
        tl.store(index_ptr + where, corner.to(tl.uint8), mask=good)
        total = tl.maximum(tl.maximum(total, others), 0.0)
    tl.store(out_ptr + where, total.to(out_ptr.dtype.element_ty), mask=good)


@triton.jit
def weight_gradient_kernel(
    dy_ptr, x_ptr, part_ptr, dy_group, x_group, rows, share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
    RUN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    column_tiles = tl.cdiv(N, BN)
    k = tl.program_id(0) // column_tiles * BK + tl.arange(0, BK)
    n = tl.program_id(0) % column_tiles * BN + tl.arange(0, BN)
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    x_ptr += group * x_group
    # the middle of the patch of output m is where dy has it: both have the same border
    dy_ptr += group * dy_group + (SIZE // 2 * (WIDTH + SIZE - 1) + SIZE // 2) * N
    away = along_patch(k, WIDTH, C, SIZE, RUN)
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for m0 in range(part * share, min(part * share + share, rows), BM):
        m = m0 + tl.arange(0, BM)
        corner = corner_of(tl.minimum(m, rows - 1), HEIGHT, WIDTH, SIZE // 2, False)
        patch = tl.load(x_ptr + (corner * C)[:, None] + away[None, :])
        good = (m < rows)[:, None] & (n < N)[None, :]
        dy = tl.load(dy_ptr + (corner * N)[:, None] + n[None, :], mask=good, other=0.0)
        if SPLIT:
            # Tensor cores take transposed operands in 16 bits only. A float32 as a sum of two bfloat16 keeps 16 bits of
            # its mantissa, more than TF32's 10, and three such products are still far faster.
            patch_high, dy_high = patch.to(tl.bfloat16), dy.to(tl.bfloat16)
            patch_low = tl.trans((patch - patch_high.to(tl.float32)).to(tl.bfloat16))
            dy_low = (dy - dy_high.to(tl.float32)).to(tl.bfloat16)
            patch_high = tl.trans(patch_high)
            total = tl.dot(patch_low, dy_high, total)
            total = tl.dot(patch_high, dy_low, total)
            total = tl.dot(patch_high, dy_high, total)
        else:
            total = tl.dot(tl.trans(patch), dy, total, input_precision=PRECISION)
    where = ((group * tl.num_programs(2) + part) * (SIZE * SIZE * C) + k)[:, None] * N + n[None, :]
    tl.store(part_ptr + where, total, mask=(k < SIZE * SIZE * C)[:, None] & (n < N)[None, :])


@triton.jit
def pack_kernel(
    w_ptr, out_ptr, w_group, n_stride, c_stride, y_stride, x_stride, total,
    C: tl.constexpr, WIDE: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights as a table [k, n], k: (row, column, channel), with zeros for the channels that were added."""
    group = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, c, tap = i % N, i // N % WIDE, i // (N * WIDE)
    where = n * n_stride + c * c_stride + tap // SIZE * y_stride + tap % SIZE * x_stride
    value = tl.load(w_ptr + group * w_group + where, mask=(i < total) & (c < C), other=0.0)
    tl.store(out_ptr + group * total + i, value, mask=i < total)


def bordered_size(batch: int, channels: int, height: int, width: int, border: int) -> tuple[int, int, int]:
    """Of a group's images with their border: channels, numbers, and numbers with the rest in which a patch may end.

    Three channels become four: whole words are read faster.
    """
    wide, size = 4 if channels == 3 else channels, 2 * border + 1
    total = batch * (height + 2 * border) * (width + 2 * border) * wide
    last = -(-size * size * wide // 128) * 128  # depths are read in tiles of at most 128
    rest = (last // (size * wide) + 1) * (width + 2 * border) * wide + 128
    return wide, total, -(-(total + rest) // 64) * 64


# rows, depth, warps, stages, for few channels and for many: fastest of those tried on an H200 with the paper's layers
# (ten clients, batch 50), but for the 32-bit weight gradient, which has changed since
TILES = {
    ("forward", 16): ((128, 32, 4, 3), (256, 32, 4, 2)),
    ("forward", 32): ((128, 32, 4, 3), (256, 32, 4, 3)),
    ("pooled forward", 16): ((128, 32, 4, 2), (64, 32, 4, 4)),
    ("pooled forward", 32): ((32, 64, 4, 2), (128, 32, 8, 3)),
    ("weight gradient", 16): ((32, 128, 4, 3), (32, 64, 4, 4)),
    ("weight gradient", 32): ((32, 128, 4, 2), (32, 64, 4, 2)),
}


PROCESSORS = 132  # of an H200


def tiles(kind: str, channels: int, x: Tensor) -> tuple[int, int, int, int]:
    return TILES[kind, 8 * x.element_size()][channels >= 16]


def tile(wanted: int, most: int) -> int:
    """A power of two from 16 (the least a matrix instruction takes) to `most` that covers `wanted` if it can."""
    return min(most, max(16, triton.next_power_of_2(wanted)))


def bordered(x: Tensor, border: int, index: Tensor | None = None) -> Tensor:
    """[G, B, C, H, W] -> [G, B · (H + 2·border) · (W + 2·border) · C' + rest]; C' and the rest: `bordered_size`.

    Groups that share their images go on sharing them. With `index`, x is spread out to twice its height and width.
    """
    if x.stride(0) == 0 and len(x) > 1:
        return bordered(x[:1], border).expand(len(x), -1)
    x = x.permute(0, 1, 3, 4, 2).contiguous()
    places = x if index is None else index.permute(0, 1, 3, 4, 2).contiguous()
    scale = 1 if index is None else 2
    groups, batch, height, width, channels = x.shape
    wide, total, whole = bordered_size(batch, channels, scale * height, scale * width, border)
    out = x.new_empty(groups, whole)
    border_kernel[(triton.cdiv(whole, 1024), groups)](
        x, places, out, x[0].numel(), total, whole,
        HEIGHT=scale * height, WIDTH=scale * width, C=channels, BORDER=border, WIDE=wide,
        UNPOOL=index is not None, BLOCK=1024,
    )  # fmt: skip
    return out


def packed(weight: Tensor, wide: int, turned: bool = False) -> Tensor:
    """[G, N, C, k, k] -> [G, k·k·C', N]; `turned` by half a turn, with inputs and outputs exchanged."""
    if weight.stride(0) == 0 and len(weight) > 1:
        return packed(weight[:1], wide, turned).expand(len(weight), -1, -1)
    size = weight.shape[-1]
    strides = list(weight.stride())
    if turned:
        weight = weight.transpose(1, 2)
        strides = [strides[0], strides[2], strides[1], -strides[3], -strides[4]]
    groups, outputs, channels = weight.shape[:3]
    out = weight.new_empty(groups, size * size * wide, outputs)
    first = weight[..., -1, -1] if turned else weight[..., 0, 0]  # a view that begins where reading begins
    pack_kernel[(triton.cdiv(out[0].numel(), 1024), groups)](
        first, out, *strides, out[0].numel(), C=channels, WIDE=wide, N=outputs, SIZE=size, BLOCK=1024
    )
    return out


def dot_precision(x: Tensor) -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 or x.dtype != torch.float32 else "ieee"


def run_of(channels: int) -> int:
    """How many numbers of a patch in turn are surely neighbours in memory, from an address that divides by it."""
    return next(run for run in (16, 8, 4, 2, 1) if channels % run == 0)


def launch_forward(
    images: Tensor, weight: Tensor, bias: Tensor, out: Tensor, index: Tensor, shape: tuple[int, ...], pool: bool
) -> None:
    """`images` are bordered, `weight` is packed; `shape` is the images' own [B, H, W] and the kernel's size."""
    batch, height, width, size = shape
    groups, depth, features = weight.shape
    channels, outputs = depth // size**2, batch * height * width // (4 if pool else 1)
    bm, bk, warps, stages = tiles("pooled forward" if pool else "forward", channels, images)
    bn = tile(features, 64)
    while bm > 16 * warps // 4 and groups * triton.cdiv(outputs, bm) < PROCESSORS:
        bm //= 2  # few clients: smaller tiles, so that the whole chip has something to do
    forward_kernel[(triton.cdiv(outputs, bm), groups, triton.cdiv(features, bn))](
        images, weight, bias, out, index, images.stride(0), weight.stride(0), bias.stride(0), outputs,
        HEIGHT=height, WIDTH=width, C=channels, N=features, SIZE=size, RUN=run_of(channels), POOL=pool,
        BM=bm, BN=bn, BK=bk, PRECISION=dot_precision(images), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def forward(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, index: Tensor, pool: bool) -> Tensor:
    """Fill `out` (and `index`); returns the images with their border, which the backward pass reads again."""
    _, batch, channels, height, width = x.shape
    size = weight.shape[-1]
    images, w = bordered(x, size // 2), packed(weight, 4 if channels == 3 else channels)
    launch_forward(images, w, bias, out, index, (batch, height, width, size), pool)
    return images.contiguous()


def backward(
    dy: Tensor, index: Tensor, images: Tensor, weight: Tensor, dx: Tensor | None, dw: Tensor, pool: bool
) -> None:
    """Fill `dw`, and `dx` where it is wanted."""
    groups, outputs, channels, size, _ = weight.shape
    batch, height, width = dy.shape[1], dy.shape[3] * (2 if pool else 1), dy.shape[4] * (2 if pool else 1)
    source = bordered(dy, size // 2, index if pool else None)
    if dx is not None:
        turned, nothing = packed(weight, outputs, turned=True), dy.new_zeros(groups, channels)
        launch_forward(source, turned, nothing, dx, index, (batch, height, width, size), pool=False)

    rows, wide = batch * height * width, 4 if channels == 3 else channels
    depth = size * size * wide
    bm, bk, warps, stages = tiles("weight gradient", channels, dy)
    bn, bk = tile(outputs, 64), tile(depth, bk)
    across = triton.cdiv(depth, bk) * triton.cdiv(outputs, bn)
    parts = max(1, min(triton.cdiv(rows, 8 * bm), 800 // (groups * across)))  # enough programs to fill the chip
    share = triton.cdiv(triton.cdiv(rows, parts), bm) * bm
    partial = dy.new_empty(groups, parts, depth, outputs, dtype=torch.float32)
    weight_gradient_kernel[(across, groups, parts)](
        source, images, partial, source.stride(0), images.stride(0), rows, share,
        HEIGHT=height, WIDTH=width, C=wide, N=outputs, SIZE=size, RUN=run_of(wide),
        BM=bm, BN=bn, BK=bk, SPLIT=dy.dtype == torch.float32 and dot_precision(dy) == "tf32",
        PRECISION=dot_precision(dy), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    summed = partial.sum(1).view(groups, size, size, wide, outputs)[:, :, :, :channels]
    dw.copy_(summed.permute(0, 4, 3, 1, 2))
