"""The balanced softmax: what class counts do to the loss, by hand; with not-true distillation beside it."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch.func import grad
from worlds import F64, draw, logits, loss

from fedntd import FedAvg, FedNTD, FedntdError
from fedntd.algorithms import WSM, Balanced, BalancedNTD


def counts(*n: float) -> torch.Tensor:
    return torch.tensor(n, dtype=F64)


def test_by_hand():
    w = logits([1.0, 2.0, -0.5])
    adjusted = np.array([1 + np.log(4), 2 + np.log(10), -0.5 + np.log(1)])  # counts 3, 9, 0 and one more of each
    value = loss(Balanced(), w, w, [0], counts=counts(3, 9, 0))
    assert value.item() == pytest.approx(logsumexp(adjusted) - adjusted[0])


def test_is_fedavg_where_all_classes_are_equally_many():
    w = {"logits": draw(0, 4, 3)}
    value = loss(Balanced(), w, w, [0, 1, 2, 1], counts=counts(7, 7, 7))
    assert value.item() == pytest.approx(loss(FedAvg(), w, w, [0, 1, 2, 1]).item())


def test_comes_near_fedavg_as_the_smoothing_grows():
    w, y = {"logits": draw(1, 4, 3)}, [0, 1, 2, 1]
    gaps = [
        abs(loss(Balanced(s), w, w, y, counts=counts(50, 5, 0)).item() - loss(FedAvg(), w, w, y).item())
        for s in (1.0, 1e2, 1e4, 1e6)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-4 < gaps[0]


def test_a_missing_class_is_pushed_away_by_its_share_of_the_counts():
    """The gradient on its logit is its probability in the adjusted softmax: 1 / (1 + 99 + 1) at equal logits."""
    w = logits([0.0, 0.0])
    gradient = grad(lambda w: loss(Balanced(), w, w, [0], counts=counts(99, 0)))(w)["logits"]
    plain = grad(lambda w: loss(FedAvg(), w, w, [0]))(w)["logits"]
    assert gradient[0, 1].item() == pytest.approx(1 / 101)
    assert plain[0, 1].item() == pytest.approx(1 / 2)


def test_wsm_leaves_missing_classes_out():
    """It is the cross-entropy among the classes that the client has, each weighed by its share."""
    w = logits([1.0, 30.0, 2.0], [0.5, -3.0, 0.1])
    value = loss(WSM(), w, w, [0, 2], counts=counts(1, 0, 3))
    shares = np.log([0.25, 0.75])
    by_hand = [logsumexp(z + shares) - (z + shares)[i] for z, i in (([1.0, 2.0], 0), ([0.5, 0.1], 1))]
    assert value.item() == pytest.approx(np.mean(by_hand))
    gradient = grad(lambda w: loss(WSM(), w, w, [0, 2], counts=counts(1, 0, 3)))(w)["logits"]
    assert gradient.isfinite().all()
    assert (gradient[:, 1] == 0).all()


def test_with_distillation_it_is_the_sum_of_both():
    """The distillation is FedNTD's own: of the logits as they are, not as the counts adjust them."""
    w, w_g, y = {"logits": draw(2, 4, 3)}, {"logits": draw(3, 4, 3)}, [0, 1, 2, 1]
    owned = counts(5, 0, 2)
    distilled = loss(FedNTD(0.7, 2.0), w, w_g, y) - loss(FedAvg(), w, w_g, y)
    value = loss(BalancedNTD(beta=0.7, tau=2.0), w, w_g, y, counts=owned)
    assert value.item() == pytest.approx((loss(Balanced(), w, w_g, y, counts=owned) + distilled).item())


@pytest.mark.parametrize(
    ("method", "values", "sentence"),
    [
        (Balanced, {"smoothing": -1.0}, "algorithm.smoothing must be at least 0, not -1.0"),
        (BalancedNTD, {"beta": -1.0}, "algorithm.beta must be at least 0, not -1.0"),
        (BalancedNTD, {"tau": 0.0}, "algorithm.tau must be above 0, not 0.0"),
    ],
)
def test_bad_values(method: type, values: dict, sentence: str):
    with pytest.raises(FedntdError, match=sentence):
        method(**values)
