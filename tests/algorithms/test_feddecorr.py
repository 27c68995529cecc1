"""The correlation matrix of a batch's features, against numpy's."""

import numpy as np
import pytest
import torch
from torch.func import grad
from worlds import F64, draw, loss

from fedntd import FedAvg, FedntdError
from fedntd.algorithms.feddecorr import FedDecorr, correlation


def table(z: torch.Tensor) -> dict:
    return {"logits": torch.zeros(len(z), 2, dtype=F64), "z": z}


def test_against_numpy():
    z = draw(0, 20, 6) @ draw(1, 6, 6)
    K = np.corrcoef(z.numpy().T)
    np.testing.assert_allclose(correlation(z, None).numpy(), K, atol=1e-6)
    term = loss(FedDecorr(beta=0.3), table(z), {}, [0] * 20) - loss(FedAvg(), table(z), {}, [0] * 20)
    assert term.item() == pytest.approx(0.3 * (K**2).sum() / 6**2, rel=1e-6)


def test_padding_does_not_count():
    z = draw(0, 9, 4)
    spoilt = z.clone()
    spoilt[6:] = float("nan")
    mask = torch.arange(9) < 6
    torch.testing.assert_close(correlation(spoilt, mask), correlation(z[:6], None))


def test_copies_of_one_feature_cost_most():
    one, many = draw(0, 50, 1), draw(1, 50, 5)
    copies, apart = (loss(FedDecorr(1.0), table(z), {}, [0] * 50).item() for z in (one.expand(50, 5), many))
    assert copies - np.log(2) == pytest.approx(1.0, abs=1e-6)
    assert apart < copies - 0.5


@pytest.mark.parametrize("z", [torch.ones(1, 3, dtype=F64), torch.ones(4, 3, dtype=F64), torch.zeros(4, 3, dtype=F64)])
def test_features_that_do_not_vary_are_harmless(z: torch.Tensor):
    y = [0] * len(z)
    gradient = grad(lambda z: loss(FedDecorr(1.0), table(z), {}, y))(z)
    assert (gradient == 0).all()
    assert loss(FedDecorr(1.0), table(z), {}, y).item() == pytest.approx(np.log(2))


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.beta must be at least 0"):
        FedDecorr(beta=-1)
