"""Convolutions of many networks at once: each group (client) has its own images and its own weights.

`conv(x, weight, bias)` and `conv_pool_relu(x, weight, bias)` are ordinary differentiable functions of one network.
Under `torch.vmap` they become one launch for all networks: they are built on two PyTorch operators that fold a
vectorised axis into the groups. On a GPU the operators run the matrix products in triton_kernels.py. Where Triton
cannot run (on a CPU, in float64), PyTorch computes the same.

The operators take channels-last images with a border of zeros, and weights as tables. Ordinary operations bring the
tensors into this form, so that the compiler can fuse them with the operations before and after.

The four positions of a 2x2 pooling window see nearly the same pixels: each k x k of the same (k+1) x (k+1). Where
reading pixels is the bottleneck, the operators read the pixels of a window once and multiply them with four tables of
weights, one for each position: the k x k weights, padded with zeros to (k+1) x (k+1).
"""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WINDOW_CHANNELS = 16  # with fewer channels, a pooled convolution reads whole windows
GRADIENT_CHANNELS = 32  # with at most this many channels, the gradient of the images reads whole windows
MOST_GROUPS, MOST_NUMBERS = 2**16 - 1, 2**31 - 1  # limits of the Triton kernels: groups, and numbers in each group
NOWHERE = 4  # index of a window's maximum if it is not above zero, where ReLU has no gradient


