"""Convolutions of many networks at once: each group (client) has its own images and its own weights.

`conv(x, weight, bias)` and `conv_pool_relu(x, weight, bias)` behave like ordinary differentiable functions of one
network, and under `torch.vmap` become one launch for all of them: an operator of PyTorch whose vectorised axis is more
groups. On a GPU the operators are the kernels in triton_kernels.py; where Triton cannot run (a CPU, float64) PyTorch
does the same.
"""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def conv_pool_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of the 2x2 max-pooled convolution ("same" padding, stride 1): [B, C, H, W] -> [B, N, H/2, W/2]."""
    return GroupedConv.apply(x[None], weight[None], bias[None], True)[0][0]


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution alone ("same" padding, stride 1): [B, C, H, W] -> [B, N, H, W]."""
    zero = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return GroupedConv.apply(x[None], weight[None], zero[None], False)[0][0]


class GroupedConv(torch.autograd.Function):
    """x [G, B, C, H, W], weight [G, N, C, k, k], bias [G, N] -> out [G, B, N, ...]; also what the backward pass needs:
    where each maximum came from, and the images as the kernels read them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.fedntd.conv_forward(x, weight, bias, pool)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, weight, _, ctx.pool = inputs
        out, index, images = output
        ctx.mark_non_differentiable(index, images)
        ctx.save_for_backward(weight, out, index, images)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, out, index, images = ctx.saved_tensors
        dy = torch.where(out > 0, gradients[0], 0) if ctx.pool else gradients[0]
        dx, dw = torch.ops.fedntd.conv_backward(dy, index, images, weight, ctx.pool, ctx.needs_input_grad[0])
        return dx if ctx.needs_input_grad[0] else None, dw, dy.sum((1, 3, 4)), None


# --- the operators, and what they do to a further axis ----------------------------------------------------------

LIBRARY = torch.library.Library("fedntd", "DEF")
LIBRARY.define("conv_forward(Tensor x, Tensor weight, Tensor bias, bool pool) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    "conv_backward(Tensor dy, Tensor index, Tensor images, Tensor weight, bool pool, bool need_dx) -> (Tensor, Tensor)"
)


def empty_images(*shape: int, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty [G, B, C, H, W]; for Triton's kernels its memory is [G, B, H, W, C]."""
    if not is_fast(like):
        return like.new_empty(shape, dtype=dtype or like.dtype)
    groups, batch, channels, height, width = shape
    return like.new_empty(groups, batch, height, width, channels, dtype=dtype or like.dtype).permute(0, 1, 4, 2, 3)


def is_fast(x: Tensor) -> bool:
    """Whether Triton can do it."""
    return (x.is_cuda or INTERPRETED) and x.dtype in (torch.float32, torch.bfloat16) and triton_kernels() is not None


@cache
def triton_kernels() -> Any:
    """Imported when first needed, since it takes long; None where the platform has no Triton: PyTorch does the work."""
    try:
        return import_module("fedntd.triton_kernels")
    except ImportError:
        return None


def conv_forward(x: Tensor, weight: Tensor, bias: Tensor, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(x):
        out, index, _ = fake_forward(x, weight, bias, pool)
        return out, index, triton_kernels().forward(x, weight, bias, out, index, pool)
    groups, batch, channels, height, width = x.shape
    outputs, size = weight.shape[1], weight.shape[-1]
    y = F.conv2d(
        x.transpose(0, 1).reshape(batch, groups * channels, height, width),
        weight.reshape(groups * outputs, channels, size, size),
        bias.reshape(-1),
        padding=size // 2,
        groups=groups,
    ).unflatten(1, (groups, outputs))
    if not pool:
        return y.transpose(0, 1).contiguous(), empty_index(x), x.clone()
    windows = y.unflatten(-2, (-1, 2)).unflatten(-1, (-1, 2)).transpose(-2, -3).flatten(-2)  # [B, G, N, H/2, W/2, 4]
    best, index = windows.max(-1)
    index = index.to(torch.uint8).transpose(0, 1).contiguous()
    return best.relu().transpose(0, 1).contiguous(), index, x.clone()


def empty_index(like: Tensor) -> Tensor:
    return like.new_empty(like.shape[0], dtype=torch.uint8)


def unpooled(dy: Tensor, index: Tensor) -> Tensor:
    """The gradient at the places that pooling took its maxima from, zero elsewhere: [..., H/2, W/2] -> [..., H, W]."""
    spread = torch.where(index[..., None] == torch.arange(4, device=dy.device), dy[..., None], 0)
    return spread.unflatten(-1, (2, 2)).transpose(-2, -3).flatten(-4, -3).flatten(-2)


def conv_backward(
    dy: Tensor, index: Tensor, images: Tensor, weight: Tensor, pool: bool, need_dx: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of x (empty if not needed) and of the weights; `images` are as `conv_forward` gave them."""
    if is_fast(dy):
        dx, dw = fake_backward(dy, index, images, weight, pool, need_dx)
        triton_kernels().backward(dy, index, images, weight, dx if need_dx else None, dw, pool)
        return dx, dw
    dense = unpooled(dy, index) if pool else dy
    dx, dw = [], []
    for d, x, w in zip(dense, images, weight, strict=True):
        dw.append(conv2d_weight(x, w.shape, d, padding=w.shape[-1] // 2))
        if need_dx:
            dx.append(conv2d_input(x.shape, w, d, padding=w.shape[-1] // 2))
    return torch.stack(dx) if need_dx else dy.new_empty(len(dy)), torch.stack(dw)


def fake_forward(x: Tensor, weight: Tensor, bias: Tensor, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
    groups, batch, channels, height, width = x.shape
    images = torch.empty_like(x)
    if is_fast(x):
        images = x.new_empty(
            groups, triton_kernels().bordered_size(batch, channels, height, width, weight.shape[-1] // 2)[-1]
        )
    if not pool:
        return empty_images(groups, batch, weight.shape[1], height, width, like=x), empty_index(x), images
    shape = (groups, batch, weight.shape[1], height // 2, width // 2)
    return empty_images(*shape, like=x), empty_images(*shape, like=x, dtype=torch.uint8), images


def fake_backward(
    dy: Tensor, index: Tensor, images: Tensor, weight: Tensor, pool: bool, need_dx: bool
) -> tuple[Tensor, Tensor]:
    scale = 2 if pool else 1
    groups, batch, _, height, width = dy.shape
    dx = empty_images(groups, batch, weight.shape[2], scale * height, scale * width, like=dy)
    return dx if need_dx else dy.new_empty(groups), dy.new_empty(weight.shape)


def fold_into_groups(operator: Callable) -> Callable:
    """A further vectorised axis is more groups; what is not vectorised along it is shared, without a copy."""

    def rule(info: Any, in_dims: tuple, *arguments: Any) -> tuple[Any, Any]:
        # not info.batch_size, which is a plain number even where sizes are symbols
        size = next(a.shape[dim] for a, dim in zip(arguments, in_dims, strict=True) if dim is not None)
        folded = []
        for argument, dim in zip(arguments, in_dims, strict=True):
            if isinstance(argument, Tensor):
                by_axis = argument.movedim(dim, 0) if dim is not None else argument.expand(size, *argument.shape)
                # merging a shared axis of one group keeps its stride of zero
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
    ("conv_backward", conv_backward, fake_backward),
):
    LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fedntd::{name}", fake, lib=LIBRARY)
    torch.library.register_vmap(f"fedntd::{name}", fold_into_groups(getattr(torch.ops.fedntd, name)), lib=LIBRARY)
