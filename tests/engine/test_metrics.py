import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedntd.data.dataset import Part
from fedntd.data.device import DevicePart
from fedntd.engine.testing import count, in_batches
from fedntd.models.functional import Model
from fedntd.runs.measures import cosine, forgetting, in_local, moving_average, out_local


def test_forgetting_by_hand():
    # class 0: best 0.9 of earlier rounds, now 0.5; class 1: best 0.4, now 0.6 -> (0.4 - 0.2) / 2
    history = [np.array([0.9, 0.1]), np.array([0.3, 0.4])]
    assert forgetting(history, np.array([0.5, 0.6])) == pytest.approx(0.1)
    assert forgetting([], np.array([0.5, 0.6])) == 0


def test_in_and_out_local_by_hand():
    accuracy, p = np.array([1.0, 0.5, 0.0]), np.array([0.5, 0.5, 0.0])
    assert in_local(accuracy, p) == pytest.approx(0.75)
    assert out_local(accuracy, p) == pytest.approx((0.5 * 1 + 0.5 * 0.5 + 1 * 0) / 2)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_on_a_uniform_distribution_both_are_the_mean(accuracies: list[float]):
    a = np.array(accuracies)
    uniform = np.full(len(a), 1 / len(a))
    assert in_local(a, uniform) == pytest.approx(a.mean())
    assert out_local(a, uniform) == pytest.approx(a.mean())


def test_cosine():
    assert cosine(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(2**-0.5)
    assert cosine(np.zeros(2), np.ones(2)) == 0


def test_moving_average_by_hand():
    assert moving_average([0.5]) == 0.5
    assert moving_average([1.0, 0.0, 1.0]) == pytest.approx(0.6 * 0.6 + 0.4)


def test_counts_of_a_known_model():
    # logits = x, so the answer is the larger coordinate
    identity = torch.nn.Linear(2, 2, bias=False)
    identity.weight.data = torch.eye(2)
    x = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0], [1.0, 0.0]])
    y = torch.tensor([0, 0, 0, 1, 1])
    part = DevicePart(Part(x, y), (), (), None, torch.device("cpu"), torch.float32)
    model = Model(identity)
    counts = count(model, model.weights(), part, [slice(0, 3), slice(3, 5)], classes=2)
    assert counts.correct.tolist() == [2, 1]
    assert counts.total.tolist() == [3, 2]
    assert counts.accuracy == pytest.approx(0.6)
    assert counts.class_accuracy.tolist() == pytest.approx([2 / 3, 1 / 2])
    losses = [np.log(1 + np.exp(d)) for d in (-1, 1, -3, -5, 1)]  # log(1 + exp(other - true))
    assert counts.mean_loss == pytest.approx(np.mean(losses), rel=1e-6)


@given(st.integers(1, 3000))
def test_test_batches_cover_everything_once(size: int):
    places = [i for s in in_batches(size) for i in range(s.start, s.stop)]
    assert places == list(range(size))
