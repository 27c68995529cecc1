"""What `--small` trains on: a few of the packaged images, and for the ResNets smaller images and a shorter network."""

from dataclasses import replace
from functools import cache

import torch

from fedntd.data.augment import Augment
from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import fashion_mini
from fedntd.models.resnet56 import ResNet56


@cache
def images() -> Dataset:
    """The first hundred training and the first twenty test images of each class."""
    whole = fashion_mini("")
    classes = range(len(whole.classes))

    def first(part: Part, count: int) -> Part:
        some = torch.cat([(part.y == c).nonzero()[:count, 0] for c in classes])
        return Part(part.x[some], part.y[some])

    return replace(whole, name="rehearsal", train=first(whole.train, 100), test=first(whole.test, 20))


@cache
def thumbnails() -> Dataset:
    """The same, every second row and column; no hole, which would take most of such an image."""
    whole = images()
    train, test = (Part(part.x[..., ::2, ::2].contiguous(), part.y) for part in (whole.train, whole.test))
    return replace(whole, train=train, test=test, augment=Augment(pad=2, flip=True))


def short_resnet(shape: tuple[int, ...], classes: int, width: float = 0.25) -> ResNet56:
    """ResNet-56 with one bottleneck in each stage in place of six: made of the same parts, and six times as fast."""
    model = ResNet56(shape, classes, width)
    for stage in (model.stage1, model.stage2, model.stage3):
        del stage[1:]
    return model
