import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedntd import FedntdError
from fedntd.config.build import deal
from fedntd.config.toml import from_table
from fedntd.data.partition import check_parts, class_counts, iid, lda, sharding
from fedntd.rng import generator


def balanced(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


def assert_disjoint(parts: list[np.ndarray], samples: int) -> None:
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < samples


@given(
    classes=st.integers(2, 12),
    s=st.integers(1, 5),
    per_class=st.integers(1, 6),
    size=st.integers(1, 9),
    extra=st.integers(0, 8),
)
def test_sharding(classes: int, s: int, per_class: int, size: int, extra: int):
    clients, rest = divmod(per_class * classes, s)
    if rest or clients == 0:
        return
    labels = balanced(classes, per_class * size + extra)
    parts = sharding(labels, clients, generator(1, "partition"), s)
    counts = class_counts(labels, parts, classes)
    shard = len(labels) // classes // per_class
    assert_disjoint(parts, len(labels))
    assert set(map(len, parts)) == {s * shard}
    assert (counts % shard == 0).all()  # class-pure shards
    assert (counts.sum(0) == per_class * shard).all()  # s·K/C shards of each class


def test_sharding_may_deal_one_class_twice():
    # Two of 200 cards to each of 100 hands, 20 of each class: 100 * 19/199 = 9.5 pairs expected.
    labels = balanced(10, 5000)
    pairs = [
        int((class_counts(labels, sharding(labels, 100, generator(seed, "p"), 2), 10).max(1) == 500).sum())
        for seed in range(20)
    ]
    assert 7 < np.mean(pairs) < 12


def test_sharding_that_cannot_be_even_names_the_nearest_s():
    with pytest.raises(FedntdError, match=r"partition\.s = 3.*nearest s that works is 4"):
        sharding(balanced(100, 30), 50, generator(0, "p"), 3)


def test_sharding_with_too_few_samples_for_its_shards():
    with pytest.raises(FedntdError, match="smallest class has 5 samples, too few for 20 shards"):
        sharding(balanced(10, 5), 50, generator(0, "p"), 4)


@given(clients=st.integers(1, 20), alpha=st.floats(0.2, 100), min_size=st.integers(1, 5), seed=st.integers(0, 99))
def test_lda(clients: int, alpha: float, min_size: int, seed: int):
    labels = balanced(5, 60)
    parts = lda(labels, clients, generator(seed, "partition"), alpha, min_size)
    assert len(parts) == clients
    assert_disjoint([part for part in parts if len(part)], len(labels))
    assert sum(map(len, parts)) == len(labels)
    assert min(map(len, parts)) >= min_size


def test_lda_gives_full_clients_no_more():
    # A client stops receiving once it holds N/K, so it can exceed that by at most one class.
    labels = balanced(10, 5000)
    for seed in range(5):
        counts = class_counts(labels, lda(labels, 100, generator(seed, "p"), 0.1), 10)
        held_before = np.cumsum(counts, axis=1) - counts
        assert (counts[held_before >= 500] == 0).all()


def test_lda_heterogeneity_grows_as_alpha_falls():
    labels = balanced(10, 5000)

    def classes_held(alpha: float) -> float:
        counts = class_counts(labels, lda(labels, 100, generator(0, "p"), alpha), 10)
        p = counts / counts.sum(1, keepdims=True)
        return float((1 / (p**2).sum(1)).mean())  # effective number of classes

    assert classes_held(0.05) < classes_held(0.1) < classes_held(0.5) < classes_held(100)
    assert classes_held(100) > 9.5


def test_lda_of_the_papers_hardest_setting():
    labels = balanced(10, 5000)
    sizes = [len(part) for part in lda(labels, 100, generator(0, "partition"), 0.05)]
    assert min(sizes) >= 10
    assert sum(sizes) == 50_000


def test_lda_that_no_draw_gives_tells_how_near_one_came(monkeypatch: pytest.MonkeyPatch):
    """The error says how close the draws came, so that the user can pick a min_size that works."""
    monkeypatch.setattr("fedntd.data.partition.MAX_DRAWS", 512)
    with pytest.raises(
        FedntdError, match=r"in 512 draws no split gave .*; the best gave \d+; lower partition\.min_size"
    ) as error:
        lda(balanced(10, 50), 10, generator(0, "p"), 0.1, min_size=45)
    nearest = int(re.findall(r"best gave (\d+)", str(error.value))[0])
    assert min(map(len, lda(balanced(10, 50), 10, generator(0, "p"), 0.1, min_size=nearest))) == nearest


def test_hopeless_requests_are_refused_at_once():
    with pytest.raises(FedntdError, match=r"federation\.clients = 100.*at most 50 clients"):
        lda(balanced(10, 50), 100, generator(0, "p"), 0.1)
    for partition in (iid, sharding, lda):
        with pytest.raises(FedntdError, match=r"federation\.clients = 600"):
            partition(balanced(10, 50), 600, generator(0, "p"))
    with pytest.raises(FedntdError, match=r"partition\.alpha must be above 0"):
        lda(balanced(10, 50), 5, generator(0, "p"), 0.0)
    with pytest.raises(FedntdError, match=r"partition\.min_size must be at least 1"):
        lda(balanced(10, 50), 5, generator(0, "p"), 0.1, min_size=0)


def test_a_partition_of_ones_own_is_checked():
    good = [np.array([0, 1]), np.array([2])]
    check_parts(good, 3, "mine")
    for parts, sentence in (
        ([np.array([0]), np.array([], dtype=int)], "gave client 1 no samples"),
        ([np.array([0, 1]), np.array([1])], "to more than one client"),
        ([np.array([0]), np.array([3])], "beyond the 3 training samples"),
        ([np.array([0]), np.array([1.0])], "client 1 float64 .*; it must be a list of sample numbers"),
        ([np.array(0), np.array([1])], "client 0 int64 .*; it must be a list of sample numbers"),
        ([np.array([0]), np.array([[1]])], "client 1 int64 .1, 1.; it must be a list of sample numbers"),
    ):
        with pytest.raises(FedntdError, match=f"partition 'mine' gave .*{sentence.removeprefix('gave ')}"):
            check_parts(parts, 3, "mine")


def test_a_partition_of_ones_own_is_asked_each_time(tmp_path, monkeypatch):
    """It may read another file the second time, or have been redefined in a notebook."""
    monkeypatch.chdir(tmp_path)
    config = from_table({"partition": {"name": f"{__name__}:by_site"}, "federation": {"clients": 2}})
    for sites, expected in (([0, 0, 1], [[0, 1], [2]]), ([0, 1, 1], [[0], [1, 2]])):
        np.save("sites.npy", sites)
        assert [part.tolist() for part in deal(config, np.array([0, 1, 0]))] == expected


def by_site(labels: np.ndarray, clients: int) -> list[np.ndarray]:
    return [np.flatnonzero(np.load("sites.npy") == k) for k in range(clients)]


@given(samples=st.integers(1, 200), data=st.data())
def test_iid(samples: int, data: st.DataObject):
    clients = data.draw(st.integers(1, samples))
    parts = iid(np.zeros(samples, dtype=int), clients, generator(0, "p"))
    assert_disjoint(parts, samples)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("partition", [iid, sharding, lda])
def test_the_seed_decides(partition):
    labels = balanced(10, 100)
    first, again, other = (partition(labels, 10, generator(seed, "partition")) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other, strict=True))


def test_what_no_draw_gives_is_looked_for_once(monkeypatch: pytest.MonkeyPatch):
    """Drawing takes seconds, and a sweep uses the same partition for each of its methods."""
    drawn: list[int] = []

    def draw(*_: object) -> None:
        drawn.append(1)
        raise FedntdError("no split")

    monkeypatch.setattr("fedntd.data.partition.first_valid_cuts", draw)
    config = from_table({"seed": 987, "partition": {"name": "lda"}, "federation": {"clients": 3}})
    for _ in range(3):
        with pytest.raises(FedntdError, match=r"^no split$"):
            deal(config, balanced(10, 50))
    assert len(drawn) == 1
