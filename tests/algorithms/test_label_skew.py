"""FedLC, FedRS and FedLMD: what a client's class counts do to its logits, by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import entropy
from torch.func import grad, vmap
from worlds import F64, draw, logits, loss

from fedntd import FedAvg, FedNTD, FedntdError
from fedntd.algorithms.fedlc import FedLC
from fedntd.algorithms.fedlmd import FedLMD
from fedntd.algorithms.fedrs import FedRS


def counts(*n: float) -> torch.Tensor:
    return torch.tensor(n, dtype=F64)


def test_fedlc_by_hand():
    # n^(-1/4) of 16 and 81 are 1/2 and 1/3
    w = logits([1.0, 2.0])
    calibrated = np.array([1 - 0.6 / 2, 2 - 0.6 / 3])
    value = loss(FedLC(tau=0.6), w, w, [1], counts=counts(16, 81))
    assert value.item() == pytest.approx(logsumexp(calibrated) - calibrated[1])


def test_fedlc_leaves_missing_classes_out():
    w = logits([1.0, 30.0, 2.0], [0.5, -3.0, 0.1])
    owned = counts(16, 0, 81)
    value = loss(FedLC(tau=0.6), w, w, [0, 2], counts=owned)
    without = loss(FedLC(tau=0.6), logits([1.0, 2.0], [0.5, 0.1]), w, [0, 1], counts=counts(16, 81))
    assert value.item() == pytest.approx(without.item())
    gradient = grad(lambda w: loss(FedLC(tau=0.6), w, w, [0, 2], counts=owned))(w)["logits"]
    assert gradient.isfinite().all()
    assert (gradient[:, 1] == 0).all()  # so that they are not pushed away either
    assert gradient.abs().max() > 0.1


def test_fedlc_asks_for_a_larger_margin_where_there_are_fewer_samples():
    w = logits([0.0, 0.0])
    rare, common = (loss(FedLC(), w, w, [y], counts=counts(1, 1000)).item() for y in (0, 1))
    assert rare > math.log(2) > common


def test_fedrs_by_hand():
    w = logits([1.0, 2.0, -3.0])
    value = loss(FedRS(alpha=0.3), w, w, [0], counts=counts(5, 0, 0))
    scaled = np.array([1.0, 0.3 * 2.0, 0.3 * -3.0])
    assert value.item() == pytest.approx(logsumexp(scaled) - scaled[0])


def test_fedrs_pushes_missing_classes_less():
    w = logits([0.0, 0.0, 0.0])
    gradients = [
        grad(lambda w, a=a: loss(a, w, w, [0], counts=counts(5, 0, 9)))(w)["logits"] for a in (FedRS(0.5), FedAvg())
    ]
    assert gradients[0][0, 1].item() == pytest.approx(0.5 * gradients[1][0, 1].item())
    assert gradients[0][0, 2].item() == pytest.approx(gradients[1][0, 2].item())


@pytest.mark.parametrize("owned", [(5, 3, 9), (1, 1, 1)])
def test_fedrs_is_fedavg_where_no_class_is_missing(owned: tuple[float, ...]):
    w = {"logits": draw(0, 3, 3)}
    value = loss(FedRS(), w, w, [0, 1, 2], counts=counts(*owned))
    assert value.item() == pytest.approx(loss(FedAvg(), w, w, [0, 1, 2]).item())


def test_fedlmd_by_hand():
    # counts (10, 0, 2, 0), mean 3: class 0 is the majority; a sample of class 2 is distilled on classes 1 and 3
    z, z_g = [0.3, 1.0, 2.0, -1.0], [9.0, 0.5, 4.0, 1.5]
    tau = 2.0
    student = softmax(np.array([z[0], z[1], z[3]]) / tau)  # all but the true class
    teacher = np.array([0.0, *softmax(np.array([z_g[1], z_g[3]]) / tau)])
    wanted = 0.7 * tau**2 * entropy(teacher, student)
    owned = counts(10, 0, 2, 0)
    term = loss(FedLMD(0.7, tau), logits(z), logits(z_g), [2], counts=owned) - loss(FedAvg(), logits(z), logits(z), [2])
    assert term.item() == pytest.approx(wanted)


def test_fedlmd_without_a_majority_is_fedntd():
    w, w_g, y = {"logits": draw(0, 4, 3)}, {"logits": draw(1, 4, 3)}, [0, 1, 2, 0]
    value = loss(FedLMD(), w, w_g, y, counts=counts(4, 4, 4))
    assert value.item() == pytest.approx(loss(FedNTD(), w, w_g, y).item())


def test_fedlmd_does_not_distil_a_sample_with_no_class_left():
    """Counts (5, 5, 1): for a sample of class 2 all other classes are the majority."""
    w, w_g = {"logits": draw(0, 2, 3)}, {"logits": draw(1, 2, 3)}
    whole = grad(lambda w: loss(FedLMD(), w, w_g, [2, 2], counts=counts(5, 5, 1)))(w)["logits"]
    plain = grad(lambda w: loss(FedAvg(), w, w_g, [2, 2]))(w)["logits"]
    torch.testing.assert_close(whole, plain)


@pytest.mark.parametrize("algorithm", [FedLC(), FedRS(), FedLMD()])
def test_clients_with_other_counts_side_by_side(algorithm: FedAvg):
    w, w_g, owned = draw(0, 3, 4, 3), {"logits": draw(1, 4, 3)}, counts(5, 5, 1, 9, 1, 0, 1, 2, 2).view(3, 3)
    y = [0, 1, 1, 0]

    def one(w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return grad(lambda w: loss(algorithm, {"logits": w}, w_g, y, counts=n))(w)

    together = vmap(one, randomness="error")(w, owned)
    for k in range(3):
        torch.testing.assert_close(together[k], one(w[k], owned[k]))


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.alpha must be between 0 and 1, not 2"):
        FedRS(alpha=2)
    with pytest.raises(FedntdError, match=r"algorithm\.tau must be at least 0"):
        FedLC(tau=-1)
    with pytest.raises(FedntdError, match=r"algorithm\.tau must be above 0"):
        FedLMD(tau=0)
