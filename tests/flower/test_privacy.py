"""Clipped updates, noise, and what privacy is spent: against the exact law, OpenDP, dp-accounting and Flower."""

import json
import math
import os
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution, privacy_loss_mechanism
from dp_accounting.rdp import RdpAccountant
from flwr.supercore.differential_privacy import compute_clip_model_update, compute_stdv
from hypothesis import given, settings
from hypothesis import strategies as st
from loop import play
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features
from scipy.stats import chi2_contingency, chisquare, kstest
from world import TABLE

from fedntd import FedntdError, read_run, tree
from fedntd.algorithms import FedDyn
from fedntd.config.toml import from_table
from fedntd.engine.testing import Counts
from fedntd.flower import privacy, sites
from fedntd.flower.collect import RunningMean
from fedntd.flower.messages import Settings
from fedntd.flower.privacy import (
    DEVIATION,
    Clipped,
    NoisyMean,
    clipped,
    cumulative,
    discrete_gaussian,
    epsilon,
    half_gaussian,
    in_steps,
    next_clip,
    stays,
)
from fedntd.flower.server_app import Coordinator
from fedntd.flower.site import held_out
from fedntd.runs.record import load_checkpoint
from fedntd.support.files import read_json
from fedntd.tree import Weights

SELDOM = 1e-6  # how often a test of fresh random numbers may fail


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "POLL", 0.01)


# --- the law of the noise ---------------------------------------------------------------------------------------


def law(deviation: int) -> tuple[np.ndarray, np.ndarray]:
    """The integers within six deviations, and their exact probabilities."""
    z = np.arange(-6 * deviation, 6 * deviation + 1)
    weights = np.exp(-(z**2) / (2 * deviation**2))
    return z, weights / weights.sum()


def in_bins(values: np.ndarray, deviation: int) -> np.ndarray:
    return np.bincount(np.clip(values, -6 * deviation, 6 * deviation) + 6 * deviation, minlength=12 * deviation + 1)


@pytest.mark.parametrize(("coarse", "fine"), [(32, 1), (32, 4), (64, 2), (32, 16), (256, 1), (256, 2)])
def test_the_noise_has_the_probabilities_of_a_discrete_gaussian(coarse: int, fine: int):
    """Every integer with its own count; with a small `coarse`, most candidates that are refused are needed to be."""
    count, deviation = 2_000_000, coarse * fine
    seen = in_bins(discrete_gaussian(count, coarse, fine), deviation)
    _, probabilities = law(deviation)
    often = probabilities * count >= 20
    wanted = np.append(probabilities[often], probabilities[~often].sum()) * count
    assert chisquare(np.append(seen[often], seen[~often].sum()), wanted).pvalue > SELDOM


def test_the_noise_is_that_of_opendp():
    enable_features("contrib")
    count, deviation = 100_000, 64
    space = vector_domain(atom_domain(T="i64"), size=count), l2_distance(T="f64")
    theirs = make_gaussian(*space, scale=float(deviation))([0] * count)
    pair = np.stack([in_bins(np.array(theirs), deviation), in_bins(discrete_gaussian(count, 32, 2), deviation)])
    pair = pair[:, pair.sum(0) >= 20]
    assert float(np.asarray(chi2_contingency(pair)[1])) > SELDOM


