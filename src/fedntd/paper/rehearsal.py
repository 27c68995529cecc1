"""The images of `--small`: the first hundred training and the first twenty test images of each packaged class."""

from dataclasses import replace
from functools import cache

import torch

from fedntd.data.dataset import Dataset, Part
from fedntd.data.datasets import fashion_mini


@cache
def images() -> Dataset:
    whole = fashion_mini("")
    classes = range(len(whole.classes))

    def first(part: Part, count: int) -> Part:
        some = torch.cat([(part.y == c).nonzero()[:count, 0] for c in classes])
        return Part(part.x[some], part.y[some])

    return replace(whole, name="rehearsal", train=first(whole.train, 100), test=first(whole.test, 20))
