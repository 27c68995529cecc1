"""The not-true distillation loss against numbers worked out by hand, an independent formula, and the paper's claims."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy
from torch import Tensor
from torch.nn import functional as F

from fedntd import Batch, Context, FedAvg, FedNTD, FedntdError, Out
from fedntd.algorithms.losses import kl, not_true


class Table:
    """A 'model' whose weights are its logits, to test losses on logits of our choice."""

    def __call__(self, w: dict[str, Tensor], batch: Batch) -> Out:
        return Out(w["logits"])

    frozen = __call__


def loss(algorithm: FedAvg, local: Tensor, globally: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    ctx = Context({"logits": globally}, {}, {}, lr=torch.tensor(0.1), momentum=0.9)
    return algorithm.loss(Table(), {"logits": local}, Batch(torch.zeros(len(y)), y, mask), ctx)  # type: ignore[arg-type]


def logits(seed: int, samples: int = 6, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z, z_g = 3 * torch.randn(2, samples, classes, dtype=torch.float64, generator=g)
    return z, z_g, torch.randint(0, classes, (samples,), generator=g)


def test_not_true_logits_by_hand():
    z = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    assert not_true(z, torch.tensor([0, 1, 2])).tolist() == [[2, 3], [4, 6], [7, 8]]


@given(st.integers(2, 20), st.integers(0, 100))
def test_not_true_equals_boolean_indexing(classes: int, seed: int):
    z, _, y = logits(seed, samples=7, classes=classes)
    assert torch.equal(not_true(z, y), z[F.one_hot(y, classes) == 0].view(7, classes - 1))


def test_loss_by_hand():
    # Three classes, true class 0. Local logits (ln 2, ln 3, 0): softmax (2, 3, 1)/6, so cross-entropy is ln 3.
    # Not-true: local (3/4, 1/4); global logits (9, 0, 0) give (1/2, 1/2) whatever the true class's logit is.
    # KL = 1/2 ln((1/2)/(3/4)) + 1/2 ln((1/2)/(1/4)) = 1/2 ln(4/3)
    local = torch.tensor([[math.log(2), math.log(3), 0.0]], dtype=torch.float64)
    globally = torch.tensor([[9.0, 0.0, 0.0]], dtype=torch.float64)
    value = loss(FedNTD(beta=0.5), local, globally, torch.tensor([0]))
    assert value.item() == pytest.approx(math.log(3) + 0.5 * 0.5 * math.log(4 / 3), abs=1e-12)


@given(st.integers(0, 200), st.floats(0, 3), st.floats(0.3, 5))
def test_loss_against_scipy(seed: int, beta: float, tau: float):
    z, z_g, y = logits(seed)
    wanted = []
    for i, c in enumerate(y.tolist()):
        others = [k for k in range(5) if k != c]
        cross_entropy = -np.log(softmax(z[i].numpy())[c])
        distillation = entropy(softmax(z_g[i, others].numpy() / tau), softmax(z[i, others].numpy() / tau))
        wanted.append(cross_entropy + beta * tau**2 * distillation)
    assert loss(FedNTD(beta, tau), z, z_g, y).item() == pytest.approx(np.mean(wanted), rel=1e-9)


@given(st.integers(0, 200))
def test_the_distillation_term_has_no_gradient_on_the_true_class(seed: int):
    z, z_g, y = logits(seed)

    def term(z: Tensor) -> Tensor:
        return loss(FedNTD(beta=1.0), z, z_g, y) - loss(FedAvg(), z, z_g, y)

    log_q = not_true(z.requires_grad_(), y).log_softmax(-1)
    (gradient,) = torch.autograd.grad(kl(not_true(z_g, y).softmax(-1), log_q).sum(), z)
    assert (gradient.gather(1, y[:, None]) == 0).all()  # exactly
    (whole,) = torch.autograd.grad(term(z), z)
    assert whole.gather(1, y[:, None]).abs().max() < 1e-15
    assert gradient.abs().max() > 1e-3


@given(st.integers(0, 200))
def test_beta_zero_is_fedavg(seed: int):
    z, z_g, y = logits(seed)
    assert loss(FedNTD(beta=0.0), z, z_g, y).item() == loss(FedAvg(), z, z_g, y).item()


def test_agreeing_with_the_global_model_costs_nothing():
    z, _, y = logits(0)
    shifted = z + F.one_hot(y, 5) * 7.0  # differs in the true classes only
    assert loss(FedNTD(beta=3.0), z, shifted, y).item() == pytest.approx(loss(FedAvg(), z, z, y).item(), abs=1e-12)


def test_masked_samples_do_not_count_even_when_they_are_nan():
    z, z_g, y = logits(1)
    mask = torch.tensor([True, True, True, True, False, False])
    spoilt = z.clone()
    spoilt[4:] = float("nan")
    wanted = loss(FedNTD(), z[:4], z_g[:4], y[:4]).item()
    assert loss(FedNTD(), spoilt, z_g, y, mask).item() == pytest.approx(wanted, abs=1e-14)


def test_kl_of_a_class_with_no_probability():
    value = kl(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.3, 0.7]]).log())
    assert value.item() == pytest.approx(-math.log(0.7), rel=1e-6)


@given(st.integers(0, 100), st.floats(0.5, 3))
def test_proposition_2_the_split_into_in_local_and_out_local_sums(seed: int, tau: float):
    """L_KL = sum_c p_c E_{i in S_c}[...] + (C-1) sum_c p~_c E_{i not in S_c}[...]: one sum in two orders."""
    classes, n = 4, 40
    z, z_g, y = logits(seed, n, classes)
    q, q_g = (z / tau).softmax(1).numpy(), (z_g / tau).softmax(1).numpy()
    terms = -q_g * np.log(q / q_g)  # [i, c]
    labels = y.numpy()
    member = labels[:, None] == np.arange(classes)  # [i, c]: i in S_c
    if member.sum(0).min() == 0:
        return
    p = member.mean(0)
    p_out = (1 - p) / (classes - 1)
    in_sum = sum(p[c] * terms[member[:, c], c].mean() for c in range(classes))
    out_sum = sum(p_out[c] * terms[~member[:, c], c].mean() for c in range(classes))
    true, not_true_part = terms[member].sum() / n, terms[~member].sum() / n
    assert in_sum == pytest.approx(true, rel=1e-9)
    assert out_sum == pytest.approx(not_true_part / (classes - 1), rel=1e-9)
    assert true + not_true_part == pytest.approx(
        np.mean([entropy(a, b) for a, b in zip(q_g, q, strict=True)]), rel=1e-9
    )


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.tau must be above 0, not 0"):
        FedNTD(tau=0)
    with pytest.raises(FedntdError, match=r"algorithm\.beta must be at least 0"):
        FedNTD(beta=-1)
