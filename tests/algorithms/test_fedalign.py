"""FedAlign's transmitting matrices, power iteration and loss, against NumPy and by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad
from worlds import F64, context, draw

from fedntd import Batch, FedntdError, Out, Taps, configure, federate
from fedntd.algorithms.fedalign import FedAlign, largest_singular_value, transmitting_matrix


class Tapped:
    """A 'model' whose weights are its logits and what its narrow stage gives; the wide stage is fixed."""

    has_dropout = False

    def __init__(self, into: Tensor, out: Tensor) -> None:
        self.into, self.out = into, out

    def __call__(self, w: dict[str, Tensor], batch: Batch) -> Out:
        return Out(w["logits"], None, Taps(self.into, self.out, self.into[:, :1], w["slim"]))


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 6))
def test_power_iteration_against_an_svd(seed: int, m: int, n: int):
    T = draw(seed, 3, m, n).abs()  # activations are not negative, so that a vector of ones is never far off
    singular = np.linalg.svd(T.numpy(), compute_uv=False)
    found = largest_singular_value(T, iterations=200).numpy()
    assert found == pytest.approx(singular[:, 0], rel=1e-6)


def test_ten_iterations_are_enough_for_products_of_activations():
    """After ReLU all entries of T are positive, and one singular value is far above the others."""
    maps = draw(0, 5, 8, 4, 4).relu(), draw(1, 5, 12, 4, 4).relu()
    T = transmitting_matrix(*maps)
    singular = np.linalg.svd(T.numpy(), compute_uv=False)
    assert largest_singular_value(T, iterations=10).numpy() == pytest.approx(singular[:, 0], rel=1e-6)


def test_the_gradient_is_that_of_the_singular_value():
    """d sigma / dT = u v^t."""
    T = draw(0, 1, 4, 6).abs()
    u, _, vt = np.linalg.svd(T[0].numpy())
    found = grad(lambda T: largest_singular_value(T, 200).sum())(T)[0].numpy()
    assert found == pytest.approx(np.outer(u[:, 0], vt[0]), abs=1e-8)


def test_a_sample_without_activations_has_constant_zero_and_no_gradient():
    T = torch.zeros(2, 3, 4, dtype=F64)
    T[1] = 1.0
    assert largest_singular_value(T, 10).tolist() == pytest.approx([0.0, 12**0.5], abs=1e-5)
    gradient = grad(lambda T: largest_singular_value(T, 10).sum())(T)
    assert gradient[0].abs().max() == 0
    assert gradient[1].abs().min() > 0.1


def test_the_transmitting_matrix_by_hand():
    """Two channels of 4x4 into three of 2x2: pooled, then the mean over the four places of all products."""
    into, out = draw(0, 2, 2, 4, 4).numpy(), draw(1, 2, 3, 2, 2).numpy()
    pooled = into.reshape(2, 2, 2, 2, 2, 2).mean((3, 5))
    wanted = np.zeros((2, 2, 3))
    for b in range(2):
        for i in range(2):
            for o in range(3):
                wanted[b, i, o] = sum(pooled[b, i, y, x] * out[b, o, y, x] for y in (0, 1) for x in (0, 1)) / 4
    found = transmitting_matrix(torch.from_numpy(into), torch.from_numpy(out)).numpy()
    assert found == pytest.approx(wanted)


def test_the_loss_by_hand():
    """One place and one channel each: T is the product of the two, and its singular value their absolute product."""
    into, out = (
        torch.tensor([2.0, 1.0], dtype=F64).view(2, 1, 1, 1),
        torch.tensor([3.0, 5.0], dtype=F64).view(2, 1, 1, 1),
    )
    w = {"logits": draw(0, 2, 3), "slim": torch.tensor([1.0, 2.0], dtype=F64).view(2, 1, 1, 1)}
    batch = Batch(torch.zeros(2), torch.tensor([0, 2]))
    ce = torch.nn.functional.cross_entropy(w["logits"], batch.y).item()
    # constants 6 and 5 at full width, 2 and 2 when narrow: L_Lip = (16 + 9) / 2, scaled to mu CE
    algorithm, model = FedAlign(mu=0.45), Tapped(into, out)
    assert algorithm.loss(model, w, batch, context({})).item() == pytest.approx(1.45 * ce)  # type: ignore[arg-type]
    g, _ = algorithm.gradient(model, w, batch, context({}))  # type: ignore[arg-type]
    # mu CE / 12.5 times d L_Lip / d slim = (2 into (2 - 6) / 2, 2 into (2 - 5) / 2)
    assert g["slim"].flatten().tolist() == pytest.approx([0.45 * ce / 12.5 * d for d in (2 * -4, 1 * -3)])
    probabilities = w["logits"].softmax(-1) - torch.nn.functional.one_hot(batch.y, 3)
    assert g["logits"].flatten().tolist() == pytest.approx(
        (probabilities / 2).flatten().tolist()
    )  # CE/L_Lip is a number


def test_a_network_that_is_not_slimmable_is_refused_before_anything_is_written(tmp_path: Path):
    config = configure("demo", ["algorithm.name=fedalign"])
    with pytest.raises(FedntdError, match=r"fedalign needs a network with a slimmable last stage.*resnet56"):
        next(federate(config, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.mu must be at least 0"):
        FedAlign(mu=-1.0)
    with pytest.raises(FedntdError, match=r"algorithm\.iterations must be at least 1"):
        FedAlign(iterations=0)
