"""FedKD, the mix KD -> NTD, and FedNTD with squared distances, against formulas written out anew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy
from torch.func import grad
from worlds import draw, logits, loss

from fedntd import FedAvg, FedNTD, FedntdError
from fedntd.algorithms.fedkd import FedKD
from fedntd.algorithms.fedkd_ntd import FedKDNTD
from fedntd.algorithms.fedntd_mse import FedNTDMSE

Y = [0, 3, 1, 2, 4, 1]


def two_tables(seed: int) -> tuple[dict, dict]:
    z, z_g = 3 * draw(seed, 2, len(Y), 5)
    return {"logits": z}, {"logits": z_g}


@given(st.integers(0, 100), st.floats(0, 3), st.floats(0.3, 5))
def test_kd_against_scipy(seed: int, beta: float, tau: float):
    w, w_g = two_tables(seed)
    z, z_g = w["logits"].numpy(), w_g["logits"].numpy()
    cross_entropy = [-np.log(softmax(z[i])[y]) for i, y in enumerate(Y)]
    kd = [tau**2 * entropy(softmax(z_g[i] / tau), softmax(z[i] / tau)) for i in range(len(Y))]
    assert loss(FedKD(beta, tau), w, w_g, Y).item() == pytest.approx(np.mean(cross_entropy) + beta * np.mean(kd))


@given(st.integers(0, 100), st.floats(0, 3), st.floats(0.3, 5))
def test_the_mix_at_its_ends_is_kd_and_ntd(seed: int, beta: float, tau: float):
    w, w_g = two_tables(seed)
    at = {lam: loss(FedKDNTD(beta, tau, lam), w, w_g, Y).item() for lam in (0.0, 0.3, 1.0)}
    assert at[0.0] == pytest.approx(loss(FedKD(beta, tau), w, w_g, Y).item(), abs=1e-12)
    assert at[1.0] == pytest.approx(loss(FedNTD(beta, tau), w, w_g, Y).item(), abs=1e-12)
    assert at[0.3] == pytest.approx(0.7 * at[0.0] + 0.3 * at[1.0])


def test_only_kd_distils_the_true_class():
    """The teacher's logit of the true class changes KD's loss, not NTD's nor that of the squared distances."""
    w, one, other = logits([1.0, 2.0, 0.5]), logits([0.0, 1.0, 1.0]), logits([0.0, 5.0, 1.0])
    for algorithm, same in ((FedKD(), False), (FedKDNTD(lam=1.0), True), (FedNTDMSE(), True)):
        gap = abs(loss(algorithm, w, one, [1]).item() - loss(algorithm, w, other, [1]).item())
        assert (gap < 1e-12) == same


def test_mse_by_hand():
    # true class 1; the others differ by 1 - 0 and 0.5 - (-1.5)
    w, w_g = logits([1.0, 2.0, 0.5]), logits([0.0, 9.0, -1.5])
    term = loss(FedNTDMSE(beta=0.3), w, w_g, [1]) - loss(FedAvg(), w, w_g, [1])
    assert term.item() == pytest.approx(0.3 * (1**2 + 2**2) / 2)


def test_mse_has_no_gradient_on_the_true_class():
    w, w_g = two_tables(0)
    term = grad(lambda w: loss(FedNTDMSE(beta=1.0), w, w_g, Y) - loss(FedAvg(), w, w_g, Y))(w)["logits"]
    for i, y in enumerate(Y):
        assert abs(term[i, y]) < 1e-15
        assert term[i].abs().max() > 1e-3


@pytest.mark.parametrize("algorithm", [FedKD(), FedKDNTD(), FedNTDMSE(beta=2.0)])
def test_agreeing_with_the_global_model_costs_nothing(algorithm: FedAvg):
    w, _ = two_tables(0)
    assert loss(algorithm, w, w, Y).item() == pytest.approx(loss(FedAvg(), w, w, Y).item(), abs=1e-12)


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.lam must be between 0"):
        FedKDNTD(lam=1.1)
    with pytest.raises(FedntdError, match=r"algorithm\.tau must be above 0"):
        FedKD(tau=0)
    with pytest.raises(FedntdError, match=r"algorithm\.beta must be at least 0"):
        FedNTDMSE(beta=-1)
