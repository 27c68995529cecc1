"""The paper's measures: functions of class-wise accuracies, and of their history over the rounds."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Tested(Protocol):
    """A tested model; an engine's `Counts` are one."""

    @property
    def class_accuracy(self) -> Vector: ...
    @property
    def accuracy(self) -> Vector: ...
    @property
    def mean_loss(self) -> Vector: ...


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


def of_global_model(tested: Tested, before: Vector, history: Sequence[Vector], joint: Vector) -> dict[str, Any]:
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
