"""Control variates: written back, summing up, and leading to the optimum of heterogeneous quadratics."""

import pytest
from worlds import World, descend, steps_that_count

from fedntd import FedAvg
from fedntd.algorithms.scaffold import Scaffold
from fedntd.config.presets import configure, released_values
from fedntd.config.schema import make_algorithm

HETEROGENEOUS: dict = {"h": [1.0, 3.0, 0.5], "b": [1.0, -1.0, 4.0], "steps": [2, 5, 3]}


def by_hand(
    h: list[float], b: list[float], steps: list[int], lr: float, rounds: int
) -> tuple[float, float, list[float]]:
    """Algorithm 1 of the paper with option II and all clients taking part, in plain numbers."""
    n = len(h)
    x, c, c_i = 0.0, 0.0, [0.0] * n
    for _ in range(rounds):
        y_s, new = [], []
        for i in range(n):
            y = x
            for _ in range(steps[i]):
                y -= lr * (h[i] * (y - b[i]) - c_i[i] + c)
            y_s.append(y)
            new.append(c_i[i] - c + (x - y) / (steps[i] * lr))
        x += sum(y - x for y in y_s) / n
        c += sum(a - b for a, b in zip(new, c_i, strict=True)) / n
        c_i = new
    return x, c, c_i


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_rounds_by_hand(rounds: int):
    world = World(Scaffold(), **HETEROGENEOUS, lr=0.1).play(rounds)
    x, c, c_i = by_hand(**HETEROGENEOUS, lr=0.1, rounds=rounds)
    assert world.w == pytest.approx(x, abs=1e-12)
    assert world.server["c"]["w"].item() == pytest.approx(c, abs=1e-12)
    assert [world.own[i]["c_i"]["w"].item() for i in range(3)] == pytest.approx(c_i, abs=1e-12)


def test_variates_are_the_mean_gradients_of_the_first_round_and_are_used_in_the_second():
    world = World(Scaffold(), h=[2.0], b=[1.0], steps=[2], lr=0.1).play()
    # from 0: gradients -2 and 2 (0.2 - 1) = -1.6
    assert world.own[0]["c_i"]["w"].item() == pytest.approx(-1.8)
    assert world.server["c"]["w"].item() == pytest.approx(-1.8)
    two = World(Scaffold(), **HETEROGENEOUS).play(2)
    assert abs(two.w - World(FedAvg(), **HETEROGENEOUS).play(2).w) > 1e-3


@pytest.mark.parametrize("sizes", [None, [1.0, 5.0, 2.0]])
def test_the_servers_variate_stays_the_mean_of_all_clients(sizes: list[float] | None):
    """The mean includes clients that were not sampled, and clients of different weights."""
    world = World(Scaffold(), **HETEROGENEOUS, sizes=sizes)
    for cohort in ([0, 1], [2], [1, 2], [0]):
        world.play(cohort=cohort)
        share = [s / sum(sizes) for s in sizes] if sizes else [1 / 3] * 3
        mean = sum(share[i] * world.own[i]["c_i"]["w"].item() for i in world.own)
        assert world.server["c"]["w"].item() == pytest.approx(mean, abs=1e-12)
        assert abs(mean) > 0.01


@pytest.mark.parametrize("sizes", [None, [1.0, 5.0, 2.0]])
def test_it_goes_to_the_optimum_where_fedavg_does_not(sizes: list[float] | None):
    settings = {**HETEROGENEOUS, "steps": [2, 6, 3], "sizes": sizes}
    world = World(Scaffold(), **settings).play(80)
    assert world.w == pytest.approx(world.optimum, abs=1e-6)
    assert abs(World(FedAvg(), **settings).play(80).w - world.optimum) > 0.03


def test_the_adaptive_divisor_recovers_the_gradient_under_momentum():
    """On an almost flat quadratic the gradient stays g; without the correction the variate would be several times g."""
    settings: dict = {"h": [1e-5], "b": [-1e3], "steps": [8], "lr": 1e-3, "momentum": 0.9}
    assert World(Scaffold(), **settings).play().own[0]["c_i"]["w"].item() == pytest.approx(0.01, rel=1e-6)
    plain = World(Scaffold(adaptive=False), **settings).play().own[0]["c_i"]["w"].item()
    assert plain == pytest.approx(0.01 * (8 - 0.9 * (1 - 0.9**8) / 0.1) / 0.1 / 8, rel=1e-6)


def test_released_rounds_by_hand():
    """Weights by the clients' sizes, but c by plain means; the corrected gradient goes through momentum, and the
    divisor is lr a(K). Two of three clients a round; one of them comes back."""
    h, b, steps, sizes, lr, rho = [1.0, 3.0, 0.5], [1.0, -1.0, 4.0], [2, 5, 3], [1.0, 6.0, 2.0], 0.05, 0.9
    released = Scaffold(**released_values("scaffold")).with_values({"ratio": 2 / 3})
    world = World(released, h, b, steps, lr, rho, sizes=sizes)
    x, c, c_i = 0.0, 0.0, [0.0, 0.0, 0.0]
    for cohort in ([0, 1], [1, 2]):
        ends, changes = {}, []
        for i in cohort:
            ends[i] = descend(x, lambda y, i=i, c=c: h[i] * (y - b[i]) - c_i[i] + c, steps[i], lr, rho)
            changes.append((x - ends[i]) / (lr * steps_that_count(steps[i], rho)) - c)
        x = sum(sizes[i] * end for i, end in ends.items()) / sum(sizes[i] for i in cohort)
        c += 2 / 3 * sum(changes) / 2
        for i, change in zip(cohort, changes, strict=True):
            c_i[i] += change
        world.play(cohort=cohort)
        assert world.w == pytest.approx(x, abs=1e-12)
        assert world.server["c"]["w"].item() == pytest.approx(c, abs=1e-12)
        assert c == pytest.approx(sum(c_i) / 3)
        assert {i: own["c_i"]["w"].item() for i, own in world.own.items()} == pytest.approx(
            {i: c_i[i] for i in world.own}, abs=1e-12
        )
    by_size = World(Scaffold(), h, b, steps, lr, rho, sizes=sizes).play(cohort=[0, 1]).play(cohort=[1, 2])
    assert abs(by_size.w - x) > 0.01


def test_the_federation_tells_its_ratio():
    config = configure("demo", ["algorithm.name=scaffold-released", "federation.ratio=0.05", "server.name=fedavgm"])
    assert make_algorithm(config).method.ratio == 0.05  # type: ignore[attr-defined]


def test_the_servers_step_size():
    settings: dict = {"h": [1.0], "b": [1.0], "steps": [1], "lr": 0.1}
    assert World(Scaffold(eta_g=2.0), **settings).play().w == pytest.approx(0.2)
