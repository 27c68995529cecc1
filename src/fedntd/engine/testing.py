"""Tests of models: correct predictions and samples, counted by class. `runs.measures` computes metrics from them."""

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

TEST_BATCH = 500  # fixed: with BatchNorm without running statistics, the result depends on the batches


class Counts(NamedTuple):
    """Test results of one model. For several models, every tensor has a leading model axis."""

    correct: Tensor  # correct predictions by class: [C]
    total: Tensor  # samples by class: [C]
    loss: Tensor  # cross-entropy, summed over the samples

    @property
    def class_accuracy(self) -> NDArray[np.float64]:
        """Accuracy by class; 0 for a class without samples."""
        return (self.correct / self.total.clamp(min=1)).cpu().numpy()

    @property
    def accuracy(self) -> NDArray[np.float64]:
        return (self.correct.sum(-1) / self.total.sum(-1)).cpu().numpy()

    @property
    def mean_loss(self) -> NDArray[np.float64]:
        return (self.loss / self.total.sum(-1)).cpu().numpy()


@torch.no_grad()
def count(model: Model, w: Weights, part: DevicePart, samples: Sequence[slice | Tensor], classes: int) -> Counts:
    """Test `w` on `part`; `samples` are the indices of each batch."""
    w = model.cast(w)  # once for all batches
    counts = [count_batch(model, w, part.plain(places), classes) for places in samples]
    return summed(counts)


def summed(counts: Sequence[Counts]) -> Counts:
    """Sum the counts of several batches."""
    return Counts(*(torch.stack(column).sum(0) for column in zip(*counts, strict=True)))


def count_batch(model: Model, w: Weights, batch: Batch, classes: int) -> Counts:
    """Test `w` on one batch, which may be masked."""
    logits = model.frozen(w, batch).logits
    real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    of_class = ((batch.y[:, None] == torch.arange(classes, device=batch.y.device)) & real[:, None]).double()  # [B, C]
    correct = (logits.argmax(1) == batch.y).double()
    loss = torch.where(real, cross_entropy(logits, batch.y), 0).sum(dtype=torch.float64)
    return Counts(correct @ of_class, of_class.sum(0), loss)


def in_batches(size: int, batch: int = TEST_BATCH) -> list[slice]:
    """Slices that cut `size` samples into batches."""
    return [slice(start, min(start + batch, size)) for start in range(0, size, batch)]
