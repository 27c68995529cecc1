"""Data and network of `--small`: a few packaged images, and for ResNets smaller images and a shorter network."""

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
    full = fashion_mini("")
    classes = range(len(full.classes))

    def first(part: Part, count: int) -> Part:
        indices = torch.cat([(part.y == c).nonzero()[:count, 0] for c in classes])
        return Part(part.x[indices], part.y[indices])

    return replace(full, name="rehearsal", train=first(full.train, 100), test=first(full.test, 20))


@cache
def thumbnails() -> Dataset:
    """`images` at half the resolution, without Cutout, which would hide most of such an image."""
    full = images()
    train, test = (Part(part.x[..., ::2, ::2].contiguous(), part.y) for part in (full.train, full.test))
    return replace(full, train=train, test=test, augment=Augment(pad=2, flip=True))


def short_resnet(shape: tuple[int, ...], classes: int, width: float = 0.25) -> ResNet56:
    """ResNet-56 with one bottleneck per stage instead of six: the same parts, six times as fast."""
    model = ResNet56(shape, classes, width)
    for stage in (model.stage1, model.stage2, model.stage3):
        del stage[1:]
    return model
