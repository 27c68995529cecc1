import numpy as np
import pytest
import torch

from fedntd.analysis.divergence import correlation, distances, distribution_distances, underlying, weight_distances
from fedntd.analysis.rounds import Inside
from fedntd.runs.record import Record


def test_weight_distances_by_hand():
    w_g = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[0.0]])}
    w_k = {"a": torch.tensor([[1.0, 4.0], [1.0, 1.0]]), "b": torch.tensor([[[-4.0]], [[0.0]]])}
    assert weight_distances(w_g, w_k).tolist() == [7, 0]
    assert weight_distances(w_g, w_k, order=2).tolist() == [5, 0]


def test_distribution_distances_by_hand():
    p = np.array([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    accuracy = np.array([0.8, 0.8, 0.0, 0.0])  # A_G = (.5, .5, 0, 0)
    assert distribution_distances(accuracy, p).tolist() == pytest.approx([1, 1])
    assert distribution_distances(accuracy, p, order=2).tolist() == pytest.approx([0.5**0.5, 0.5])


def test_a_model_that_knows_nothing():
    assert underlying(np.zeros(4)).tolist() == [0.25] * 4


def test_of_a_round():
    record = Record(1, 0, 0, [], None, 0, 0, [2, 0], 0.1, 0, 0, 0, 0, 0, 0, 0)
    w_g = {"w": torch.zeros(1)}
    inside = Inside(record, np.array([1.0, 0.0]), w_g, {"w": torch.tensor([[1.0], [-3.0]])}, w_g)
    weights, distributions = distances(inside, np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
    assert weights.tolist() == [1, 3]
    assert distributions.tolist() == [2, 0]  # of client 2, then of client 0


def test_correlation():
    x = np.arange(10.0)
    assert correlation(x, 3 * x + 1) == pytest.approx((1, 1))
    assert correlation(x, -(x**3)) == (pytest.approx(np.corrcoef(x, -(x**3))[0, 1]), pytest.approx(-1))
    a, b = np.random.default_rng(0).normal(size=(2, 5000))
    assert abs(correlation(a, b).pearson) < 0.05
