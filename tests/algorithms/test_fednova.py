"""Normalised averaging, on quadratics: where FedAvg settles too near to the clients that make most steps."""

import pytest
import torch
from worlds import F64, World, descend, scalar, steps_that_count

from fedntd import FedAvg, Result, tree
from fedntd.algorithms.fednova import FedNova
from fedntd.algorithms.fednova_released import FedNovaReleased
from fedntd.config.schema import Optimiser
from fedntd.engine.optim import sgd_step


def fixed_point(algorithm: FedAvg, **settings) -> float:
    """The w that a round leaves unchanged: on quadratics, a round is an affine map of w."""
    at_0, at_1 = (World(algorithm, **settings, start=start).play().w for start in (0.0, 1.0))
    return at_0 / (1 - (at_1 - at_0))


@pytest.mark.parametrize(("t", "wanted"), [(1, 1.0), (2, 1 + 1.9), (3, 1 + 1.9 + 2.71)])
def test_steps_that_count_by_hand(t: int, wanted: float):
    result = Result({}, t, torch.tensor(0.0, dtype=F64))
    assert result.drift_steps(0.9).item() == pytest.approx(wanted, abs=1e-12)
    assert result._replace(steps=torch.tensor(t)).drift_steps(0.9).item() == pytest.approx(wanted, abs=1e-12)
    assert result.drift_steps(0.0).item() == t


def test_a_constant_gradient_moves_the_weights_by_that_many_steps():
    w, velocity, g = scalar(0.0), scalar(0.0), scalar(2.0)
    for _ in range(7):
        optimiser = Optimiser(lr=0.1, momentum=0.8, weight_decay=0.0)
        w, velocity = sgd_step(optimiser, w, g, velocity, torch.tensor(0.1, dtype=F64))
    a = Result(w, 7, torch.tensor(0.0, dtype=F64)).drift_steps(0.8).item()
    assert w["w"].item() == pytest.approx(-0.1 * a * 2.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("sizes", [[1.0, 1.0, 1.0], [1.0, 4.0, 2.0]])
def test_unequal_steps_do_not_shift_the_fixed_point(sizes: list[float], momentum: float):
    settings = {"h": [1.0, 2.0, 1.0], "b": [0.0, 1.0, 3.0], "steps": [1, 4, 12], "lr": 1e-5}
    settings |= {"sizes": sizes, "momentum": momentum}
    optimum = World(FedAvg(), **settings).optimum  # type: ignore[arg-type]
    assert fixed_point(FedNova(), **settings) == pytest.approx(optimum, abs=1e-3)
    assert abs(fixed_point(FedAvg(), **settings) - optimum) > 0.1


@pytest.mark.parametrize("sizes", [None, [3.0, 1.0, 2.0]])
def test_with_equal_steps_it_is_fedavg(sizes: list[float] | None):
    settings = {"h": [1.0, 2.0, 1.0], "b": [0.0, 1.0, 3.0], "steps": [5, 5, 5], "sizes": sizes, "momentum": 0.9}
    ours = World(FedNova(), **settings).play(3)  # type: ignore[arg-type]
    assert ours.w == pytest.approx(World(FedAvg(), **settings).play(3).w, abs=1e-12)  # type: ignore[arg-type]


def test_aggregation_by_hand():
    up = {"delta": {"w": torch.tensor([[2.0], [9.0]], dtype=F64)}, "a": torch.tensor([1.0, 3.0], dtype=F64)}
    p = torch.tensor([0.25, 0.75], dtype=F64)
    w, _ = FedNova().aggregate(scalar(10.0), {}, up, p, 1.0)
    # tau_eff = 1/4 * 1 + 3/4 * 3 = 2.5; mean direction = 1/4 * 2/1 + 3/4 * 9/3 = 2.75
    assert w["w"].item() == pytest.approx(10 + 2.5 * 2.75)


def test_released_two_rounds_by_hand():
    """h = b = 1, one step of 0.1 from 0: gradient -1, w = 0.1, d = -1. Then gradient -0.9 - d = 0.1, w = 0.09."""
    world = World(FedNovaReleased(), h=[1.0], b=[1.0], steps=[1]).play()
    assert world.w == pytest.approx(0.1)
    assert world.own[0]["d"]["w"].item() == pytest.approx(-1.0)
    assert world.play().w == pytest.approx(0.09)
    assert World(FedNova(), h=[1.0], b=[1.0], steps=[1]).play(2).w == pytest.approx(0.19)


def test_released_rounds_of_unequal_clients_by_hand():
    """With momentum; client 1 takes part twice, and in its second round pushes away from where it went in its first."""
    h, b, steps, sizes, lr, rho = [1.0, 3.0, 0.5], [1.0, -1.0, 4.0], [2, 5, 3], [1.0, 6.0, 2.0], 0.05, 0.9
    world = World(FedNovaReleased(), h, b, steps, lr, rho, sizes=sizes)
    x, d, a = 0.0, [0.0, 0.0, 0.0], [steps_that_count(t, rho) for t in steps]
    for cohort in ([0, 1], [1, 2]):
        ends = {i: descend(x, lambda y, i=i: h[i] * (y - b[i]) - d[i], steps[i], lr, rho) for i in cohort}
        p = {i: sizes[i] / sum(sizes[j] for j in cohort) for i in cohort}
        for i, end in ends.items():
            d[i] = (x - end) / (lr * a[i])
        x -= lr * sum(p[i] * a[i] for i in cohort) * sum(p[i] * d[i] for i in cohort)
        world.play(cohort=cohort)
        assert world.w == pytest.approx(x, abs=1e-12)
        assert {i: own["d"]["w"].item() for i, own in world.own.items()} == pytest.approx({i: d[i] for i in world.own})


def test_released_is_fednova_while_nobody_returns():
    settings = {"h": [1.0, 2.0, 1.0, 3.0], "b": [0.0, 1.0, 3.0, -2.0], "steps": [5, 2, 7, 1], "momentum": 0.9}
    runs = [World(algorithm, **settings) for algorithm in (FedNova(), FedNovaReleased())]  # type: ignore[arg-type]
    for cohort in ([0, 1], [2, 3]):
        for run in runs:
            run.play(cohort=cohort)
    assert runs[0].w == pytest.approx(runs[1].w, abs=1e-12)
    for run in runs:
        run.play(cohort=[0, 1])
    assert abs(runs[0].w - runs[1].w) > 1e-3


def test_released_keeps_the_last_mean_gradient():
    """With momentum, too: a client whose gradient stays g keeps d = g."""
    algorithm, lr = FedNovaReleased(), torch.tensor(0.2, dtype=F64)
    w_g, t = scalar(1.0), 6
    a = (t - 0.9 * (1 - 0.9**t) / 0.1) / 0.1
    world = World(algorithm, h=[1.0], b=[1.0], steps=[t], lr=0.2, momentum=0.9, start=1.0)
    result = Result(tree.sub(w_g, tree.scale(0.2 * a, scalar(3.0))), t, torch.tensor(0.0, dtype=F64))
    own = algorithm.finish(result, world.context(0)._replace(lr=lr)).own
    assert own["d"]["w"].item() == pytest.approx(3.0)
