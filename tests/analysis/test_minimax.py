import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedntd import FedntdError
from fedntd.analysis.minimax import relabelled, rotated, worst_distance


def skewed(seed: int, classes: int, clients: int = 15) -> np.ndarray:
    """Clients of a federation in which some classes are rare."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(rng.uniform(0.05, 2, classes), clients)


@given(st.integers(2, 5), st.integers(0, 30))
def test_the_uniform_distribution_attains_the_minimax(classes, seed):
    populations = relabelled(skewed(seed, classes))
    best = worst_distance(np.full(classes, 1 / classes), populations)
    for p in np.random.default_rng(seed).dirichlet(np.ones(classes), 20):
        assert best <= worst_distance(p, populations) + 1e-12


@given(st.integers(2, 10), st.integers(0, 30))
def test_rotations_are_enough(classes, seed):
    populations = rotated(skewed(seed, classes))
    uniform = np.full(classes, 1 / classes)
    for p in np.random.default_rng(seed).dirichlet(np.ones(classes), 20):
        # convex, so that it grows all the way from the middle
        values = [worst_distance(uniform + t * (p - uniform), populations) for t in (0, 0.3, 0.6, 1)]
        assert values == sorted(values)


def test_one_class_a_client_by_hand():
    populations = [np.eye(4)[[c]] for c in range(4)]  # all clients have class c, for any c
    assert worst_distance(np.full(4, 0.25), populations) == pytest.approx(0.75**0.5)
    assert worst_distance(np.eye(4)[0], populations) == pytest.approx(2**0.5)


def test_a_simplex_of_class_optima_will_do():
    """Equally far from one another, wherever they are: the distance is that of the distributions, scaled."""
    optima = 3 * np.eye(4) + np.array([1.0, 7.0, 0.0, -2.0])
    clients = skewed(1, 4)
    p = np.array([0.1, 0.2, 0.3, 0.4])
    assert worst_distance(p, [clients], optima) == pytest.approx(3 * worst_distance(p, [clients]))


def test_it_needs_class_optima_that_are_alike():
    """Three models on a line, at 0, 1 and 10, and clients with one class each: 5 is best, not 11/3."""
    optima, populations = np.array([[0.0], [1.0], [10.0]]), [np.eye(3)[[c]] for c in range(3)]
    uniform, better = np.full(3, 1 / 3), np.array([0.5, 0.0, 0.5])
    assert worst_distance(uniform, populations, optima) == pytest.approx(10 - 11 / 3)
    assert worst_distance(better, populations, optima) == pytest.approx(5)


def test_it_needs_all_orders_of_the_classes():
    population = [np.array([[0.8, 0.2, 0.0]])]
    assert worst_distance(population[0][0], population) == 0 < worst_distance(np.full(3, 1 / 3), population)


def test_too_many_orders():
    with pytest.raises(FedntdError, match="at most 7"):
        relabelled(np.eye(8))
