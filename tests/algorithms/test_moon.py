"""The contrastive term on hand-made features."""

import math

import numpy as np
import pytest
import torch
from torch.func import grad
from worlds import F64, Table, context, draw, loss

from fedntd import Batch, FedAvg, FedntdError, Model, Result, tree
from fedntd.algorithms.moon import Moon
from fedntd.config.schema import Optimiser
from fedntd.engine.training import train_client


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
    """A client keeps its trained model itself, not the global model, nor a model that later changes with it."""
    w_g, w = {"w": draw(0, 3)}, {"w": draw(1, 3)}
    ctx = context(w_g, own=Moon().init_client(w_g))
    assert torch.equal(ctx.own["w_prev"]["w"], w_g["w"])  # at first the initial global model
    up, own = Moon().finish(Result(w, 1, torch.tensor(0.0)), ctx)
    assert torch.equal(own["w_prev"]["w"], w["w"])
    assert torch.equal(up["delta"]["w"], w["w"] - w_g["w"])


def test_rounds_by_hand():
    """Two samples of one client through two rounds of two steps each, with momentum, in numpy: in the second round the
    features are pushed away from where the first round left them."""
    mu, tau, lr, rho, y = 0.7, 0.5, 0.3, 0.9, [0, 1]
    z_0 = np.array([[1.0, 0.5, -0.3], [0.2, -1.0, 0.8]])
    logits_0 = np.array([[0.3, -0.2], [0.1, 0.4]])

    def slope_of_cosine(z: np.ndarray, other: np.ndarray) -> np.ndarray:
        size, cosine = np.linalg.norm(z), z @ other / np.linalg.norm(z) / np.linalg.norm(other)
        return other / size / np.linalg.norm(other) - cosine * z / size**2

    def slopes(z: np.ndarray, logits: np.ndarray, z_g: np.ndarray, z_prev: np.ndarray) -> tuple[np.ndarray, ...]:
        of_z, of_logits = np.zeros_like(z), np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        for i in range(2):
            of_logits[i, y[i]] -= 1
            e_g, e_prev = (
                np.exp(z[i] @ o[i] / np.linalg.norm(z[i]) / np.linalg.norm(o[i]) / tau) for o in (z_g, z_prev)
            )
            push = slope_of_cosine(z[i], z_prev[i]) - slope_of_cosine(z[i], z_g[i])
            of_z[i] = mu / tau * e_prev / (e_g + e_prev) * push
        return of_z / 2, of_logits / 2

    algorithm = Moon(mu, tau)
    w_g = {"z": torch.tensor(z_0), "logits": torch.tensor(logits_0)}
    own = algorithm.init_client(w_g)
    z_g, logits_g, z_prev = z_0, logits_0, z_0
    for round in range(2):
        # between the rounds the global model goes elsewhere than the client did
        z_g, logits_g = z_g + 0.1 * round, logits_g - 0.2 * round
        w_g = {"z": torch.tensor(z_g), "logits": torch.tensor(logits_g)}
        z, logits, v_z, v_logits = z_g, logits_g, 0.0, 0.0
        for _ in range(2):
            of_z, of_logits = slopes(z, logits, z_g, z_prev)
            v_z, v_logits = rho * v_z + of_z, rho * v_logits + of_logits
            z, logits = z - lr * v_z, logits - lr * v_logits
        optimiser = Optimiser(lr=lr, momentum=rho, weight_decay=0.0)
        ctx = context(w_g, own=own, lr=torch.tensor(lr, dtype=F64))
        result = train_client(algorithm, Table(), optimiser, [Batch(torch.zeros(2), torch.tensor(y))] * 2, ctx)  # type: ignore[arg-type]
        np.testing.assert_allclose(result.w["z"], z, rtol=1e-12)
        np.testing.assert_allclose(result.w["logits"], logits, rtol=1e-12)
        own, z_prev = algorithm.finish(result, ctx).own, z
    assert np.abs(z_prev - z_g).max() > 0.01


def test_a_network_without_features_is_told():
    model = Model(torch.nn.Linear(2, 2), "fp64")
    w = model.weights()
    with pytest.raises(FedntdError, match="must return them: Out"):
        Moon().loss(model, w, Batch(draw(0, 3, 2), torch.tensor([0, 1, 0])), context(w, own={"w_prev": w}))
