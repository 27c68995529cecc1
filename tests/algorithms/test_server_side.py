"""FedAvgM, FedOpt, FedExP and FedACG: what the server makes of the clients' updates, by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds import F64, World, draw, scalar

from fedntd import FedAvg, FedntdError
from fedntd.algorithms.fedacg import FedACG
from fedntd.algorithms.fedavgm import FedAvgM
from fedntd.algorithms.fedexp import FedExP
from fedntd.algorithms.fedopt import FedOpt

ROUNDS = [[1.0, 3.0], [-0.5, 0.1], [2.0, -4.0]]  # updates of two clients
P = torch.tensor([0.25, 0.75], dtype=F64)
MEANS = [0.25 * a + 0.75 * b for a, b in ROUNDS]


def run(algorithm: FedAvg, start: float = 10.0) -> list[float]:
    w, path = scalar(start), []
    server = algorithm.init_server(w)
    for a, b in ROUNDS:
        up = {"delta": {"w": torch.tensor([[a], [b]], dtype=F64)}}
        w, server = algorithm.aggregate(w, server, up, P, 0.1)
        path.append(w["w"].item())
    return path


def test_fedavgm_by_hand():
    w, v, path = 10.0, 0.0, []
    for mean in MEANS:
        v = 0.7 * v + mean
        w += v
        path.append(w)
    assert run(FedAvgM()) == pytest.approx(path)
    assert run(FedAvgM(beta=0.0)) == pytest.approx(run(FedAvg()))


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_fedopt_by_hand(rule: str):
    w, m, v, path = 10.0, 0.0, 0.02**2, []
    for mean in MEANS:
        m = 0.8 * m + 0.2 * mean
        if rule == "adam":
            v = 0.95 * v + 0.05 * mean**2
        elif rule == "yogi":
            v = v - 0.05 * mean**2 * math.copysign(1, v - mean**2)
        else:
            v = v + mean**2
        w += 0.3 * m / (math.sqrt(v) + 0.02)
        path.append(w)
    assert run(FedOpt(rule, eta=0.3, beta_1=0.8, beta_2=0.95, tau=0.02)) == pytest.approx(path)


def test_fedopt_against_torchs_adam():
    """torch's bias corrections are constants of each round: with them put back, and the same start of v, they agree."""
    b1, b2, eta, tau = 0.9, 0.99, 0.1, 1e-3
    p = torch.tensor([10.0], dtype=F64, requires_grad=True)
    adam = torch.optim.Adam([p], lr=1.0, betas=(b1, b2), eps=0.0)
    wanted, w = [], 10.0
    for t, mean in enumerate(MEANS, 1):
        p.grad = torch.tensor([-mean], dtype=F64)
        adam.step()
        state = adam.state[p]
        v = state["exp_avg_sq"].item() + b2**t * tau**2
        w -= eta * state["exp_avg"].item() / (math.sqrt(v) + tau)
        wanted.append(w)
    assert run(FedOpt("adam", eta=eta, beta_1=b1, beta_2=b2, tau=tau)) == pytest.approx(wanted)


def test_fedopt_refuses_what_it_does_not_know():
    with pytest.raises(FedntdError, match=r"algorithm\.rule = 'adma' is not known; did you mean 'adam'"):
        FedOpt(rule="adma")
    with pytest.raises(FedntdError, match=r"algorithm\.beta_2 must be at least 0 and below 1, not 1"):
        FedOpt(beta_2=1.0)
    with pytest.raises(FedntdError, match=r"algorithm\.eta must be above 0"):
        FedOpt(eta=0.0)


def extrapolated(deltas: torch.Tensor, p: list[float], epsilon: float = 1e-3) -> torch.Tensor:
    """The server's step, for updates [client, weight] split over two leaves."""
    w = {"a": torch.zeros(1, dtype=F64), "b": torch.zeros(deltas.shape[1] - 1, dtype=F64)}
    up = {"delta": {"a": deltas[:, :1], "b": deltas[:, 1:]}}
    method = FedExP(epsilon)
    w = method.send(*method.aggregate(w, method.init_server(w), up, torch.tensor(p, dtype=F64), 0.1))
    return torch.cat([w["a"], w["b"]])


