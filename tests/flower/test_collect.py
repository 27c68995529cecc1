"""Updates on their way into the mean: one by one or all together, clipped, noised, and what privacy is spent."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.supercore.differential_privacy import compute_clip_model_update, compute_stdv
from loop import play
from scipy.stats import kstest, norm
from world import CHEAP, TABLE

from fedntd import ALGORITHMS, FedntdError, read_run, tree
from fedntd.config.toml import from_table
from fedntd.engine.testing import Counts
from fedntd.flower import sites
from fedntd.flower.collect import All, RunningMean, clipped, epsilon, needs_only_the_mean, noised
from fedntd.flower.server_app import Coordinator
from fedntd.flower.site import held_out
from fedntd.runs.record import load_checkpoint
from fedntd.support.files import read_json
from fedntd.tree import Weights


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
    monkeypatch.setattr(
        Coordinator, "weigh", lambda self, got, cohort: (seen.append(self), weigh(self, got, cohort))[1]
    )
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


# --- differential privacy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.5, 5.0])
def test_clipping_is_flowers(length: float):
    draw = np.random.default_rng(1)
    delta = {"a": draw.normal(size=(3, 4)), "b": draw.normal(size=5)}
    norm = math.sqrt(sum((leaf**2).sum() for leaf in delta.values()))
    delta = {name: leaf * length / norm for name, leaf in delta.items()}
    flowers = [leaf.copy() for leaf in delta.values()]
    compute_clip_model_update(flowers, [np.zeros_like(leaf) for leaf in flowers], clipping_norm=1.0)
    ours = clipped({name: torch.from_numpy(leaf) for name, leaf in delta.items()}, 1.0)
    for mine, theirs in zip(ours.values(), flowers, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)


def test_an_update_of_no_length_stays():
    assert clipped({"a": torch.zeros(3)}, 1.0)["a"].tolist() == [0.0, 0.0, 0.0]


def test_the_noise_is_gaussian_and_never_the_same():
    still = {"w": torch.zeros(40_000, dtype=torch.float64)}
    torch.manual_seed(0)
    first = noised(still, 0.3)["w"].numpy()
    torch.manual_seed(0)
    assert not np.array_equal(first, noised(still, 0.3)["w"].numpy())
    assert kstest(first / 0.3, "norm").pvalue > 1e-4


def test_epsilon_is_that_of_flowers_accountant_and_not_below_the_truth():
    """Figures of flwr.serverapp.RdpAccountant (dp-accounting 0.6.0), and the exact ones of a Gaussian release: T
    releases with noise z are one with z / sqrt(T) (Dong, Roth and Su, 2022)."""
    known = {
        (4.0, 100, 1e-5): 14.132226163159334,
        (1.0, 1, 1e-5): 4.728507067217623,
        (1.1, 10, 1e-6): 18.231688037595877,
        (0.5, 200, 1e-5): 534.8612600716533,
        (30.0, 50, 1e-5): 0.9497375834966014,
    }
    for (noise, rounds, delta), wanted in known.items():
        mu = math.sqrt(rounds) / noise

        def true_delta(e: float, mu: float = mu) -> float:
            return float(norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu))

        found = epsilon(noise, rounds, delta)
        assert found == pytest.approx(wanted, rel=1e-9)
        assert true_delta(found) < delta < true_delta(0.9 * found)


def test_epsilon_is_never_below_zero():
    """With a large delta the bounds can be: less than nothing cannot be spent."""
    assert epsilon(100.0, 1, 0.01) == 0.0


PRIVATE = {**TABLE, "algorithm": {"name": "fedntd"}}
PRIVATE["federation"] = {**TABLE["federation"], "ratio": 1.0, "rounds": 2, "aggregation": "uniform"}


def test_fedntd_with_privacy(tmp_path: Path):
    """With hardly any noise: no update moves the weights by more than clip a round; what is spent is told."""
    play(PRIVATE, tmp_path / "run", held_out(from_table(PRIVATE)), clip=0.01, noise=1e-6)
    one_round = {**PRIVATE, "federation": {**PRIVATE["federation"], "rounds": 1}}
    play(one_round, tmp_path / "one", held_out(from_table(one_round)), clip=0.01, noise=1e-6)
    w2, w1 = (load_checkpoint(tmp_path / f"{n}/checkpoint.safetensors", torch.device("cpu")).w for n in ("run", "one"))
    assert 0.001 < math.sqrt(float(tree.sqnorm(tree.sub(w2, w1)))) <= 0.01 * 1.001
    told = read_json(tmp_path / "run/federation.json")["privacy"]
    assert told == {"clip": 0.01, "noise": 1e-6, "releases": 2, "epsilon": epsilon(1e-6, 2, 1e-5), "delta": 1e-5}


def test_a_round_that_is_played_again_has_spent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The sites have seen the weights of the second round, for a test that never ended, and then see others."""
    test, calls = Coordinator.test, []

    def cut_off(self: Coordinator, w: Weights) -> Counts:
        calls.append(tree.flatten(w))
        assert len(calls) != 3, "the power is gone"
        return test(self, w)

    monkeypatch.setattr(Coordinator, "test", cut_off)
    nodes = [{"hold_out": 5}] * 3
    with pytest.raises(AssertionError, match="the power is gone"):
        play(PRIVATE, tmp_path / "run", None, nodes, clip=1.0, noise=5.0)
    assert len(read_run(tmp_path / "run").records) == 1
    play(PRIVATE, tmp_path / "run", None, nodes, clip=1.0, noise=5.0)
    assert len(read_run(tmp_path / "run").records) == 2
    assert not torch.equal(calls[2]["head.bias"], calls[3]["head.bias"])
    assert read_json(tmp_path / "run/federation.json")["privacy"]["epsilon"] == epsilon(5.0, 3, 1e-5)


