"""Weight alignment (Lee et al. 2022, section 5.1): do the neurons of two models stand for the same classes?

A neuron prefers the class on whose test samples its activation is largest on average. The alignment of a layer between
two models is the share of its neurons that prefer the same class in both.
"""

import torch
from torch import Tensor, nn

from fedntd.data.device import DevicePart
from fedntd.engine.testing import in_batches
from fedntd.errors import FedntdError, require_known
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


def alignment(model: Model, w_a: Weights, w_b: Weights, data: DevicePart, layer: str = "") -> float:
    """The share of the layer's neurons whose preferred class is the same with weights `w_a` and `w_b`."""
    a, b = (preferred_classes(model, w, data, layer) for w in (w_a, w_b))
    return float((a == b).double().mean())


def preferred_classes(model: Model, w: Weights, data: DevicePart, layer: str = "") -> Tensor:
    """The class with the largest mean activation for each neuron of the layer, [neuron].

    No neuron prefers a class without samples.
    """
    return mean_activations(model, w, data, layer).nan_to_num(-torch.inf).argmax(0)


@torch.no_grad()
def mean_activations(model: Model, w: Weights, data: DevicePart, layer: str = "") -> Tensor:
    """The mean activation of each neuron on the samples of each class, [class, neuron]; NaN if a class has none.

    `layer` is the name of a module of the network, whose output is used. By default, these are the features, the input
    of the last layer. A channel of a convolution is one neuron; its activation is the mean over the image.
    """
    classes = int(data.y.max()) + 1
    total, samples = torch.zeros(()), torch.zeros(classes, dtype=torch.float64, device=data.y.device)
    for places in in_batches(len(data)):
        batch = data.plain(places)
        active = activations(model, w, batch, layer).double()
        of_class = (batch.y[:, None] == torch.arange(classes, device=batch.y.device)).double()  # [B, C]
        total = total.to(active) + of_class.T @ active
        samples += of_class.sum(0)
    return total / samples[:, None]


def activations(model: Model, w: Weights, batch: Batch, layer: str = "") -> Tensor:
    """The activations of a layer on a batch, [sample, neuron]."""
    if not layer:
        z = model.frozen(w, batch).z
        if z is None:
            raise FedntdError("the model returns no features, Out(logits, z); name one of its layers instead")
        return z
    modules = dict(model.module.named_modules())
    require_known(layer, filter(None, modules), f"the model has no layer '{layer}'")
    outputs: list[Tensor] = []

    def keep_output(_: nn.Module, __: object, output: Tensor) -> None:
        outputs.append(output)

    hook = modules[layer].register_forward_hook(keep_output)
    try:
        model.frozen(w, batch)
    finally:
        hook.remove()
    if len(outputs) != 1:
        raise FedntdError(f"layer '{layer}' is used {len(outputs)} times in a forward pass, so it has no single output")
    return outputs[0].flatten(2).mean(2) if outputs[0].ndim > 2 else outputs[0]
