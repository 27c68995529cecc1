"""The mean over samples of the squared gradient, without per-sample gradients of linear layers.

If the input of a linear layer is one vector x for each sample, the sample's gradient of the weights is dy x^T, where dy
is the gradient of the layer's output. Its elementwise square is dy^2 (x^2)^T, and the sum over samples is one matrix
product. Weights that are used in any other way (by a convolution, or by a layer on sequences) are differentiated sample
by sample.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fedntd.models.functional import Batch
from fedntd.tree import Weights

ABOUT = (
    int,
    torch.Size,
    torch.dtype,
    torch.device,
    type(None),
)  # results of questions about a tensor that do not concern its values


def mean_squared_gradient(loss: Callable[[Weights, Batch], Tensor], w: Weights, batch: Batch) -> Weights:
    """The mean of the squared gradients of `loss` on single samples, over the real samples of the batch."""
    linear = {name for name, leaf in w.items() if leaf.ndim == 2}  # judging by the shape alone
    try:
        return with_products(loss, w, batch, linear)
    except OtherUse as error:
        return with_products(loss, w, batch, linear - error.names)


def with_products(loss: Callable[[Weights, Batch], Tensor], w: Weights, batch: Batch, linear: set[str]) -> Weights:
    """The same, if the weights named `linear` are those of linear layers. Raises `OtherUse` if some are not."""
    layers = {name: w[name] for name in linear}
    others = {name: leaf for name, leaf in w.items() if name not in linear}
    zeros = {name: leaf.new_zeros(leaf.shape[0]) for name, leaf in layers.items()}

    def sample_loss(others: Weights, zeros: Weights, x: Tensor, y: Tensor) -> tuple[Tensor, Weights]:
        with LinearLayers(layers, zeros) as watcher:
            value = loss(others | layers, Batch(x[None], y[None]))
        watcher.check()
        return value, watcher.inputs

    per_sample = vmap(grad(sample_loss, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0, 0))
    (g, dy), x = per_sample(others, zeros, batch.x, batch.y)
    real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask

    def mean(name: str, leaf: Tensor) -> Tensor:
        share = real.to(leaf.dtype) / real.sum()
        if name in linear:
            return (share[:, None] * dy[name].square()).T @ x[name].to(leaf.dtype).square()
        return torch.tensordot(share, g[name].square(), 1)

    return {name: mean(name, leaf) for name, leaf in w.items()}


class OtherUse(Exception):
    """Some weights are used otherwise than by one linear layer on one vector."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(names)
        self.names = names


class LinearLayers(TorchFunctionMode):
    """Watches how a network uses some of its weights in a forward pass of one sample.

    Stores the vectors that the weights are multiplied with. Adds `zeros` to the products: their gradient is that of the
    layer's output.
    """

    def __init__(self, weights: Weights, zeros: Weights) -> None:
        super().__init__()
        self.known = [(leaf, name) for name, leaf in weights.items()]
        self.zeros = zeros
        self.inputs: Weights = {}
        self.used_otherwise: set[str] = set()

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, ABOUT):
            return out
        arguments = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        for weight, name in [known for known in self.known if id(known[0]) in arguments]:
            if func is Tensor.to:  # a cast: the result counts as the same weights
                self.known.append((out, name))
            elif func is F.linear and weight is args[1] and is_vector(args[0]) and name not in self.inputs:
                self.inputs[name] = args[0].flatten()
                out = out + self.zeros[name].to(out.dtype)
            else:
                self.used_otherwise.add(name)
        return out

    def check(self) -> None:
        names = self.used_otherwise | (self.zeros.keys() - self.inputs.keys())
        if names:
            raise OtherUse(names)


def is_vector(x: Tensor) -> bool:
    """Whether `x` is a single vector, apart from axes of size 1."""
    return x.numel() == x.shape[-1]