def test_privacy_that_was_refused_does_not_bind_the_folder(tmp_path: Path):
    table = {**PRIVATE, "algorithm": {"name": "scaffold"}}
    with pytest.raises(FedntdError, match="does not go with algorithm 'scaffold'"):
        play(table, tmp_path / "run", held_out(from_table(table)), clip=1.0, noise=1.0)
    play(table, tmp_path / "run", held_out(from_table(table)))
    assert read_run(tmp_path / "run").status == "finished"


@pytest.mark.parametrize(("begun", "then"), [({}, {"clip": 1.0, "noise": 50.0}), ({"clip": 1.0, "noise": 50.0}, {})])
def test_privacy_is_that_of_all_rounds(begun: dict, then: dict, tmp_path: Path):
    """Rounds without noise are not made private by rounds with it, nor does what was spent hold for others."""
    longer = {**PRIVATE, "federation": {**PRIVATE["federation"], "rounds": 3}}
    play(PRIVATE, tmp_path / "run", held_out(from_table(PRIVATE)), **begun)
    before = (tmp_path / "run/federation.json").read_text()
    with pytest.raises(FedntdError, match=r"was begun with flower\.clip = \d and flower\.noise = \d+; the privacy"):
        play(longer, tmp_path / "run", held_out(from_table(longer)), **then)
    assert (tmp_path / "run/federation.json").read_text() == before
    play(longer, tmp_path / "run", held_out(from_table(longer)), **begun)


def test_the_noise_in_a_run_is_what_flowers_strategy_would_add(tmp_path: Path):
    """Updates of zero length, so that what moves the weights is noise alone."""
    table = {**PRIVATE, "optimiser": {"lr": 1e-30}, "model": {"name": "world:Net", "width": 2000}}
    table["federation"] = {**PRIVATE["federation"], "rounds": 1}
    play(table, tmp_path / "run", held_out(from_table(table)), clip=2.0, noise=1.5)
    again = {**table, "federation": {**table["federation"], "rounds": 2}}
    w1 = load_checkpoint(tmp_path / "run/checkpoint.safetensors", torch.device("cpu")).w
    play(again, tmp_path / "run", held_out(from_table(again)), clip=2.0, noise=1.5)
    w2 = load_checkpoint(tmp_path / "run/checkpoint.safetensors", torch.device("cpu")).w
    moved = torch.cat([leaf.flatten() for leaf in tree.leaves(tree.sub(w2, w1))]).numpy()
    assert kstest(moved / compute_stdv(1.5, 2.0, 3), "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"algorithm": {"name": "scaffold"}}, "does not go with algorithm 'scaffold'"),
        ({"algorithm": {"name": "fedexp"}}, "does not go with algorithm 'fedexp'"),
        ({"robust": {"name": "median"}}, "and robust rule 'median'"),
        ({"federation": TABLE["federation"]}, r"needs federation\.aggregation = 'uniform'"),
    ],
)
def test_what_privacy_does_not_cover_is_refused(change: dict, sentence: str, tmp_path: Path):
    table = {**PRIVATE, **change}
    with pytest.raises(FedntdError, match=sentence):
        play(table, tmp_path / "run", held_out(from_table(table)), clip=1.0, noise=1.0)


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
