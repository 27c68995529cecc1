"""Robust rules: against NumPy and SciPy, by hand, and in a federation in which some clients send nonsense."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import trim_mean

from fedntd import FedAvg, Federation, FedntdError, Upload
from fedntd.algorithms.robust import krum, median, none, trimmed_mean
from fedntd.config.toml import from_table

uploads = hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.floats(-1e6, 1e6))


def up(values: np.ndarray) -> dict:
    return {"delta": {"w": torch.from_numpy(values)}, "a": torch.from_numpy(values[:, 0])}


@given(uploads)
def test_the_median_is_numpys(values: np.ndarray):
    found, p = median(up(values), torch.full((len(values),), 1 / len(values)))
    np.testing.assert_allclose(found["delta"]["w"].numpy(), np.median(values, axis=0)[None])
    np.testing.assert_allclose(found["a"].numpy(), np.median(values[:, 0])[None])
    assert p.tolist() == [1.0]


@given(uploads, st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4]))
def test_the_trimmed_mean_is_scipys(values: np.ndarray, trim: float):
    found, _ = trimmed_mean(up(values), torch.full((len(values),), 1 / len(values)), trim=trim)
    np.testing.assert_allclose(found["delta"]["w"].numpy(), trim_mean(values, trim + 1e-12, axis=0)[None], atol=1e-6)


def test_whole_numbers_have_a_middle_too():
    """For example, numbers of steps: their mean is neither truncated to an integer nor an error."""
    steps, p = {"steps": torch.tensor([10, 15, 40, 2])}, torch.full((4,), 0.25)
    assert median(steps, p)[0]["steps"].tolist() == [12.5]
    assert trimmed_mean(steps, p, trim=0.25)[0]["steps"].tolist() == [12.5]


def test_krum_by_hand():
    """Points on a line at 0, 1, 3, 7, 100 and one bad client: scores are sums over the 5 - 1 - 2 = 2 nearest.

    0: 1 + 9 = 10;  1: 1 + 4 = 5;  3: 4 + 9 = 13;  7: 16 + 36 = 52;  100: 93^2 + 97^2.
    """
    points = {"delta": torch.tensor([[0.0], [1.0], [3.0], [7.0], [100.0]])}
    p = torch.tensor([0.1, 0.3, 0.2, 0.2, 0.2])
    best, weight = krum(points, p, bad=1)
    assert best["delta"].tolist() == [[1.0]]
    assert weight.tolist() == [1.0]
    three, weights = krum(points, p, bad=1, keep=3)
    assert three["delta"].tolist() == [[0.0], [1.0], [3.0]]
    torch.testing.assert_close(weights, torch.tensor([1 / 6, 3 / 6, 2 / 6]))


def test_krum_looks_at_all_tensors_together():
    a, b = torch.tensor([0.0, 0.1, 0.2, 0.3]), torch.tensor([0.0, 0.1, 50.0, 0.2])
    kept, _ = krum({"a": a, "b": b}, torch.full((4,), 0.25), bad=1, keep=3)
    assert kept["a"].tolist() == pytest.approx([0.0, 0.1, 0.3])


def test_what_cannot_be_done_is_refused():
    four = {"delta": torch.zeros(4, 2)}, torch.full((4,), 0.25)
    with pytest.raises(FedntdError, match=r"krum with robust\.bad = 2 needs at least 5 updates in a round, not 4"):
        krum(*four, bad=2)
    with pytest.raises(FedntdError, match=r"robust\.keep must lie in 1\.\.4"):
        krum(*four, keep=5)
    with pytest.raises(FedntdError, match=r"robust\.trim must be at least 0 and below 0\.5, not 0\.5"):
        trimmed_mean(*four, trim=0.5)
    with pytest.raises(FedntdError, match=r"robust\.name = 'medain' is not known; did you mean 'median'"):
        from_table({"robust": {"name": "medain"}})
    with pytest.raises(FedntdError, match=r"robust\.bad is not a setting of robust 'median'"):
        from_table({"robust": {"name": "median", "bad": 1}})


def test_none_changes_nothing():
    some, p = up(np.arange(6.0).reshape(3, 2)), torch.tensor([0.2, 0.3, 0.5])
    assert none(some, p) == (some, p)


@dataclass(frozen=True)
class Attacked(FedAvg):
    """FedAvg with clients that own more than 61 samples sending their updates times `factor`."""

    factor: float = 1.0

    def finish(self, result, ctx) -> Upload:
        up, own = super().finish(result, ctx)
        bad = ctx.class_counts().sum() > 61
        return Upload({"delta": {k: torch.where(bad, self.factor * v, v) for k, v in up["delta"].items()}}, own)


def two_of_ten(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Sixty samples for each client, and two more for the first two, which are the bad ones."""
    order = rng.permutation(len(labels))
    parts = [order[60 * k : 60 * (k + 1)] for k in range(clients)]
    return [np.concatenate([part, order[-2 * (k + 1) :][:2]]) if k < 2 else part for k, part in enumerate(parts)]


@cache  # all attacks are compared to the same honest run
def attack(factor: float, **robust: object) -> float:
    """Final accuracy on real images."""
    table = {
        "device": "cpu",
        "data": {"train_size": 700, "augment": False},
        "partition": {"name": f"{__name__}:two_of_ten"},
        "model": {"name": f"{__name__}:Linear"},
        "algorithm": {"name": f"{__name__}:Attacked", "factor": factor},
        "federation": {"clients": 10, "ratio": 1.0, "rounds": 8, "local_epochs": 5, "batch_size": 20},
        "optimiser": {"lr": 0.005, "decay": 1.0},
        "measure": {"local_every": 0},
        "robust": robust or {"name": "none"},
    }
    return [record.accuracy for record in Federation(from_table(table))][-1]


class Linear(torch.nn.Sequential):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), classes))


@pytest.mark.parametrize("factor", [-10.0, 100.0])
def test_robust_rules_hold_where_the_mean_fails(factor: float):
    """Two of ten clients send their updates with the sign flipped and ten times as long, or a hundred times as long."""
    honest, mean = attack(1.0), attack(factor)
    assert honest > 0.7
    assert mean < honest - 0.15
    for rule in ({"name": "median"}, {"name": "trimmed-mean", "trim": 0.2}, {"name": "krum", "bad": 2, "keep": 5}):
        assert attack(factor, **rule) > honest - 0.05, rule
