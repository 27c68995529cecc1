"""Testing a model: counting what it gets right, class by class. `runs.measures` makes measures of such counts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedntd.algorithms.losses import cross_entropy
from fedntd.data.device import DevicePart
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights

TEST_BATCH = 500  # fixed, since BatchNorm without running statistics sees which samples share a batch


class Counts(NamedTuple):
    """Of a model on some samples: right answers and samples of each class [C], and the summed cross-entropy.

    Of several models: the same with a leading axis.
    """

    correct: Tensor
    total: Tensor
    loss: Tensor

    @property
    def class_accuracy(self) -> NDArray[np.float64]:
        """A class without samples counts as 0."""
        return (self.correct / self.total.clamp(min=1)).cpu().numpy()

    @property
    def accuracy(self) -> NDArray[np.float64]:
        return (self.correct.sum(-1) / self.total.sum(-1)).cpu().numpy()

    @property
    def mean_loss(self) -> NDArray[np.float64]:
        return (self.loss / self.total.sum(-1)).cpu().numpy()


@torch.no_grad()
def count(model: Model, w: Weights, part: DevicePart, samples: Sequence[slice | Tensor], classes: int) -> Counts:
    """Test `w` on the batches `samples` of `part`."""
    w = model.cast(w)  # once for all batches
    counts = [count_batch(model, w, part.plain(places), classes) for places in samples]
    return summed(counts)


def summed(counts: Sequence[Counts]) -> Counts:
    """Of several batches, those of all their samples."""
    return Counts(*(torch.stack(column).sum(0) for column in zip(*counts, strict=True)))


def count_batch(model: Model, w: Weights, batch: Batch, classes: int) -> Counts:
    logits = model.frozen(w, batch).logits
    real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    of_class = ((batch.y[:, None] == torch.arange(classes, device=batch.y.device)) & real[:, None]).double()  # [B, C]
    right = (logits.argmax(1) == batch.y).double()
    loss = torch.where(real, cross_entropy(logits, batch.y), 0).sum(dtype=torch.float64)
    return Counts(right @ of_class, of_class.sum(0), loss)


def in_batches(size: int, batch: int = TEST_BATCH) -> list[slice]:
    return [slice(start, min(start + batch, size)) for start in range(0, size, batch)]
