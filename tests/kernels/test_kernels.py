"""Our convolutions against float64 `F.conv2d`: the PyTorch form here, the Triton kernels in Triton's interpreter."""

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn import functional as F

from fedntd.kernels import convolution as kernels

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not on this platform")

# groups, batch, input and output channels, height, width, kernel size, operation
SHAPES = [
    (2, 3, 3, 32, 8, 8, 5, "pool"),
    (2, 2, 32, 24, 4, 6, 5, "pool"),
    (2, 2, 1, 32, 6, 6, 5, "pool"),
    (1, 3, 2, 7, 2, 4, 3, "pool"),
    (2, 1, 5, 40, 4, 2, 1, "pool"),
    (1, 9, 3, 20, 14, 18, 3, "pool"),  # the weight gradient in several parts, with windows too
    (1, 1, 1, 70, 14, 14, 5, "pool"),
    (3, 2, 5, 7, 5, 4, 3, "stride 1"),
    (2, 2, 4, 7, 14, 14, 3, "stride 1"),  # the weight gradient in several parts
    (1, 1, 16, 70, 4, 4, 3, "stride 1"),
    (2, 2, 16, 20, 4, 8, 3, "stride 2"),
    (2, 1, 3, 5, 4, 2, 1, "stride 2"),
]


def relative_errors(
    shape: tuple, dtype: torch.dtype, seed: int = 0, device: str = "cpu", shared: str = "nothing", tf32: bool = False
) -> list[float]:
    """Of the output and of the gradients of images, weights and bias, vectorised over groups, against float64.

    The groups may share their images, or their weights and bias. With `tf32`, all numbers have at most the 10 bits that
    are kept of them, so that rounding does not change which of a window is the largest.
    """
    groups, batch, inputs, outputs, height, width, size, what = shape
    pool, stride = what == "pool", 2 if what == "stride 2" else 1
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, batch, height, width, inputs, generator=g).permute(0, 1, 4, 2, 3)
    w = 0.2 * torch.randn(groups, outputs, inputs, size, size, generator=g)
    b = torch.randn(groups, outputs, generator=g)
    if tf32:
        x, w, b = ((t.view(torch.int32) & -(2**13)).view(torch.float32) for t in (x, w, b))
    x, w, b = (t.to(device, dtype) for t in (x, w, b))
    in_dims = {"nothing": (0, 0, 0), "images": (None, 0, 0), "weights": (0, None, None)}[shared]
    given = tuple(t if dim == 0 else t[0] for t, dim in zip((x, w, b), in_dims, strict=True))

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return kernels.conv_pool_relu(x, w, b) if pool else kernels.conv(x, w, b, stride)

    def theirs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv2d(x, w, b, stride, padding=size // 2)
        return F.relu(F.max_pool2d(y, 2)) if pool else y

    direction = torch.randn(ours(x[0], w[0], b[0]).shape, generator=g, dtype=torch.float64).to(device)

    def gradients(f: Callable) -> Callable:
        return vmap(grad(lambda *args: (f(*args).double() * direction).sum(), argnums=(0, 1, 2)), in_dims)

    exact = tuple(t.double() for t in given)
    got = (vmap(ours, in_dims)(*given), *gradients(ours)(*given))
    wanted = (vmap(theirs, in_dims)(*exact), *gradients(theirs)(*exact))
    return [float((a.double() - c).norm() / c.norm().clamp_min(1e-30)) for a, c in zip(got, wanted, strict=True)]


@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_form(shape: tuple):
    assert max(relative_errors(shape, torch.float64)) < 1e-13


@given(
    st.tuples(
        *(st.integers(1, n) for n in (3, 3, 6, 6)),
        st.integers(1, 4).map(lambda n: 2 * n),
        st.integers(1, 4).map(lambda n: 2 * n),
        st.sampled_from([1, 3, 5]),
        st.sampled_from(["pool", "stride 1", "stride 2"]),
    ),
    st.integers(0, 99),
    st.sampled_from(["nothing", "images", "weights"]),
)
def test_pytorch_form_on_random_shapes(shape: tuple, seed: int, shared: str):
    assert max(relative_errors(shape, torch.float64, seed, shared=shared)) < 1e-12


@pytest.mark.parametrize("most", [0, 99])
def test_with_and_without_windows(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "WINDOW_CHANNELS", most)
    monkeypatch.setattr(kernels, "GRADIENT_CHANNELS", most)
    for shape in SHAPES:
        assert max(relative_errors(shape, torch.float64)) < 1e-13


def gradients_of_several_losses(device: str = "cpu", dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Of the weights of one pooled convolution: together, sharing all but what they begin with; and in turn."""
    g = torch.Generator().manual_seed(0)
    x, w, b, dy = (
        torch.randn(shape, generator=g).to(device, dtype)
        for shape in ((2, 3, 6, 6), (4, 3, 3, 3), (4,), (3, 2, 4, 3, 3))
    )
    pull = vjp(lambda w: kernels.conv_pool_relu(x, w, b), w)[1]
    return vmap(pull)(dy)[0], torch.stack([pull(one)[0] for one in dy])


def test_several_losses_of_one_network():
    torch.testing.assert_close(*gradients_of_several_losses())


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the kernels are tested as they are")
def test_triton_kernels_in_the_interpreter():
    """In a separate process, because the interpreter is chosen when Triton is imported.

    In float32 only: the interpreter cannot multiply bfloat16 matrices. `test_on_a_gpu` tests those. In float32, pooled
    convolutions would not read whole windows by themselves.
    """
    program = (
        "import torch\n"
        "from fedntd.kernels import convolution as kernels, tiles\n"
        "from test_kernels import SHAPES, gradients_of_several_losses, relative_errors\n"
        "assert kernels.INTERPRETED and kernels.is_fast(torch.zeros(1))\n"
        "def check(shape, shared):\n"
        "    errors = relative_errors(shape, torch.float32, shared=shared)\n"
        "    assert max(errors) < 1e-6, (shape, shared, errors)\n"
        "for shape in SHAPES:\n"
        "    check(shape, 'nothing')\n"
        "kernels.windowed = lambda weight, pool: pool and weight.shape[2] < 16\n"
        "kernels.gradient_windowed = lambda weight, images: images.shape[2] % 2 == images.shape[3] % 2 == 0\n"
        "tiles.TILES |= {(kind, 32): same for (kind, _), same in tiles.TILES.items() if 'window' in kind}\n"
        "for shape in SHAPES:\n"
        "    check(shape, 'nothing')\n"
        "for shared in ('images', 'weights'):\n"
        "    check((2, 2, 3, 6, 4, 6, 3, 'pool'), shared)\n"
        "    check((2, 2, 3, 6, 4, 6, 3, 'stride 1'), shared)\n"
        "torch.testing.assert_close(*gradients_of_several_losses(dtype=torch.float32))\n"
        "print('agreed')\n"
    )
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "agreed", done.stderr[-2000:]


@needs_triton
@given(st.integers(1, 33), st.sampled_from([1, 3, 5, 7]), st.integers(1, 16), st.booleans())
def test_runs_of_a_patch_are_where_the_kernels_expect_them(channels: int, size: int, half: int, window: bool):
    """Numbers that are read at once are contiguous and aligned to their length; otherwise a GPU raises an error."""
    width, side = 2 * half + size - 1, size + window
    run = kernels.triton_kernels().run_of(side * channels, width * channels)
    image = torch.arange(side * width * channels).view(side, width, channels)
    pieces = image[:, :side].flatten()[: side * side * channels // run * run].view(-1, run)
    assert bool((pieces[:, 0] % run == 0).all())
    assert bool((pieces == pieces[:, :1] + torch.arange(run)).all())
    assert run >= (2 if window else 1) * math.gcd(channels, 8)


@needs_triton
def test_what_triton_cannot_count_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch):
    """A grid's second axis has at most 65,535 programs; within a group, kernels count in 32 bits."""
    monkeypatch.setattr(kernels, "INTERPRETED", True)

    def fast(*shapes: tuple[int, ...]) -> bool:
        return kernels.is_fast(*(torch.empty(shape, device="meta") for shape in shapes))

    assert fast((2**16 - 1, 8))
    assert fast((2, 2**31 - 1), (2, 8))
    assert not fast((2**16, 8))  # the samples of many clients, each a group of its own
    assert not fast((2, 2**31))
    assert not fast((2, 8), (2, 2500, 164, 164, 32))  # images of 320 x 320 in the test


def test_what_is_shared_by_the_groups_is_not_copied():
    x, w, b = torch.randn(3, 2, 4, 8, 8), torch.randn(5, 4, 3, 3), torch.randn(5)
    together = vmap(kernels.conv, in_dims=(0, None, None))(x, w, b)
    torch.testing.assert_close(together, torch.stack([F.conv2d(one, w, b, padding=1) for one in x]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(
    ("dtype", "tf32", "bar"),
    [(torch.float32, False, 1e-5), (torch.float32, True, 5e-3), (torch.bfloat16, False, 2e-2)],
)
def test_on_a_gpu(dtype: torch.dtype, tf32: bool, bar: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    for shape in SHAPES:
        for shared in ("nothing", "images", "weights"):
            assert max(relative_errors(shape, dtype, 0, "cuda", shared, tf32)) < bar
    torch.testing.assert_close(*gradients_of_several_losses("cuda", dtype), rtol=bar, atol=bar)
