"""The proximal term, on quadratics."""

from dataclasses import dataclass

import pytest
import torch
from worlds import F64, World, logits, loss

from fedntd import FedntdError
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.fedprox import FedProx


def test_the_norm_is_squared():
    w = {**logits([0.0, 0.0]), "u": torch.tensor([4.0, 6.0], dtype=F64)}
    w_g = {**logits([0.0, 0.0]), "u": torch.tensor([1.0, 2.0], dtype=F64)}
    term = loss(FedProx(mu=0.3), w, w_g, [0]) - loss(FedProx(mu=0.0), w, w_g, [0])
    assert term.item() == pytest.approx(0.3 / 2 * 25)  # 3-4-5 triangle; without the square it would be 0.3 / 2 * 5


@pytest.mark.parametrize("mu", [0.0, 0.5, 4.0])
def test_a_client_stops_at_the_closed_form(mu: float):
    """argmin h/2 |w - b|^2 + mu/2 |w - w_g|^2 = (h b + mu w_g) / (h + mu)."""
    world = World(FedProx(mu), h=[2.0], b=[3.0], steps=[400], start=1.0).play()
    assert world.w == pytest.approx((2 * 3 + mu * 1) / (2 + mu), abs=1e-9)


def test_one_padded_sample_does_not_weaken_the_spring():
    """The term depends on the weights alone: it enters once, whatever the batch."""
    w, w_g = {**logits([1.0, 0.0], [0.0, 2.0])}, logits([0.0, 0.0], [0.0, 0.0])
    whole = loss(FedProx(1.0), w, w_g, [0, 1]) - loss(FedProx(0.0), w, w_g, [0, 1])
    masked = loss(FedProx(1.0), w, w_g, [0, 1], [True, False]) - loss(FedProx(0.0), w, w_g, [0, 1], [True, False])
    assert whole.item() == pytest.approx(2.5)
    assert masked.item() == pytest.approx(2.5)


def test_it_adds_to_another_methods_loss():
    @dataclass(frozen=True)
    class ProxNTD(FedProx, FedNTD):
        """Both: no more than their names."""

    w, w_g, y = logits([1.0, 0.5, 0.2]), logits([0.0, 1.0, 3.0]), [1]
    both = loss(ProxNTD(mu=0.2, beta=0.7), w, w_g, y)
    parts = loss(FedProx(0.2), w, w_g, y) - loss(FedProx(0.0), w, w_g, y) + loss(FedNTD(0.7), w, w_g, y)
    assert both.item() == pytest.approx(parts.item(), abs=1e-12)


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.mu must be at least 0, not -1"):
        FedProx(mu=-1)