def test_fedexp_by_hand():
    # opposite updates 3 and -1 (in both weights): mean 1, |mean|^2 = 2, mean |delta|^2 = (18 + 2) / 2 = 10
    step = extrapolated(torch.tensor([[3.0, 3.0], [-1.0, -1.0]], dtype=F64), [0.5, 0.5])
    assert step.tolist() == pytest.approx([10 / (2 * 2.001)] * 2)
    # the first client three times as large: mean 2, |mean|^2 = 8, mean |delta|^2 = 14: less than FedAvg's step, so 1
    step = extrapolated(torch.tensor([[3.0, 3.0], [-1.0, -1.0]], dtype=F64), [0.75, 0.25])
    assert step.tolist() == pytest.approx([2.0, 2.0])


def test_fedexps_global_model_is_the_mean_of_the_last_two():
    """h = b = 1, one client: FedAvg's steps of 0.1 (1 - w)."""
    world = World(FedExP(), h=[1.0], b=[1.0], steps=[1], lr=0.1).play()
    assert world.w == pytest.approx(0.05)
    assert world.context(0).w_g["w"].item() == pytest.approx(0.1)  # clients go on from the last
    assert world.play().w == pytest.approx((0.1 + 0.19) / 2)


@given(st.integers(0, 200), st.integers(1, 6))
def test_fedexp_never_goes_less_far_than_fedavg(seed: int, clients: int):
    deltas = draw(seed, clients, 4)
    p = (draw(seed + 1, clients).abs() + 0.1).numpy()
    mean = np.average(deltas.numpy(), axis=0, weights=p)
    step = extrapolated(deltas, (p / p.sum()).tolist())
    factors = step.numpy() / mean
    assert factors == pytest.approx(factors[0])  # along the mean
    assert factors[0] >= 1 - 1e-9
    if clients == 1:
        assert factors[0] == pytest.approx(1.0)


def test_fedacg_two_rounds_by_hand():
    """h = b = 1, one step of 0.1 a round, lambda = 0.5, no spring."""
    world = World(FedACG(lam=0.5, beta=0.0), h=[1.0], b=[1.0], steps=[1], lr=0.1).play()
    assert world.w == pytest.approx(0.1)  # m = 0.1
    assert world.context(0).w_g["w"].item() == pytest.approx(0.15)  # what is sent is a momentum step ahead
    # from 0.15: delta = 0.1 * 0.85 = 0.085; m = 0.05 + 0.085; w = 0.1 + m
    assert world.play().w == pytest.approx(0.235)
    assert world.server["m"]["w"].item() == pytest.approx(0.135)


def test_fedacgs_spring_is_tied_to_what_was_sent():
    world = World(FedACG(lam=0.5, beta=3.0), h=[1.0], b=[1.0], steps=[1], lr=0.1).play()
    sent = world.context(0).w_g["w"].item()
    world.steps = [500]
    assert world.train(0).w["w"].item() == pytest.approx((1 + 3 * sent) / 4)


def test_fedacg_is_fedavg_without_momentum_and_spring():
    settings: dict = {"h": [1.0, 3.0], "b": [1.0, -1.0], "steps": [2, 3]}
    ours, plain = World(FedACG(lam=0.0, beta=0.0), **settings), World(FedAvg(), **settings)
    assert ours.play(3).w == pytest.approx(plain.play(3).w, abs=1e-12)


def test_impossible_values_are_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.beta must be at least 0 and below 1, not 1"):
        FedAvgM(beta=1.0)
    with pytest.raises(FedntdError, match=r"algorithm\.epsilon must be above 0"):
        FedExP(epsilon=0.0)
    with pytest.raises(FedntdError, match=r"algorithm\.lam must be at least 0 and below 1"):
        FedACG(lam=1.0)