def test_the_noise_at_its_full_scale():
    """Too many integers to count: the shape as a whole, the moments, the tails, the low bits."""
    z = discrete_gaussian(2_000_000)
    n, x = len(z), z / DEVIATION
    assert DEVIATION == 2**30
    assert kstest(x, "norm").pvalue > SELDOM
    for moment, (wanted, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((x**moment).mean() - wanted) < 5 * math.sqrt(variance / n)
    for far in (3, 4, 4.5):
        wanted = n * math.erfc(far / math.sqrt(2))
        assert abs((abs(x) > far).sum() - wanted) < 5 * math.sqrt(wanted)
    for shift in (0, 8, 16, 21):  # all of these lie below the table's own bits, or across their border
        assert chisquare(np.bincount((z >> shift) & 255, minlength=256)).pvalue > SELDOM


def test_the_table_is_right_to_240_bits():
    with mpmath.workprec(400):
        weights = [mpmath.exp(-mpmath.mpf(x * x) / (2 * 256**2)) for x in range(30 * 256)]
        total, sum_so_far = mpmath.fsum(weights), mpmath.mpf(0)
        thresholds, leading = cumulative(256)
        off = mpmath.mpf(0)
        for x, threshold in enumerate(thresholds):
            sum_so_far += weights[x]
            before = thresholds[x - 1] if x else 0
            off += abs(mpmath.mpf(threshold - before) / 2**256 - weights[x] / total)
        assert off < mpmath.mpf(2) ** -240
        assert 1 - sum_so_far / total < mpmath.mpf(2) ** -280
    assert leading.tolist() == [threshold >> 192 for threshold in thresholds]


def test_where_64_bits_do_not_decide_256_do(monkeypatch: pytest.MonkeyPatch):
    """A word that equals the first bits of a threshold: by chance, it is seen once in 2^52 numbers. Sixteen deviations
    away, the first bits of many thresholds are the same."""
    thresholds, leading = cumulative(256)
    for x, alone in ((0, True), (100, True), (16 * 256, False)):
        rest = thresholds[x] & (2**192 - 1)
        assert (sum(leading == leading[x]) == 1) == alone
        monkeypatch.setattr(privacy, "random_words", lambda count, x=x: leading[x : x + 1])
        found = []
        for low in (rest - 1, rest):
            monkeypatch.setattr(privacy.secrets, "randbits", lambda bits, low=low: low)
            found.append(half_gaussian(1, 256)[0])
        assert found == [x, x + 1]


@pytest.mark.parametrize("exponent", [0.1, 0.4, 0.6])
def test_what_is_in_doubt_stays_with_the_right_probability(exponent: float):
    """exp(-x) is what is not in doubt, 1 - x, and x times what stays of it."""
    over, count = int(exponent * 2**61), 100_000
    kept = sum(stays(over, 61) for _ in range(count))
    share = (math.exp(-exponent) - (1 - exponent)) / exponent
    assert abs(kept - count * share) < 5 * math.sqrt(count * share * (1 - share))


# --- attacks on the noise ---------------------------------------------------------------------------------------


def zeros(count: int) -> dict:
    return {"delta": {"w": torch.zeros(count, dtype=torch.float64)}}


def noise_alone(count: int) -> torch.Tensor:
    """Of a round of four sites whose updates are zero."""
    return NoisyMean(zeros(count), 1.0, 2.0, 4, False).uploads()[0]["delta"]["w"][0]


def from_a_seed(seed: int) -> torch.Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 2


def found_seed(released: torch.Tensor, seeds: range) -> int | None:
    """The seed of torch's generator that gives the first two numbers, and so all others: only 32 bits of it count."""
    return next((seed for seed in seeds if torch.equal(from_a_seed(seed)[:2], released[:2])), None)


def test_no_seed_gives_the_noise():
    """The attack that took noise of earlier versions away; here with seeds of 12 bits."""
    assert found_seed(from_a_seed(2**40 + 1234), range(2**12)) == 1234
    torch.manual_seed(1234)
    np.random.seed(1234)
    random.seed(1234)
    first = noise_alone(1000)
    torch.manual_seed(1234)
    np.random.seed(1234)
    random.seed(1234)
    assert found_seed(first, range(2**12)) is None
    assert not (first == noise_alone(1000)).any()


def from_a_tape(tape: np.random.Generator, taken: list[int]) -> Callable[[int], bytes]:
    def urandom(count: int) -> bytes:
        taken.append(count)
        return tape.bytes(count)

    return urandom


def test_the_noise_is_made_of_the_systems_random_bytes_alone(monkeypatch: pytest.MonkeyPatch):
    """With a known tape in their place it is the same noise again, whatever other generators have done; and it takes
    24 bytes for each number, not a seed that is stretched."""
    found, taken = [], []
    for seed in (1, 2):
        tape = from_a_tape(np.random.default_rng(0), taken)
        monkeypatch.setattr(os, "urandom", tape)
        monkeypatch.setattr(random, "_urandom", tape)  # from which `secrets` draws
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        found.append(noise_alone(5000))
    assert torch.equal(*found)
    assert sum(taken) >= 2 * 24 * 5000
    assert max(taken) <= 8 * 5000


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_released_numbers_are_whole_steps_of_the_grid(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """Whatever the updates' low bits were, only an integer is left of them: the noise and a sum of integers."""
    noise = discrete_gaussian(2000)
    monkeypatch.setattr(privacy, "discrete_gaussian", lambda count: noise)
    mean = NoisyMean({"delta": {"w": torch.zeros(2000, dtype=kind)}}, clip=0.7, noise=1.3, cohort=3, adaptive=False)
    for k in range(3):
        mean.add(k, {"delta": {"w": torch.randn(2000, dtype=kind)}}, 1.0)
    assert mean.sum["w"].dtype == torch.int64
    step = 1.3 * 0.7 / 2**30
    wanted = ((mean.sum["w"].numpy() + noise) * (step / 3)).astype(str(kind).removeprefix("torch."))
    assert np.array_equal(mean.uploads()[0]["delta"]["w"][0].numpy(), wanted)


# --- what one site can change -----------------------------------------------------------------------------------

NUMBERS = st.floats(-1e30, 1e30, allow_subnormal=False)
UPDATES = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5)


def as_upload(numbers: tuple[float, ...]) -> dict:
    first, *rest = numbers
    return {"delta": {"a": torch.tensor([first], dtype=torch.float64), "b": torch.tensor(rest, dtype=torch.float64)}}


@given(UPDATES, st.data(), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.booleans(), st.integers(1, 1000))
@settings(deadline=None, max_examples=300)
def test_a_site_more_changes_the_integers_by_no_more_than_was_accounted(
    updates: list, data: st.DataObject, clip: float, noise: float, adaptive: bool, cohort: int
):
    """In exact fractions: over all integers that get noise, the squared change is at most (deviation / noise)^2. Also
    where an update is as long as clip, or a little longer."""
    where = data.draw(st.integers(0, len(updates) - 1))
    if data.draw(st.booleans()):
        long = math.hypot(*updates[where]) or 1.0
        near = data.draw(st.floats(1 - 1e-6, 1 + 1e-6)) * clip / long
        updates[where] = tuple(near * x for x in updates[where])
    with_it, without = (NoisyMean(as_upload(updates[0]), clip, noise, cohort, adaptive) for _ in range(2))
    for k, update in enumerate(updates):
        with_it.add(k, as_upload(update), 1.0)
        if k != where:
            without.add(k, as_upload(update), 1.0)
    changed = [int(n) for leaf in tree.leaves(tree.sub(with_it.sum, without.sum)) for n in leaf]
    if adaptive:
        changed.append(with_it.count - without.count)
        assert changed[-1] != 0
    assert sum(n * n for n in changed) <= (DEVIATION / Fraction(noise)) ** 2


def test_rounding_is_towards_zero():
    """A million weights of 0.6 steps have the length 600, which is the clip; rounded up they would have 1000."""
    assert in_steps({"a": torch.tensor([1.9, -1.9, 0.4])}, 100.0, 1.0)["a"].tolist() == [1, -1, 0]
    assert not in_steps({"a": torch.full((1_000_000,), 0.6)}, 600.0, 1.0)["a"].any()


def test_rounding_costs_next_to_nothing():
    """Two million weights, noise as large as it is ever useful: an update of norm 1 moves by 10^-4 of it."""
    delta = {"w": torch.randn(2_000_000, dtype=torch.float64)}
    delta = tree.scale(1 / privacy.length(delta), delta)
    step = 50 * 1.0 / DEVIATION
    back = tree.scale(step, tree.map(torch.Tensor.double, in_steps(delta, 1.0, step)))
    assert privacy.length(tree.sub(back, delta)) < 1e-4


@pytest.mark.parametrize("length", [0.5, 5.0])
def test_clipping_is_flowers(length: float):
    draw = np.random.default_rng(1)
    delta = {"a": draw.normal(size=(3, 4)), "b": draw.normal(size=5)}
    norm = math.sqrt(sum((leaf**2).sum() for leaf in delta.values()))
    delta = {name: leaf * length / norm for name, leaf in delta.items()}
    flowers = [leaf.copy() for leaf in delta.values()]
    compute_clip_model_update(flowers, [np.zeros_like(leaf) for leaf in flowers], clipping_norm=1.0)
    tensors = {name: torch.from_numpy(leaf) for name, leaf in delta.items()}
    step = 1e-9
    for ours in (clipped(tensors, 1.0), tree.scale(step, in_steps(tensors, 1.0, step))):
        for mine, theirs in zip(ours.values(), flowers, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=1e-6)


def test_an_update_of_no_length_stays():
    assert clipped({"a": torch.zeros(3)}, 1.0)["a"].tolist() == [0.0, 0.0, 0.0]
    assert in_steps({"a": torch.zeros(3)}, 1.0, 0.1)["a"].tolist() == [0, 0, 0]


# --- a clip that follows the updates ----------------------------------------------------------------------------


def test_the_budget_is_divided_as_in_the_paper():
    """Andrew et al., theorem 1: z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), with sigma_b = cohort / 20."""
    mean = NoisyMean(zeros(1), clip=3.0, noise=1.0, cohort=100, adaptive=True)
    assert mean.count_noise == 5.0
    assert mean.step * DEVIATION == pytest.approx(3.0 * 0.99**-0.5, rel=1e-12)  # 1 - 1 / (2 * 5)^2 = 0.99
    small = NoisyMean(zeros(1), clip=3.0, noise=1.0, cohort=3, adaptive=True)
    assert small.count_noise == 2.0
    assert small.step * DEVIATION == pytest.approx(3.0 * (15 / 16) ** -0.5, rel=1e-12)


def test_the_noisy_share_of_short_updates():
    """Of 60 sites, 30 are short, 10 are not, and 20 did not answer: 30 and half of 20 are 40, with noise of 60 / 20."""
    shares = []
    for _ in range(500):
        mean = NoisyMean(zeros(1), clip=1.0, noise=1.0, cohort=60, adaptive=True)
        for k in range(40):
            mean.add(k, {"delta": {"w": torch.tensor([0.5 if k < 30 else 1.5])}}, 1.0)
        mean.uploads()
        shares.append(mean.share_short())
    assert kstest((np.array(shares) - 40 / 60) * 20, "norm").pvalue > SELDOM


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_clip_finds_the_quantile_of_the_norms(noise: float):
    """Norms are uniform between 0 and 10, so that 70 % of them are below 7; the clip begins ten times too low."""
    draw, clip, late = np.random.default_rng(0), 0.7, []
    for round in range(200):
        gathered = NoisyMean(zeros(1), clip, noise, 200, True) if noise else Clipped(RunningMean(zeros(1)), clip)
        for k, norm in enumerate(draw.uniform(0, 10, 200)):
            gathered.add(k, {"delta": {"w": torch.tensor([norm], dtype=torch.float64)}}, 1.0)
        gathered.uploads()
        clip = next_clip(clip, 0.7, gathered.share_short())
        late += [clip] if round >= 100 else []
    assert np.mean(late) == pytest.approx(7.0, rel=0.05)


def test_a_step_of_the_clip():
    """exp(-0.2 (share - quantile)); noise can make the share absurd, and the clip must not follow."""
    assert next_clip(2.0, 0.5, 0.25) == pytest.approx(2 * math.exp(0.05))
    assert next_clip(2.0, 0.5, 33.0) == next_clip(2.0, 0.5, 1.0) == pytest.approx(2 * math.exp(-0.1))
    assert next_clip(2.0, 0.5, -33.0) == pytest.approx(2 * math.exp(0.1))
    assert next_clip(1e-30, 0.5, 1.0) == 1e-30


# --- what is spent ----------------------------------------------------------------------------------------------

NOISES, RELEASES = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0), (1, 3, 10, 30, 100, 300, 1000)
DELTAS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@pytest.mark.parametrize("noise", NOISES)
def test_epsilon_is_that_of_dp_accounting(noise: float):
    for releases in RELEASES:
        accountant = RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(noise), releases)
        for delta in DELTAS:
            assert epsilon(noise, releases, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-9, abs=1e-12)


