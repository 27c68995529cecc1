"""FedSAM, FedASAM and FedSOL: where the gradient is taken, by hand."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from worlds import F64, Table, World, context, draw

from fedntd import Batch, FedAvg, FedntdError, Model, tree
from fedntd.algorithms.fedasam import FedASAM
from fedntd.algorithms.fedsam import FedSAM
from fedntd.algorithms.fedsol import FedSOL

NO_BATCH = Batch(torch.zeros(1), torch.zeros(1, dtype=torch.int64))


def half_square(w: dict[str, Tensor]) -> Tensor:
    """1/2 sum of c w^2 with c = 1, 2, 3, ...: its gradient is c w."""
    flat = torch.cat([leaf.flatten() for leaf in w.values()])
    return (torch.arange(1, len(flat) + 1, dtype=F64) * flat**2).sum() / 2


@dataclass(frozen=True)
class Sharp(FedSAM):
    def loss(self, model, w, batch, ctx):
        return half_square(w)


@dataclass(frozen=True)
class ASharp(FedASAM):
    def loss(self, model, w, batch, ctx):
        return half_square(w)


def gradient(algorithm: FedAvg, w: dict, w_g: dict | None = None, batch: Batch = NO_BATCH) -> tuple[dict, Tensor]:
    return algorithm.gradient(Table(), w, batch, context(w if w_g is None else w_g))  # type: ignore[arg-type]


def test_sams_point_by_hand():
    w = {"fc.weight": torch.tensor([3.0], dtype=F64), "fc.bias": torch.tensor([2.0], dtype=F64)}
    g, loss = gradient(Sharp(rho=0.5), w)
    # gradient (3, 4), of length 5: the point is (3 + 0.5 * 3/5, 2 + 0.5 * 4/5)
    assert g["fc.weight"].item() == pytest.approx(3.3)
    assert g["fc.bias"].item() == pytest.approx(2 * 2.4)
    assert loss.item() == pytest.approx(9 / 2 + 4)  # that of w itself


def test_asams_point_by_hand():
    w = {"fc.weight": torch.tensor([-3.0], dtype=F64), "fc.bias": torch.tensor([2.0], dtype=F64)}
    g, loss = gradient(ASharp(rho=0.5, eta=0.2), w)
    # gradient (-3, 4); T = (3.2, 1): T g = (-9.6, 4), of length 10.4; the point moves by 0.5 T (T g) / 10.4
    assert g["fc.weight"].item() == pytest.approx(-3 + 0.5 * 3.2 * -9.6 / 10.4)
    assert g["fc.bias"].item() == pytest.approx(2 * (2 + 0.5 * 4 / 10.4))
    assert loss.item() == pytest.approx(9 / 2 + 4)


@pytest.mark.parametrize("algorithm", [Sharp(), ASharp()])
def test_at_a_minimum_there_is_no_direction(algorithm: FedAvg):
    w = {"fc.weight": torch.zeros(3, dtype=F64)}
    assert (gradient(algorithm, w)[0]["fc.weight"] == 0).all()


def test_sam_on_a_quadratic_circles_the_minimum():
    """Near b the gradient is h (w - b + rho sign(w - b)): one step from b + 0.1, with lr h = 0.1 and rho = 0.5."""
    world = World(FedSAM(rho=0.5), h=[1.0], b=[1.0], steps=[1], lr=0.1, start=1.1)
    assert world.play().w == pytest.approx(1.1 - 0.1 * (0.1 + 0.5))


def cross_entropy_slope(z: Tensor, y: Tensor) -> Tensor:
    return (z.softmax(1) - torch.nn.functional.one_hot(y, z.shape[1])) / len(z)


@pytest.mark.parametrize("adaptive", [True, False])
def test_fedsols_point_by_hand(adaptive: bool):
    z, z_g, y = draw(0, 3, 4), draw(1, 3, 4), torch.tensor([0, 3, 1])
    # the gradient of KL(q_g || q) at temperature 3 with respect to the logits goes along q - q_g
    g_p = (z / 3).softmax(1) - (z_g / 3).softmax(1)
    unit = g_p / g_p.norm()
    away = (z - z_g).abs()
    if adaptive:
        unit = unit * away / away.square().sum(0, keepdim=True).sqrt()
    wanted = cross_entropy_slope(z + 0.8 * unit, y)
    algorithm = FedSOL(rho=0.8, adaptive=adaptive)
    g, _ = gradient(algorithm, {"logits": z}, {"logits": z_g}, Batch(torch.zeros(3), y))
    torch.testing.assert_close(g["logits"], wanted)


def test_fedsol_starts_with_the_plain_gradient():
    """At the global weights nothing is to be preserved yet."""
    model = Model(torch.nn.Linear(2, 3), "fp64")
    w, batch = model.weights(), Batch(draw(0, 5, 2), torch.tensor([0, 1, 2, 1, 0]))
    ours, plain = (a.gradient(model, w, batch, context(w))[0] for a in (FedSOL(), FedAvg()))
    assert tree.sqnorm(tree.sub(ours, plain)) == 0


def test_impossible_values_are_refused():
    for algorithm in (FedSAM, FedASAM, FedSOL):
        with pytest.raises(FedntdError, match=r"algorithm\.rho must be at least 0"):
            algorithm(rho=-1)
