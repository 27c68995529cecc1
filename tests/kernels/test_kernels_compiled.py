"""The Triton kernels as compiled for several kinds of GPUs, on a machine without any: do they fit there?"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedntd.kernels import convolution as kernels

triton = pytest.importorskip("triton", reason="Triton is not on this platform")
tiles = pytest.importorskip("fedntd.kernels.tiles")

# architecture, processors, shared memory available to a program
H200, RTX_4090 = (90, 132, 232448), (89, 128, 101376)
# input and output channels, image side, kernel size: the layers of the paper's network
LAYERS = [(4, 32, 32, 5), (32, 64, 16, 5)]


class Recorder:
    """Stands in for a kernel and records its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[tuple[tuple, dict]] = []

    def __getitem__(self, grid: tuple) -> Any:
        return lambda *arguments, **settings: self.launches.append((arguments, settings))

    def shared_memory(self, architecture: int) -> list[int]:
        """In bytes, of each launch that differs from the others in more than its tensors, how many there are and its
        stride, which changes addresses alone."""
        distinct = {repr({**settings, "STEP": 0}): (given, settings) for given, settings in self.launches}
        return [self.compiled(architecture, *launch).metadata.shared for launch in distinct.values()]

    def compiled(self, architecture: int, arguments: tuple, settings: dict) -> Any:
        options = {name: settings[name] for name in ("num_warps", "num_stages") if name in settings}
        names = self.kernel.arg_names
        given = dict(zip(names, arguments, strict=False))
        constants = {(names.index(name),): value for name, value in settings.items() if name in names}
        signature = {name: kind_of(given[name]) if name in given else "constexpr" for name in names}
        aligned = {(names.index(n),): [["tt.divisibility", 16]] for n, value in given.items() if divides_by_16(value)}
        source = triton.compiler.ASTSource(self.kernel, signature, constants, aligned)
        target = triton.backends.compiler.GPUTarget("cuda", architecture, 32)
        return triton.compile(source, target, options)


def kind_of(value: Any) -> str:
    names = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8"}
    return names[value.dtype] if isinstance(value, Tensor) else "i32"


def divides_by_16(value: Any) -> bool:
    return isinstance(value, Tensor) or value % 16 == 0


def launch_all(groups: int, dtype: torch.dtype) -> None:
    """Every form of every layer, as far as it takes to launch it."""
    batch = 50

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(groups, *shape, dtype=dtype, device="meta")

    for channels, outputs, side, size in LAYERS:
        padded = side + size - 1
        images, bias = empty(batch, padded, padded, channels), empty(outputs)
        plain = empty(size**2 * channels, 1, outputs)
        kernels.conv_forward(images, plain, bias, size, 2, True)
        for step in (1, 2):
            kernels.conv_forward(images, plain, bias, size, step, False)
        weight, dense = empty(outputs, channels, size, size), empty(batch, padded, padded, outputs)
        kernels.conv_weight_gradient(dense, None, images, size, True)
        if kernels.gradient_windowed(weight, images):
            kernels.conv_forward(dense, empty((size + 1) ** 2 * outputs, 4, channels), None, size, 1, False)
        if kernels.windowed(weight, pool=True):
            kernels.conv_forward(images, empty((size + 1) ** 2 * channels, 4, outputs), bias, size, 2, True)
            dy, index = (empty(batch, side // 2, side // 2, outputs, dtype=kind) for kind in (dtype, torch.uint8))
            kernels.conv_weight_gradient(dy, index, images, size, True)


@pytest.mark.parametrize(
    ("dtype", "precision", "gpu", "clients"),
    [
        (torch.bfloat16, "tf32", H200, (1, 10)),
        (torch.float32, "tf32", RTX_4090, (1, 10)),
        (torch.float32, "ieee", H200, (4,)),  # takes long to compile
    ],
)
def test_every_launch_fits_into_shared_memory(
    dtype: torch.dtype,
    precision: str,
    gpu: tuple[int, int, int],
    clients: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    architecture, processors, shared = gpu
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # otherwise it warns
    ours = kernels.triton_kernels()
    monkeypatch.setattr(kernels, "is_fast", lambda *_: True)
    monkeypatch.setattr(ours, "dot_precision", lambda x: precision)
    monkeypatch.setattr(tiles, "chip_of", lambda device: tiles.Chip(processors, shared))
    names = "forward_kernel", "weight_gradient_kernel", "sum_kernel"
    recorders = [Recorder(getattr(ours, name)) for name in names]
    for name, recorder in zip(names, recorders, strict=True):
        monkeypatch.setattr(ours, name, recorder)
    for groups in clients:
        launch_all(groups, dtype)
    used = [recorder.shared_memory(architecture) for recorder in recorders]
    assert all(len(each) >= least for each, least in zip(used, (5, 2, 1), strict=True))
    assert max(map(max, used)) <= shared
