"""Updates on their way into the mean: one by one or all together."""

from pathlib import Path

import numpy as np
import pytest
import torch
from loop import play
from world import CHEAP, TABLE

from fedntd import ALGORITHMS, read_run, tree
from fedntd.config.toml import from_table
from fedntd.flower import sites
from fedntd.flower.collect import All, RunningMean, needs_only_the_mean
from fedntd.flower.server_app import Coordinator
from fedntd.flower.site import held_out


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "POLL", 0.01)


def test_a_running_mean_is_the_mean_of_all():
    draw = torch.Generator().manual_seed(0)
    ups = [{"delta": {"w": torch.randn(3, 2, generator=draw)}, "a": torch.randn((), generator=draw)} for _ in range(50)]
    sizes = [float(n) for n in range(1, 51)]
    running, every = RunningMean(ups[0]), All()
    for k in np.random.default_rng(0).permutation(50).tolist():  # in whatever order they come
        running.add(k, ups[k], sizes[k])
        every.add(k, ups[k], sizes[k])
    stacked, p = every.uploads()
    assert torch.equal(stacked["a"], torch.stack([up["a"] for up in ups]))
    torch.testing.assert_close(p, torch.tensor(sizes, dtype=torch.float64) / 1275)
    mean, one = running.uploads()
    assert one.tolist() == [1.0]
    wanted = tree.weighted_mean(stacked, p)
    torch.testing.assert_close(mean["delta"]["w"][0], wanted["delta"]["w"])
    torch.testing.assert_close(mean["a"][0], wanted["a"])


def test_the_mean_of_whole_numbers_need_not_be_one():
    running = RunningMean({"steps": torch.tensor(10)})
    for k, steps in enumerate((10, 15)):
        running.add(k, {"steps": torch.tensor(steps)}, 1.0)
    assert running.uploads()[0]["steps"].tolist() == [12.5]


def test_a_running_mean_keeps_no_upload():
    up = {"delta": {"w": torch.ones(1000)}}
    running = RunningMean(up)
    before = running.sum["delta"]["w"].data_ptr()
    for k in range(100):
        running.add(k, {"delta": {"w": torch.full((1000,), float(k))}}, 1.0)
    assert running.sum["delta"]["w"].data_ptr() == before
    assert set(vars(running)) == {"like", "total", "sum"}
    assert running.uploads()[0]["delta"]["w"][0, 0] == 49.5


EXAMPLES = {"scaffold": {"delta_c"}, "fednova": {"a"}, "fednova-released": {"a"}, "fedcurv": {"change"}}
NEED_ALL = {"fedcurv", "fednova", "fednova-released", "fedexp", "feddf", "fedbe"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_which_methods_need_only_the_mean(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Found out in a real federation, where the coordinator then holds either one sum or all updates."""
    seen = []
    weigh = Coordinator.weigh
    monkeypatch.setattr(Coordinator, "weigh", lambda self, got: (seen.append(self), weigh(self, got))[1])
    table = {
        **TABLE,
        "algorithm": {"name": name, **CHEAP.get(name, {})},
        "federation": {**TABLE["federation"], "rounds": 1},
    }
    play(table, tmp_path / "run", held_out(from_table(table)))
    (coordinator,) = seen
    assert coordinator.streams == (name not in NEED_ALL)
    assert needs_only_the_mean(coordinator.algorithm, coordinator.state.w, coordinator.like) == coordinator.streams
    assert set(coordinator.like) == {"delta"} | EXAMPLES.get(name, set())


# --- robust rules -----------------------------------------------------------------------------------------------


def test_a_robust_rule_in_a_federation(tmp_path: Path):
    """One site of five sends its update times -10; the median is as good as a federation without it."""
    table = {
        **TABLE,
        "partition": {"name": "iid"},
        "federation": {**TABLE["federation"], "clients": 5, "ratio": 1.0, "rounds": 6},
    }
    nodes = [{}, {}, {"fault": "flip"}, {}, {}]
    test = held_out(from_table(table))
    losses = {}
    for name, robust, faults in (("honest", "none", None), ("mean", "none", nodes), ("median", "median", nodes)):
        play({**table, "robust": {"name": robust}}, tmp_path / name, test, faults)
        losses[name] = read_run(tmp_path / name).records[-1].loss
    assert losses["mean"] > 2 * losses["honest"]
    assert losses["median"] < 1.2 * losses["honest"]
