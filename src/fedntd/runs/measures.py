"""The paper's measures: functions of class-wise accuracies, and of their history over the rounds."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Tested(Protocol):
    """The test results of a model, such as an engine's `Counts`."""

    @property
    def class_accuracy(self) -> Vector: ...
    @property
    def accuracy(self) -> Vector: ...
    @property
    def mean_loss(self) -> Vector: ...


def in_local(class_accuracy: Vector, p: Vector) -> float:
    """Accuracy on the in-local distribution p. A local model's accuracy on its own p is the personalised accuracy."""
    return float(class_accuracy @ p)


def out_local(class_accuracy: Vector, p: Vector) -> float:
    """Accuracy on the out-local distribution (1 - p) / (C - 1), in which the classes that a client lacks weigh most."""
    return float(class_accuracy @ (1 - p) / (len(p) - 1))


def forgetting(history: Sequence[Vector], now: Vector) -> float:
    """F: the best accuracy in earlier rounds minus the present one, averaged over classes; 0 without earlier rounds."""
    if not len(history):
        return 0.0
    return float((np.max(history, axis=0) - now).mean())


def cosine(a: Vector, b: Vector) -> float:
    """The cosine similarity of two class-wise accuracy vectors; 0 if one of them is all zero."""
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def of_global_model(tested: Tested, before: Vector, history: Sequence[Vector], joint: Vector) -> dict[str, Any]:
    """The fields of a round's record that describe the global model.

    tested: the test results after the round
    before: class-wise accuracy before the round
    history: class-wise accuracies after earlier rounds
    joint: the cohort's joint in-local distribution
    """
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
    """The final value of the moving average m <- keep * m + (1 - keep) * value, which the authors' tables report.

    >>> moving_average([1.0, 0.0])
    0.6
    """
    average = values[0]
    for value in values[1:]:
        average = keep * average + (1 - keep) * value
    return average