def exact_delta(noise: float, releases: int, epsilon: float) -> float:
    """dp-accounting's closed formula: `releases` Gaussians are one whose deviation is noise / sqrt(releases)."""
    one = privacy_loss_mechanism.GaussianPrivacyLoss(noise / math.sqrt(releases), sensitivity=1)
    return float(np.asarray(one.get_delta_for_epsilon(epsilon)))


@pytest.mark.parametrize("noise", NOISES)
def test_epsilon_is_never_below_the_truth_and_not_far_above(noise: float):
    """By a quarter and 0.05 at most."""
    for releases in RELEASES:
        for delta in DELTAS:
            spent = epsilon(noise, releases, delta)
            assert exact_delta(noise, releases, spent) < delta
            assert spent <= 0.05 or exact_delta(noise, releases, max(0.0, (spent - 0.05) / 1.25)) > delta


@pytest.mark.parametrize(("noise", "releases"), [(2.0, 1), (2.0, 30), (5.0, 100)])
def test_epsilon_covers_the_discrete_noise_itself(noise: float, releases: int):
    """dp-accounting composes the losses of discrete Gaussians numerically; a coarse grid is the worst case."""
    composed = privacy_loss_distribution.from_discrete_gaussian_mechanism(noise).self_compose(releases)
    for delta in (1e-6, 1e-3):
        found = composed.get_epsilon_for_delta(delta)
        assert found < epsilon(noise, releases, delta) < 1.3 * found


