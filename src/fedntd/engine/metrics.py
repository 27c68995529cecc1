"""What is measured: counting what a model gets right, and the paper's measures, which are functions of those counts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedntd.algorithms.losses import cross_entropy
from fedntd.data.device import DevicePart
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights

Vector = NDArray[np.float64]

TEST_BATCH = 500  # fixed, since BatchNorm without running statistics sees which samples share a batch


class Counts(NamedTuple):
    """Of a model on some samples: right answers and samples of each class [C], and the summed cross-entropy.

    Of several models: the same with a leading axis.
    """

    correct: Tensor
    total: Tensor
    loss: Tensor

    @property
    def class_accuracy(self) -> Vector:
        """A class without samples counts as 0."""
        return (self.correct / self.total.clamp(min=1)).cpu().numpy()

    @property
    def accuracy(self) -> Vector:
        return (self.correct.sum(-1) / self.total.sum(-1)).cpu().numpy()

    @property
    def mean_loss(self) -> Vector:
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


def in_local(class_accuracy: Vector, p: Vector) -> float:
    """Accuracy on the in-local distribution p; of a local model on its own p, the personalised accuracy."""
    return float(class_accuracy @ p)


def out_local(class_accuracy: Vector, p: Vector) -> float:
    """Accuracy on the out-local distribution (1 - p) / (C - 1), where the classes a client lacks weigh most."""
    return float(class_accuracy @ (1 - p) / (len(p) - 1))


def forgetting(history: Sequence[Vector], now: Vector) -> float:
    """F: mean over the classes of the best accuracy in earlier rounds minus that of now; 0 while there are none."""
    if not len(history):
        return 0.0
    return float((np.max(history, axis=0) - now).mean())


def cosine(a: Vector, b: Vector) -> float:
    """Similarity of two class-wise accuracy vectors; 0 if one of them is all zero."""
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def of_global_model(tested: Counts, before: Vector, history: Sequence[Vector], joint: Vector) -> dict[str, Any]:
    """What a round's record says about the global model: its test after the round, its class-wise accuracy before the
    round and after earlier ones, and the joint in-local distribution of the cohort."""
    after = tested.class_accuracy
    return {
        "accuracy": float(tested.accuracy),
        "loss": float(tested.mean_loss),
        "class_accuracy": after.tolist(),
        "similarity": cosine(before, after) if len(history) else None,
        "forgetting": forgetting(history, after),
        "global_in_before": in_local(before, joint),
        "global_in_after": in_local(after, joint),
        "global_out_before": out_local(before, joint),
        "global_out_after": out_local(after, joint),
    }


def moving_average(values: Sequence[float], keep: float = 0.6) -> float:
    """The final value of an exponential moving average, the authors' table figure: m <- keep * m + (1 - keep) * value.

    >>> moving_average([1.0, 0.0])
    0.6
    """
    average = values[0]
    for value in values[1:]:
        average = keep * average + (1 - keep) * value
    return average
