import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedntd.algorithms.losses import kl
from fedntd.analysis.distillation import kl_split


@given(st.integers(1, 40), st.integers(2, 11), st.sampled_from([0.5, 1.0, 3.0]), st.integers(0, 20))
def test_proposition_2(samples, classes, tau, seed):
    rng = torch.Generator().manual_seed(seed)
    z, z_g = 3 * torch.randn(2, samples, classes, generator=rng, dtype=torch.float64)
    y = torch.randint(0, classes, (samples,), generator=rng)
    split = kl_split(z, z_g, y, tau)
    assert split.true == pytest.approx(split.true_by_p)
    assert split.not_true / (classes - 1) == pytest.approx(split.not_true_by_p_out)
    whole = kl((z_g / tau).softmax(1), (z / tau).log_softmax(1)).mean()
    assert split.true + split.not_true == pytest.approx(float(whole))
    assert split.p_out.sum() == pytest.approx(1)


def test_by_hand():
    # two samples of class 0 of three; the global model is uniform, the local one is (1/2, 1/4, 1/4) and uniform
    z = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).log()
    split = kl_split(z, torch.zeros(2, 3), torch.tensor([0, 0]))
    assert split.p.tolist() == [1, 0, 0]
    assert split.p_out.tolist() == [0, 0.5, 0.5]
    assert split.true == pytest.approx(np.log(2 / 3) / 3 / 2)
    assert split.not_true == pytest.approx(2 * np.log(4 / 3) / 3 / 2)
    assert split.true_of_class.tolist() == pytest.approx([split.true, 0, 0])
    assert split.not_true_of_class.tolist() == pytest.approx([0, split.not_true / 2, split.not_true / 2])


def test_equal_models_do_not_diverge():
    z = torch.randn(5, 4)
    split = kl_split(z, z, torch.tensor([0, 1, 2, 3, 0]))
    assert (split.true, split.not_true) == (0, 0)