def test_a_site_that_is_replaced_has_spent_two_to_four_times_as_much():
    """As docs/privacy.md says: the sum changes by up to 2 clip, as if the noise were half of it."""

    def exact_epsilon(noise: float, releases: int, delta: float) -> float:
        low, high = 0.0, 1e5
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if exact_delta(noise, releases, middle) > delta else (low, middle)
        return high

    cases = [(z, n, d) for z in NOISES for n in RELEASES for d in DELTAS]
    spent = {case: (exact_epsilon(*case), exact_epsilon(case[0] / 2, *case[1:])) for case in cases}
    factors = [replaced / removed for removed, replaced in spent.values() if removed >= 0.1]
    assert 2.05 < min(factors) < 2.1
    assert 3.8 < max(factors) < 3.85


def test_epsilon_is_never_below_zero():
    """With a large delta the bounds can be: less than nothing cannot be spent."""
    assert epsilon(100.0, 1, 0.01) == 0.0


PRIVATE = {**TABLE, "algorithm": {"name": "fedntd"}}
PRIVATE["federation"] = {**TABLE["federation"], "ratio": 1.0, "rounds": 2, "aggregation": "uniform"}


def weights(folder: Path) -> Weights:
    return load_checkpoint(folder / "checkpoint.safetensors", torch.device("cpu")).w


