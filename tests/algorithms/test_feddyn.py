"""Dynamic regularisation: its only resting point is the optimum of all clients together."""

import pytest
from worlds import World, descend

from fedntd import FedAvg, FedntdError
from fedntd.algorithms.feddyn import FedDyn

SETTINGS: dict = {"h": [1.0, 4.0, 2.0], "b": [2.0, -1.0, 0.5], "steps": [20, 8, 10], "lr": 0.2}


@pytest.mark.parametrize("sizes", [None, [1.0, 2.0, 5.0]])
def test_the_fixed_point_is_the_global_optimum(sizes: list[float] | None):
    world = World(FedDyn(alpha=2.0), **SETTINGS, sizes=sizes).play(40)
    assert world.w == pytest.approx(world.optimum, abs=1e-5)
    assert abs(World(FedAvg(), **SETTINGS, sizes=sizes).play(40).w - world.optimum) > 0.1


def test_with_part_of_the_clients_in_each_round():
    world = World(FedDyn(alpha=2.0), **SETTINGS)
    for round in range(90):
        world.play(cohort=[round % 3, (round + 1) % 3])
    assert world.w == pytest.approx(world.optimum, abs=1e-3)


def test_g_is_the_clients_gradient_where_it_stopped_and_h_their_mean():
    sizes = [1.0, 2.0, 5.0]
    world = World(FedDyn(alpha=2.0), **SETTINGS, sizes=sizes)
    for cohort in ([0, 1], [2], [0, 2]):
        for i in cohort:
            end = world.train(i).w["w"].item()
            own = world.algorithm.finish(world.train(i), world.context(i)).own
            assert own["g"]["w"].item() == pytest.approx(SETTINGS["h"][i] * (end - SETTINGS["b"][i]), abs=1e-3)
        world.play(cohort=cohort)
        mean = sum(sizes[i] / 8 * world.own[i]["g"]["w"].item() for i in world.own)
        assert world.server["h"]["w"].item() == pytest.approx(mean, abs=1e-12)


def test_one_round_by_hand():
    """One client, one step of 0.1 from 0 at gradient -2: w_1 = 0.2; h = -alpha 0.2; w = w_1 - h / alpha = 0.4."""
    world = World(FedDyn(alpha=0.5), h=[2.0], b=[1.0], steps=[1], lr=0.1).play()
    assert world.own[0]["g"]["w"].item() == pytest.approx(-0.1)
    assert world.server["h"]["w"].item() == pytest.approx(-0.1)
    assert world.w == pytest.approx(0.4)


def test_released_rounds_by_hand():
    """The weights by the clients' sizes, h by plain means; two of three clients a round."""
    h, b, steps, sizes, lr, alpha = [1.0, 4.0, 2.0], [2.0, -1.0, 0.5], [3, 2, 4], [1.0, 2.0, 5.0], 0.1, 0.5
    world = World(FedDyn(alpha, uniform=True).with_values({"ratio": 2 / 3}), h, b, steps, lr, sizes=sizes)
    w, mean_g, g = 0.0, 0.0, [0.0, 0.0, 0.0]
    for cohort in ([0, 1], [1, 2]):
        ends = {}
        for i in cohort:
            ends[i] = descend(w, lambda v, i=i, w=w: h[i] * (v - b[i]) - g[i] + alpha * (v - w), steps[i], lr, 0.0)
        for i, end in ends.items():
            g[i] -= alpha * (end - w)
            mean_g -= alpha / 3 * (end - w)
        w = sum(sizes[i] * end for i, end in ends.items()) / sum(sizes[i] for i in cohort) - mean_g / alpha
        world.play(cohort=cohort)
        assert world.w == pytest.approx(w, abs=1e-12)
        assert world.server["h"]["w"].item() == pytest.approx(mean_g, abs=1e-12) == pytest.approx(sum(g) / 3)


def test_no_regularisation_is_refused():
    with pytest.raises(FedntdError, match=r"algorithm\.alpha must be above 0"):
        FedDyn(alpha=0)
