"""What methods ask for beyond FedAvg, against the paper's table 'Additional resource requirements'."""

import pytest
import torch
from torch import nn

from fedntd import ALGORITHMS, Model, tree
from fedntd.algorithms.requirements import Requirements, requirements

W = Model(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))).weights()
ONCE = tree.nbytes(W)


def of(name: str) -> Requirements:
    return requirements(ALGORITHMS[name](), W)


# statefulness, communication, auxiliary data: whether they are needed
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("feddf", (False, False, True)),  # "FedEnsemble"
        (
            "fedbe",
            (False, False, True),
        ),  # where the paper says that it communicates more; by its definition it does not
        ("moon", (True, False, False)),
        ("scaffold", (True, True, False)),
        ("fedntd", (False, False, False)),
    ],
)
def test_the_papers_table(name: str, needs: tuple[bool, bool, bool]):
    found = of(name)
    assert (found.state_bytes > 0, found.extra_up_bytes + found.extra_down_bytes > 0, found.auxiliary_data) == needs


def test_fedavg_needs_nothing():
    assert of("fedavg") == Requirements(0, 0, 0, False, 0, 0, 0)


def test_bytes():
    assert of("scaffold")[:3] == (ONCE, ONCE, ONCE)
    assert of("fedcurv")[:3] == (2 * ONCE, 2 * ONCE, 2 * ONCE)
    assert of("moon")[:3] == (ONCE, 0, 0)
    assert of("feddyn")[:3] == (ONCE, 0, 0)
    assert of("fednova")[:3] == (0, 4, 0)  # one number
    assert of("fedacg")[:3] == (0, 0, 0)  # other weights are sent, not more


@pytest.mark.parametrize(
    ("name", "passes"),
    [("fedprox", (0, 0)), ("fedntd", (1, 0)), ("moon", (2, 0)), ("fedsam", (1, 1)), ("fedsol", (2, 1))],
)
def test_compute(name: str, passes: tuple[int, int]):
    assert of(name)[4:6] == passes


def test_only_two_methods_need_auxiliary_data():
    assert {name for name in ALGORITHMS if of(name).auxiliary_data} == {"feddf", "fedbe"}


def test_only_fedcurv_looks_at_its_data_again():
    assert {name for name in ALGORITHMS if of(name).measure_samples} == {"fedcurv"}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_nothing_is_negative_and_the_weights_stay(name: str):
    before = tree.map(torch.clone, W)
    assert min(of(name)) >= 0
    assert all(torch.equal(before[n], W[n]) for n in W)
