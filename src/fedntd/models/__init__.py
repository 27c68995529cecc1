"""Networks: each is an nn.Module built from (shape, classes). `Model` turns it into a function of its weights."""

from collections.abc import Callable

from torch import nn

from fedntd.models.cnn import CNN
from fedntd.models.functional import Batch, Model, Out, Taps
from fedntd.models.resnet import resnet10, resnet18
from fedntd.models.resnet56 import ResNet56

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": CNN,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet56": ResNet56,
}

__all__ = ["CNN", "MODELS", "Batch", "Model", "Out", "ResNet56", "Taps", "resnet10", "resnet18"]
