"""The contrastive term on hand-made features."""

import math

import pytest
import torch
from torch.func import grad
from worlds import F64, Table, context, draw, loss

from fedntd import Batch, FedAvg, FedntdError, Model, Result, tree
from fedntd.algorithms.moon import Moon


def table(z: list[list[float]]) -> dict:
    return {"logits": torch.zeros(len(z), 2, dtype=F64), "z": torch.tensor(z, dtype=F64)}


def term(z: list[list[float]], z_g: list[list[float]], z_prev: list[list[float]], mu: float, tau: float) -> float:
    own, y = {"w_prev": table(z_prev)}, [0] * len(z)
    whole = loss(Moon(mu, tau), table(z), table(z_g), y, own=own)
    return (whole - loss(FedAvg(), table(z), table(z_g), y)).item()


def test_by_hand():
    # cosines 1 with the global model and 0 with the previous one; lengths do not matter
    wanted = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + 1))
    assert term([[3.0, 0.0]], [[0.5, 0.0]], [[0.0, 7.0]], mu=1.0, tau=0.5) == pytest.approx(wanted)
    # cosines 0.6 and -1, at another temperature and strength
    wanted = 0.3 * math.log(1 + math.exp((-1 - 0.6) / 2))
    assert term([[3.0, 4.0]], [[2.0, 0.0]], [[-3.0, -4.0]], mu=0.3, tau=2.0) == pytest.approx(wanted)


def test_the_mean_is_over_samples():
    one, other = ([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]), ([1.0, 1.0], [1.0, 0.0], [0.0, 2.0])
    both = term(*([a, b] for a, b in zip(one, other, strict=True)), mu=1.0, tau=0.5)
    alone = [term([a], [b], [c], mu=1.0, tau=0.5) for a, b, c in (one, other)]
    assert both == pytest.approx(sum(alone) / 2)


def test_features_that_are_all_zero_have_a_finite_gradient():
    w, y = table([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 1])
    ctx = context(table([[1.0, 0.0], [1.0, 0.0]]), own={"w_prev": table([[0.0, 0.0], [0.0, 1.0]])})
    gradient = grad(lambda w: Moon().loss(Table(), w, Batch(torch.zeros(2), y), ctx))(w)  # type: ignore[arg-type]
    assert tree.all_finite(gradient)


def test_the_previous_model_is_the_clients_own():
    """Not the global one, nor one that follows it: what is kept is the trained model itself."""
    w_g, w = {"w": draw(0, 3)}, {"w": draw(1, 3)}
    ctx = context(w_g, own=Moon().init_client(w_g))
    assert torch.equal(ctx.own["w_prev"]["w"], w_g["w"])  # at first the initial global model
    up, own = Moon().finish(Result(w, 1, torch.tensor(0.0)), ctx)
    assert torch.equal(own["w_prev"]["w"], w["w"])
    assert torch.equal(up["delta"]["w"], w["w"] - w_g["w"])


def test_a_network_without_features_is_told():
    model = Model(torch.nn.Linear(2, 2), "fp64")
    w = model.weights()
    with pytest.raises(FedntdError, match="must return them: Out"):
        Moon().loss(model, w, Batch(draw(0, 3, 2), torch.tensor([0, 1, 0])), context(w, own={"w_prev": w}))
