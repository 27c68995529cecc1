"""Choice of device and precision, and copies between host and device."""

from typing import TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from fedntd import tree
from fedntd.config.schema import Config
from fedntd.errors import FedntdError, require
from fedntd.tree import Tree

T = TypeVar("T")


def device_name(config: Config) -> str:
    """The config's device, with 'auto' resolved."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device


def choose_device(config: Config) -> torch.device:
    """The config's device, checked and made current. Raises `FedntdError` if it cannot be used."""
    name = device_name(config)
    try:
        device = torch.device(name)
    except RuntimeError:  # torch's own message lists twenty kinds of devices
        raise FedntdError(f"device = '{name}' is not known; it is 'cpu', 'cuda', 'cuda:1' or 'auto'") from None
    try:
        device = torch.empty(0, device=device).device  # with its index: 'cuda' becomes 'cuda:0'
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # torch's message is pages long
        raise FedntdError(
            f"device = '{config.device}' cannot be used here ({reason}); 'auto' takes what there is"
        ) from None
    require(
        config.precision != "tf32" or device.type == "cuda",
        "precision = 'tf32' needs a CUDA device; on a CPU use 'fp32' or 'bf16'",
    )
    make_current(device)
    return device


def make_current(device: torch.device) -> None:
    """Make the device current: Triton kernels and graph captures use the current device, wherever the tensors are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def choose_precision(config: Config, device: torch.device) -> str:
    """The config's precision. 'auto' is bf16 on a GPU that supports it, where accuracies are close to those of fp32
    (docs/benchmarks.md), and fp32 elsewhere."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def home_of(state: Tree, clients: int, device: torch.device) -> torch.device:
    """Where the clients' states are kept: on the device, or on the host if together they would take more than half of
    the device's memory."""
    if device.type != "cuda":
        return device
    memory = torch.cuda.get_device_properties(device).total_memory
    return device if clients * tree.nbytes(state) <= memory / 2 else torch.device("cpu")


def set_float32_precision(precision: str) -> None:
    """Let CUDA compute float32 products in TF32, or not. This holds for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


# --- copies to a device and back: asynchronous, so that the host waits for a GPU only when it needs results ----------


def to_device(numbers: NDArray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy an array to the device. On a GPU this is asynchronous: work launched later finds the copy complete."""
    tensor = torch.from_numpy(numbers).to(dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(results: T, device: torch.device) -> T:
    """Copy all tensors in a nested structure to the host, and wait for all of them at once."""
    on_gpu = device.type == "cuda"
    copies = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("cpu", non_blocking=on_gpu), results)
    if on_gpu:
        torch.cuda.current_stream(device).synchronize()
    return copies