def told(folder: Path) -> dict:
    return read_json(folder / "federation.json")["privacy"]


@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_no_update_moves_the_weights_by_more_than_clip(noise: float, tmp_path: Path):
    """Three sites whose updates are much longer; hardly any noise, or none. What is spent is told."""
    play(PRIVATE, tmp_path / "run", held_out(from_table(PRIVATE)), clip=0.01, noise=noise)
    one_round = {**PRIVATE, "federation": {**PRIVATE["federation"], "rounds": 1}}
    play(one_round, tmp_path / "one", held_out(from_table(one_round)), clip=0.01, noise=noise)
    moved = privacy.length(tree.sub(weights(tmp_path / "run"), weights(tmp_path / "one")))
    assert 0.001 < moved <= 0.01 * (1.01 if noise else 1 + 1e-6)
    asked = {"clip": 0.01, "noise": noise, "clip_quantile": 0.0}
    spent = {"releases": 2, "epsilon": epsilon(0.001, 2, 1e-5), "delta": 1e-5, "mechanism": "discrete Gaussian"}
    assert told(tmp_path / "run") == asked | (spent if noise else {})


def test_a_clip_that_nobody_reaches_changes_nothing(tmp_path: Path):
    """Nor does it with a robust rule, or with weights by size."""
    for name, robust in (("mean", "none"), ("median", "median")):
        table = {**TABLE, "robust": {"name": robust}}
        play(table, tmp_path / name, held_out(from_table(table)))
        play(table, tmp_path / f"{name}-clip", held_out(from_table(table)), clip=100.0)
        assert tree.leaves(weights(tmp_path / name))[0].abs().sum() > 0
        for mine, wanted in zip(*(tree.leaves(weights(tmp_path / n)) for n in (f"{name}-clip", name)), strict=True):
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_a_following_clip_survives_a_cut(noise: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cut off in the third round after its clip was written: it begins with the same clip again. Without noise, the
    run is the same as one that was not cut off."""
    table = {**PRIVATE, "federation": {**PRIVATE["federation"], "rounds": 4}}
    settings: dict[str, Any] = {"clip": 0.5, "clip_quantile": 0.4, "noise": noise}
    play(table, tmp_path / "whole", held_out(from_table(table)), **settings)
    release, clips = sites.Account.release, []

    def cut_off(self: sites.Account, uploads: NoisyMean | Clipped) -> None:
        clips.append(uploads.clip)
        release(self, uploads)
        assert len(clips) != 3, "the power is gone"

    monkeypatch.setattr(sites.Account, "release", cut_off)
    with pytest.raises(AssertionError, match="the power is gone"):
        play(table, tmp_path / "cut", held_out(from_table(table)), **settings)
    assert len(told(tmp_path / "cut")["clips"]) == 4
    play(table, tmp_path / "cut", held_out(from_table(table)), **settings)
    assert clips[2] == clips[3] != clips[1] != clips[0] == 0.5
    kept = told(tmp_path / "cut")
    assert kept["clips"][:4] == [*clips[:3], clips[4]]
    assert len(kept["clips"]) == 5
    if noise:
        assert kept["releases"] == 5
    else:
        assert kept == told(tmp_path / "whole")
        for mine, wanted in zip(*(tree.leaves(weights(tmp_path / n)) for n in ("cut", "whole")), strict=True):
            assert torch.equal(mine, wanted)


def test_who_has_answered_is_not_told_by_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FedDyn's server uses the share of the sites: with noise of those who were drawn, else of those who answered."""
    used, aggregate = [], FedDyn.aggregate

    def spy(self: FedDyn, w_g, server, up, p, fraction):
        used.append((self.ratio, fraction))
        return aggregate(self, w_g, server, up, p, fraction)

    monkeypatch.setattr(FedDyn, "aggregate", spy)
    table = {**PRIVATE, "algorithm": {"name": "feddyn"}}
    table["federation"] = {**PRIVATE["federation"], "rounds": 1}
    nodes = [{}, {"fault": "mute"}, {}]
    for noise, part in ((1.0, 1.0), (0.0, 2 / 3)):
        play(table, tmp_path / str(noise), held_out(from_table(table)), nodes, clip=1.0, noise=noise, time_limit=2.0)
        assert used[-1] == pytest.approx((part, part))


def test_noise_of_an_earlier_version_is_not_gone_on_with(tmp_path: Path):
    """It came from a generator with a seed of 32 bits, so its epsilon was never true."""
    play(PRIVATE, tmp_path / "run", held_out(from_table(PRIVATE)), clip=1.0, noise=50.0)
    file = tmp_path / "run/federation.json"
    old = read_json(file)
    old["privacy"] = {key: old["privacy"][key] for key in ("clip", "noise", "releases", "epsilon", "delta")}
    file.write_text(json.dumps(old))
    longer = {**PRIVATE, "federation": {**PRIVATE["federation"], "rounds": 3}}
    with pytest.raises(FedntdError, match="was begun by an earlier version, whose noise can be computed"):
        play(longer, tmp_path / "run", held_out(from_table(longer)), clip=1.0, noise=50.0)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"clip": -1.0}, r"flower\.clip must be 0, or from 1e-30 to 1e\+30, not -1\.0"),
        ({"clip": math.nan}, r"flower\.clip must be 0, or from 1e-30 to 1e\+30, not nan"),
        ({"clip": 1.0, "noise": 1e-6}, r"flower\.noise must be 0, or from 0\.001 to 1000, not 1e-06"),
        ({"noise": 1.0}, r"flower\.noise = 1 needs flower\.clip: set it above 0"),
        ({"clip_quantile": 0.5}, r"flower\.clip_quantile = 0\.5 needs flower\.clip: set it above 0"),
        ({"clip": 1.0, "clip_quantile": 1.0}, r"flower\.clip_quantile must be from 0 to below 1, not 1\.0"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, r"flower\.delta must lie between 0 and 1, not 0\.0"),
    ],
)
def test_settings_that_cannot_be(asked: dict, sentence: str):
    with pytest.raises(FedntdError, match=f"^{sentence}$"):
        Settings(**asked)


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
    with pytest.raises(FedntdError, match=r"was begun with flower\.clip = \d, flower\.noise = \d+, flower\.clip_q"):
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