def conv_pool_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of the 2x2 max-pooled convolution ("same" padding, stride 1): [B, C, H, W] -> [B, N, H/2, W/2]."""
    return GroupedConv.apply(x[None], weight[None], bias[None], 2, True)[0].squeeze(0)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """The convolution alone ("same" padding, stride 1 or 2): [B, C, H, W] -> [B, N, H/stride, W/stride]."""
    return GroupedConv.apply(x[None], weight[None], None if bias is None else bias[None], stride, False)[0].squeeze(0)


class GroupedConv(torch.autograd.Function):
    """x [G, B, C, H, W], weight [G, N, C, k, k], bias [G, N] or None -> out [G, B, N, H/step, W/step].

    Also returns what the backward pass needs: the index of each maximum, and the images in the operators' form.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, step: int, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
        size = weight.shape[-1]
        extra = 1 if x.shape[2] == 3 else 0  # three channels become four: whole words are read faster
        images = with_border(x.permute(0, 1, 3, 4, 2), size // 2, extra)
        tables = as_tables(weight, windowed(weight, pool), extra)
        out, index = torch.ops.fedntd.conv_forward(images, tables, bias, size, step, pool)
        return out.permute(0, 1, 4, 2, 3), index, images

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, weight, _, ctx.step, ctx.pool = inputs
        _, index, images = output
        ctx.mark_non_differentiable(index, images)
        ctx.save_for_backward(weight, index, images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, index, images = ctx.saved_tensors
        size = weight.shape[-1]
        dy = gradients[0].permute(0, 1, 3, 4, 2)
        window, dense, dx = windowed(weight, ctx.pool), dy, None
        if ctx.needs_input_grad[0] or not window:
            places = index if ctx.pool else torch.zeros_like(dy, dtype=torch.uint8)
            dense = with_border(spread(dy, places) if ctx.step == 2 else dy, size // 2)
        if ctx.needs_input_grad[0]:
            # the convolution of the output's gradient with the flipped weights
            flipped = as_tables(weight.flip(3, 4).transpose(1, 2), gradient_windowed(weight, images))
            dx = torch.ops.fedntd.conv_forward(dense, flipped, None, size, 1, False)[0].permute(0, 1, 4, 2, 3)
        gradient = (dy.contiguous(), index) if window else (dense, None)
        has_bias = ctx.needs_input_grad[2]
        table = torch.ops.fedntd.conv_weight_gradient(*gradient, images, size, has_bias)
        db = table[:, -1].to(weight.dtype) if has_bias else None
        return dx, from_table(table, weight), db, None, None


def windowed(weight: Tensor, pool: bool) -> bool:
    """Whether the operators read whole pooling windows.

    They do with few channels, where reading takes longer than the extra arithmetic. In float32 it does not, not even
    with TF32.
    """
    return pool and weight.dtype != torch.float32 and weight.shape[2] < WINDOW_CHANNELS


def gradient_windowed(weight: Tensor, images: Tensor) -> bool:
    """Whether the gradient of the images is computed in whole windows.

    It is if the images have few channels, where reading pixels again and again takes longer than the arithmetic. With a
    3x3 kernel it is not: windows would double the arithmetic.
    """
    even = images.shape[2] % 2 == images.shape[3] % 2 == 0
    return even and weight.dtype != torch.float32 and weight.shape[2] <= GRADIENT_CHANNELS and weight.shape[-1] >= 5


def with_border(images: Tensor, border: int, extra: int = 0) -> Tensor:
    """Add a border of zeros and `extra` channels of zeros to images [G, B, H, W, C]."""
    return F.pad(images, (0, extra, border, border, border, border)).contiguous()


def as_tables(weight: Tensor, window: bool = False, extra: int = 0) -> Tensor:
    """Weights [G, N, C, k, k] as tables [G, depth, places, N].

    This is one table of depth k·k·C', or with `window` four of depth (k+1)·(k+1)·C', one for each position in a window.
    C' is C plus `extra` channels of zeros.
    """
    margin = int(window)
    side = weight.shape[-1] + margin
    padded = F.pad(weight, (margin, margin, margin, margin, 0, extra))
    # views of one tensor, so that the compiler needs one kernel
    shifted = padded.unfold(3, side, 1).unfold(4, side, 1).flip(3, 4)  # [G, N, C', i, j, row, column]
    return shifted.permute(0, 5, 6, 2, 3, 4, 1).flatten(4, 5).flatten(1, 3).contiguous()


def from_table(table: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `weight` from the gradient of its single table, [G, depth, N].

    Leaves out extra channels, and further rows such as that of the bias.
    """
    channels, size = weight.shape[2:4]
    depth = table.shape[1] // size**2 * size**2
    return table[:, :depth].unflatten(1, (size, size, -1))[..., :channels, :].permute(0, 4, 3, 1, 2).to(weight.dtype)


def spread(dy: Tensor, index: Tensor) -> Tensor:
    """Put each value at the position `index` (0 to 3) in its 2x2 window, with zeros elsewhere.

    [..., H/2, W/2, C] -> [..., H, W, C]
    """
    place = torch.arange(4, device=dy.device).view(2, 1, 2, 1)
    windows = torch.where(index[..., :, None, :, None, :] == place, dy[..., :, None, :, None, :], 0)
    return windows.flatten(-5, -4).flatten(-3, -2)


# --- the operators and their vmap rules -------------------------------------------------------------------------

LIBRARY = torch.library.Library("fedntd", "DEF")
LIBRARY.define(
    "conv_forward(Tensor images, Tensor weight, Tensor? bias, int size, int step, bool pool) -> (Tensor, Tensor)"
)
LIBRARY.define("conv_weight_gradient(Tensor dy, Tensor? index, Tensor images, int size, bool bias) -> Tensor")


def is_fast(x: Tensor, *others: Tensor) -> bool:
    """Whether the Triton kernels can be used for these tensors [group, ...].

    The kernels use 32-bit offsets within a group, and the groups are an axis of their launch grid: both limit the size.
    """
    able = INTERPRETED or can_multiply_bfloat16(x.device)
    fits = len(x) <= MOST_GROUPS and all(t.numel() <= len(t) * MOST_NUMBERS for t in (x, *others))
    return able and fits and x.dtype in (torch.float32, torch.bfloat16) and triton_kernels() is not None


@cache
def can_multiply_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def triton_kernels() -> Any:
    """The module of kernels, imported on first use because it takes long; None if Triton is not available."""
    try:
        return import_module("fedntd.kernels.triton_kernels")
    except ImportError:
        return None


def conv_forward(
    images: Tensor, tables: Tensor, bias: Tensor | None, size: int, step: int, pool: bool
) -> tuple[Tensor, Tensor]:
    """The convolution [G, B, H/step, W/step, N], and the index of each maximum.

    Without `pool`, this is every step-th output, and the index is unused. With `pool`, it is the ReLU of the maximum
    over each 2x2 window, and the index says which of the four it was.

    Four tables are those of the four positions in a window. Without `pool`, all four are outputs.
    """
    out, index = fake_forward(images, tables, bias, size, step, pool)
    if is_fast(images):
        triton_kernels().forward(images, tables, bias, out, index, size, step, pool)
        return out, index
    groups, _, number, outputs = tables.shape
    window = number > 1
    y = F.conv2d(
        images.permute(1, 0, 4, 2, 3).flatten(1, 2),
        tables.unflatten(1, (size + window, size + window, -1)).permute(0, 4, 5, 3, 1, 2).flatten(0, 2),
        None if bias is None else bias[:, None].expand(groups, number, outputs).flatten(),
        stride=2 if window else 1 if pool else step,
        groups=groups,
    )
    y = y.unflatten(1, (groups, number, outputs)).permute(1, 0, 4, 5, 2, 3)  # [G, B, row, column, place, N]
    if not pool:
        y = y.unflatten(4, (2, 2)).transpose(3, 4).flatten(4, 5).flatten(2, 3) if window else y[..., 0, :]
        return out.copy_(y), index
    if not window:
        y = y.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4).flatten(4, 6)
    best, place = y.max(-2)
    return out.copy_(best.relu()), index.copy_(torch.where(best > 0, place, NOWHERE))


def fake_forward(
    images: Tensor, tables: Tensor, bias: Tensor | None, size: int, step: int, pool: bool
) -> tuple[Tensor, Tensor]:
    groups, batch, height, width, _ = images.shape
    shape = groups, batch, (height - size + 1) // step, (width - size + 1) // step, tables.shape[3]
    return images.new_empty(shape), images.new_empty(shape if pool else groups, dtype=torch.uint8)


def conv_weight_gradient(dy: Tensor, index: Tensor | None, images: Tensor, size: int, bias: bool) -> Tensor:
    """The gradient of the weights as a single table, [G, depth, N], with that of the bias as a further row.

    Without `index`, `dy` has a value for every pixel, and a border like that of the images. With `index`, it has one
    for every window, which belongs to the position `index` in that window.
    """
    table = fake_weight_gradient(dy, index, images, size, bias)
    if is_fast(dy, images):
        triton_kernels().weight_gradient(dy, index, images, table, size, bias)
        return table
    border = size // 2
    dense = dy[:, :, border : -border or None, border : -border or None] if index is None else spread(dy, index)
    patches = images.unfold(2, size, 1).unfold(3, size, 1)  # [G, B, H, W, C, k, k]
    rows = torch.einsum("gbhwcij,gbhwn->gijcn", patches, dense).flatten(1, 3)
    return table.copy_(torch.cat([rows, dense.sum((1, 2, 3))[:, None]], 1) if bias else rows)


def fake_weight_gradient(dy: Tensor, index: Tensor | None, images: Tensor, size: int, bias: bool) -> Tensor:
    dtype = torch.promote_types(dy.dtype, torch.float32)  # a sum over thousands of pixels
    return dy.new_empty(dy.shape[0], size**2 * images.shape[-1] + bias, dy.shape[-1], dtype=dtype)


def fold_into_groups(operator: Callable) -> Callable:
    """A vmap rule that folds the vectorised axis into the groups. Arguments without that axis are not copied."""

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
        # not info.batch_size, which is a plain number even if sizes are symbolic
        size = next(a.shape[dim] for a, dim in zip(arguments, in_dims, strict=True) if dim is not None)
        folded = []
        for argument, dim in zip(arguments, in_dims, strict=True):
            if isinstance(argument, Tensor):
                by_axis = argument.movedim(dim, 0) if dim is not None else argument.expand(size, *argument.shape)
                # indexing instead of flattening a single group keeps the stride of 0 of a shared argument
                folded.append(by_axis[:, 0] if by_axis.shape[1] == 1 else by_axis.flatten(0, 1))
            else:
                folded.append(argument)
        results = operator(*folded)
        if isinstance(results, Tensor):
            return results.unflatten(0, (size, -1)), 0
        return tuple(r.unflatten(0, (size, -1)) for r in results), (0,) * len(results)

    return rule


for name, implementation, fake in (
    ("conv_forward", conv_forward, fake_forward),
    ("conv_weight_gradient", conv_weight_gradient, fake_weight_gradient),
):
    LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fedntd::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"fedntd::{name}", fold_into_groups(getattr(torch.ops.fedntd, name)), lib=LIBRARY)
