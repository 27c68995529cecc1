"""Several runs trained in one step: each has the same records and folder as if trained alone."""

import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from fedntd import ALGORITHMS, Config, Dataset, Federation, FedntdError, Record, federate, federate_together, read_run
from fedntd.config.build import deal
from fedntd.engine.vectorised import Vectorised
from fedntd.runs.record import load_checkpoint
from fedntd.simulation.federation import keys_of, play_together
from fedntd.simulation.sharing import shape
from fedntd.simulation.together import Pace
from fedntd.tree import Weights

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def measured(record: Record) -> dict:
    return {key: value for key, value in dataclasses.asdict(record).items() if key != "seconds"}


def assert_like_alone(
    configs: list[Config], dataset: Dataset, net: Net, outcomes: list[tuple[int, Record | FedntdError]]
) -> list[Federation]:
    """Train the runs alone, compare their records, and return the runs."""
    runs = [Federation(config, dataset, net()) for config in configs]
    for i, run in enumerate(runs):
        records = [outcome for j, outcome in outcomes if j == i]
        alone = list(run)
        assert len(records) == len(alone) == run.rounds
        for a, b in zip(alone, records, strict=True):
            assert isinstance(b, Record)
            for key, value in measured(a).items():
                assert measured(b)[key] == pytest.approx(value, abs=1e-9), (i, key)
    return runs


@pytest.mark.parametrize(
    ("name", "rule"), [*((name, "none") for name in sorted(ALGORITHMS)), ("fedntd", "fedopt"), ("scaffold", "fedavgm")]
)
def test_runs_of_one_shape_are_as_they_are_alone(
    name: str, rule: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    """Other seeds, partitions, rates, numbers of clients and rounds, and other values of every real hyper-parameter."""
    two = {"rounds": 2}  # in the second, some clients have trained before
    same = {"engine": "vectorised", "server": {"name": rule}}
    base = make_config(**same, algorithm={"name": name}).algorithm.options
    other = {key: 0.8 * value if isinstance(value, float) else value for key, value in base.items()}
    configs = [
        make_config(**same, algorithm={"name": name}, federation=two),
        make_config(**same, seed=3, algorithm={"name": name, **other}, federation=two),
        make_config(
            **same,
            algorithm={"name": name},
            partition={"name": "lda", "alpha": 5.0},
            federation={"ratio": 0.4, "rounds": 1, "local_epochs": 1},
            optimiser={"lr": 0.05},
        ),
    ]
    assert len({shape(config) for config in configs}) == 1
    outs = [tmp_path / str(i) for i in range(3)]
    together = list(federate_together(configs, outs, dataset=blobs, model=tiny_net()))
    for alone, out in zip(assert_like_alone(configs, blobs, tiny_net, together), outs, strict=True):
        assert read_run(out).status == "finished"
        w = load_checkpoint(out / "checkpoint.safetensors", torch.device("cpu")).w
        for key, leaf in alone.state.w.items():
            torch.testing.assert_close(w[key], leaf, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"name": "stateful:RandomFeatures"}},
        {"model": {"name": "stateful:Straight"}, "algorithm": {"name": "stateful:ByRatio"}},
    ],
)
def test_what_a_run_has_of_its_own_besides_its_weights(settings: dict, blobs: Dataset, make_config: MakeConfig):
    """Frozen layers and buffers drawn from its seed; and the share of clients in its cohorts, which its method uses.
    With a ratio of 0.4 these are two of five, but also two of six."""
    sizes = [{"clients": 6, "ratio": 0.4}, {"clients": 5, "ratio": 0.4}, {"clients": 6, "ratio": 1.0}]
    configs = [
        make_config(engine="vectorised", seed=seed, federation=size, **settings) for seed, size in enumerate(sizes)
    ]
    together = list(federate_together(configs, dataset=blobs))
    for i, config in enumerate(configs):
        losses = [outcome.loss for j, outcome in together if j == i and isinstance(outcome, Record)]
        assert losses == pytest.approx([record.loss for record in federate(config, blobs)], abs=1e-12)


def test_what_makes_another_shape(make_config: MakeConfig):
    base = make_config()
    for settings in ({"algorithm": {"name": "fedavg"}}, {"federation": {"batch_size": 9}}, {"precision": "fp32"}):
        assert shape(make_config(**settings)) != shape(base)
    for settings in ({"seed": 9}, {"algorithm": {"name": "fedntd", "beta": 0.3}}, {"partition": {"name": "iid"}}):
        assert shape(make_config(**settings)) == shape(base)
    # a sweep in several processes gives runs their share of the cores when it starts them; groups stay what they are
    assert shape(make_config(workers=7)) == shape(base)


def test_other_shapes_and_the_loop_engine_are_trained_in_turn(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    configs = [
        make_config(engine="sequential"),
        make_config(engine="sequential", seed=1, algorithm={"name": "fedntd", "beta": 0.2}),
        make_config(engine="vectorised", algorithm={"name": "moon"}),
    ]
    assert_like_alone(configs, blobs, tiny_net, list(federate_together(configs, dataset=blobs, model=tiny_net())))


def test_one_that_fails_does_not_stop_the_others(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    good = [make_config(engine="vectorised", seed=seed) for seed in (0, 1)]
    diverging = make_config(engine="vectorised", seed=2, optimiser={"lr": 1e38})
    impossible = make_config(engine="vectorised", partition={"name": "sharding", "s": 50})
    configs = [diverging, good[0], impossible, good[1]]
    outs = [tmp_path / str(i) for i in range(4)]
    outcomes = list(federate_together(configs, outs, dataset=blobs, model=tiny_net()))
    errors = {i: str(outcome) for i, outcome in outcomes if isinstance(outcome, FedntdError)}
    assert set(errors) == {0, 2}
    assert "not finite after round 1" in errors[0]
    renumbered = [({1: 0, 3: 1}[i], outcome) for i, outcome in outcomes if i in (1, 3)]
    assert_like_alone(good, blobs, tiny_net, renumbered)
    assert [read_run(outs[i]).status for i in (0, 1, 3)] == ["failed", "finished", "finished"]
    assert "not finite" in read_run(outs[0]).reason
    assert not (outs[2] / "config.toml").exists()


def test_interrupted_runs_go_on_from_where_they_were(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    """The first of two stopped after its second round; a third run is new."""
    configs = [make_config(engine="vectorised", seed=seed, federation={"rounds": 4}) for seed in (0, 1, 2)]
    outs = [tmp_path / str(i) for i in range(3)]
    going = federate_together(configs[:2], outs[:2], dataset=blobs, model=tiny_net())
    for i, outcome in going:
        if i == 0 and isinstance(outcome, Record) and outcome.round == 2:
            break
    going.close()
    assert [len(read_run(out).records) for out in outs[:2]] == [2, 2]
    list(federate_together(configs, outs, resume=True, dataset=blobs, model=tiny_net()))
    for config, out in zip(configs, outs, strict=True):
        alone = [measured(record) for record in federate(config, blobs, tiny_net())]
        for a, b in zip(alone, map(measured, read_run(out).records), strict=True):
            for key, value in a.items():
                assert b[key] == pytest.approx(value, abs=1e-9), key
    assert list(federate_together(configs, outs, resume=True, dataset=blobs, model=tiny_net())) == []


def test_what_is_planned_for_a_run_is_not_taken_for_one_that_comes_to_lie_where_it_was(make_config: MakeConfig):
    class Run:
        config = make_config()

    forgotten, later = (keys_of([(cast("Federation", Run()), 2)]) for _ in range(2))
    assert forgotten != later


def test_a_run_that_is_set_up_anew_between_rounds_is_planned_anew(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    run = Federation(make_config(optimiser={"decay": 1.0}), blobs, tiny_net())
    run.play_round()
    slower = dataclasses.replace(run.config.optimiser, lr=0.001)
    run.config = dataclasses.replace(run.config, optimiser=slower)
    assert run.play_round().lr == 0.001


def test_what_does_not_fit_into_memory_is_trained_in_parts(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    config = make_config(engine="vectorised", algorithm={"name": "scaffold"}, federation={"ratio": 1.0})
    whole = Federation(config, blobs, tiny_net())
    list(whole)
    train_chunk, sizes = Vectorised.train_chunk, []

    def two_fit(self: Vectorised, tasks: list, *rest: object):
        sizes.append(len(tasks))
        if len(tasks) > 2:
            raise torch.OutOfMemoryError
        return train_chunk(self, tasks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Vectorised, "train_chunk", two_fit)
    parts = Federation(config, blobs, tiny_net())
    list(parts)
    assert sizes[:3] == [6, 3, 1]
    for key, leaf in whole.state.w.items():
        torch.testing.assert_close(parts.state.w[key], leaf, rtol=0, atol=1e-12)

    monkeypatch.setattr(Vectorised, "train_chunk", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(FedntdError, match="does not fit into the device's memory"):
        list(Federation(config, blobs, tiny_net()))


def test_memory_that_only_a_forgotten_run_holds_is_there_for_the_next(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    config = make_config(engine="vectorised", federation={"ratio": 1.0})
    gc.disable()  # it would free the run too, but later
    try:
        former = Federation(config, blobs, tiny_net())
        former.play_round()
        forgotten = weakref.ref(former.engine)
        del former
        assert forgotten()
        train_chunk = Vectorised.train_chunk

        def one_engine_fits(self: Vectorised, *rest):
            if forgotten():
                raise torch.OutOfMemoryError
            return train_chunk(self, *rest)

        monkeypatch.setattr(Vectorised, "train_chunk", one_engine_fits)
        assert len(list(Federation(config, blobs, tiny_net()))) == config.federation.rounds
    finally:
        gc.enable()


def test_runs_that_do_not_fit_into_memory_together_go_on_in_smaller_groups(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    configs = [make_config(engine="vectorised", seed=seed, federation={"rounds": 3}) for seed in range(5)]
    sizes: list[int] = []

    def two_fit_after_the_first_round(runs: list[Federation]):
        sizes.append(len(runs))
        if len(runs) > 2 and len(sizes) > 1:
            raise torch.OutOfMemoryError
        return play_together(runs)

    monkeypatch.setattr("fedntd.simulation.together.play_together", two_fit_after_the_first_round)
    outcomes = list(federate_together(configs, [tmp_path / str(i) for i in range(5)], dataset=blobs, model=tiny_net()))
    assert sizes == [5, 5, 2, 2, 3, 1, 1, 2, 2]  # five, halves of them from the second round on, halves of the larger
    assert_like_alone(configs, blobs, tiny_net, outcomes)

    sizes.clear()
    outcomes = list(federate_together(configs, dataset=blobs, model=tiny_net()))
    assert [i for i, outcome in outcomes if isinstance(outcome, Record)] == [0, 1, 2, 3, 4]  # the first round
    failed = {i: str(outcome) for i, outcome in outcomes if isinstance(outcome, FedntdError)}
    assert failed.keys() == {0, 1, 2, 3, 4}  # without folders there is nothing to go on from
    assert "memory does not hold" in failed[0]


def test_runs_that_do_not_fit_into_memory_change_nothing_for_others(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run that does not fit even alone fails, and one of another shape is trained. Without `resume`, an existing
    folder is not touched."""
    large = [make_config(engine="vectorised", seed=seed) for seed in range(2)]
    small, there = (make_config(engine="vectorised", federation={"batch_size": size}) for size in (9, 10))
    list(federate(there, blobs, tiny_net(), tmp_path / "3"))

    def large_do_not_fit(runs: list[Federation]):
        if runs[0].config.federation.batch_size == 8:
            raise torch.OutOfMemoryError
        return play_together(runs)

    monkeypatch.setattr("fedntd.simulation.together.play_together", large_do_not_fit)
    longer = dataclasses.replace(there, federation=dataclasses.replace(there.federation, rounds=5))
    outs = [tmp_path / str(i) for i in range(4)]
    outcomes = list(federate_together([*large, small, longer], outs, dataset=blobs, model=tiny_net()))
    failed = {i: str(outcome) for i, outcome in outcomes if isinstance(outcome, FedntdError)}
    assert failed.keys() == {0, 1, 3}
    assert "memory does not hold" in failed[0]
    assert "already holds a run" in failed[3]
    assert [i for i, outcome in outcomes if isinstance(outcome, Record)] == [2, 2, 2]


def test_models_that_do_not_fit_into_memory_are_tested_in_parts(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    configs = [make_config(engine="vectorised", seed=seed, measure={"local_every": 0}) for seed in range(5)]

    def accuracies() -> list[tuple[int, float]]:
        events = federate_together(configs, dataset=blobs, model=tiny_net())
        return [(i, record.accuracy) for i, record in events if isinstance(record, Record)]

    whole = accuracies()
    count_stacked, sizes = Vectorised.count_stacked, []

    def two_fit(self: Vectorised, w: Weights):
        sizes.append(len(next(iter(w.values()))))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError
        return count_stacked(self, w)

    monkeypatch.setattr(Vectorised, "count_stacked", two_fit)
    assert accuracies() == whole
    assert sizes[:4] == [5, 2, 2, 1]
    assert max(sizes[1:]) == 2


def test_a_finished_run_can_be_kept_without_its_clients_states(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    def configs(rounds: int) -> list[Config]:
        names, few = ("scaffold", "fedavg"), {"rounds": rounds}
        return [make_config(engine="vectorised", algorithm={"name": name}, federation=few) for name in names]

    def train(rounds: int, **options) -> list[Record | FedntdError]:
        events = federate_together(configs(rounds), outs, resume=True, dataset=blobs, model=tiny_net(), **options)
        return [event for _, event in events]

    outs = [tmp_path / name for name in ("scaffold", "fedavg")]
    train(2, keep_clients=False)
    for config, out in zip(configs(2), outs, strict=True):
        state = load_checkpoint(out / "checkpoint.safetensors", torch.device("cpu"))
        assert (state.own, state.round) == ({}, 2)
        alone = Federation(config, blobs, tiny_net())
        list(alone)
        torch.testing.assert_close(state.w, alone.state.w, rtol=0, atol=1e-12)
    assert train(2, keep_clients=False) == []  # what has finished is no error
    refused, longer = sorted(train(3), key=lambda event: isinstance(event, Record))
    assert "was saved without its clients' states, so no further rounds can be played" in str(refused)
    assert isinstance(longer, Record)  # FedAvg's clients learn nothing that they keep
    assert longer.round == 3


def test_an_interrupted_run_keeps_its_clients_states(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    config = make_config(engine="vectorised", algorithm={"name": "scaffold"}, federation={"rounds": 3})
    for _ in range(3):  # a round at a time
        events = federate_together(
            [config], [tmp_path], resume=True, dataset=blobs, model=tiny_net(), keep_clients=False
        )
        next(events)
        events.close()
    alone = [measured(record) for record in federate(config, blobs, tiny_net())]
    for a, b in zip(alone, map(measured, read_run(tmp_path).records), strict=True):
        for key, value in a.items():
            assert b[key] == pytest.approx(value, abs=1e-9), key


def test_checkpoints_take_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("fedntd.simulation.together.time.monotonic", lambda: now)

    def rounds_saved(seconds: float, takes: float) -> list[int]:
        """The rounds that write checkpoints, out of a thousand rounds of one second each."""
        nonlocal now
        now = 0.0
        pace, saved = Pace(seconds), []
        for round in range(1, 1001):
            now += 1
            with pace.writing() as save:
                if save:
                    saved.append(round)
                    now += takes
        return saved

    assert rounds_saved(10, 0)[:3] == [10, 20, 30]
    assert rounds_saved(10, 0.25)[:3] == [10, 20, 30]
    assert rounds_saved(10, 3)[:3] == [10, 70, 130]  # 20 times as long as it took
    assert rounds_saved(0, 3) == list(range(1, 1001))


def test_runs_that_have_ended_are_let_go(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    """On a GPU the memory of one group is needed for the next."""
    engines: list[weakref.ref] = []

    class Watched(Federation):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            engines.append(weakref.ref(self.engine))

    monkeypatch.setattr("fedntd.simulation.together.Federation", Watched)
    configs = [make_config(engine="vectorised", algorithm={"name": name}) for name in ("fedavg", "fedntd", "moon")]
    alive = [
        sum(ref() is not None for ref in engines) for _ in federate_together(configs, None, False, blobs, tiny_net())
    ]
    assert len(engines) == 3
    assert set(alive) == {1}


def test_methods_share_a_partition_that_is_drawn_once(blobs: Dataset, make_config: MakeConfig):
    labels = blobs.train.y.numpy()
    lda = {"name": "lda", "alpha": 5.0}
    first, second = (make_config(partition=lda, algorithm={"name": name}) for name in ("fedavg", "fedntd"))
    assert all(a is b for a, b in zip(deal(first, labels), deal(second, labels), strict=True))
    other_labels = labels[::-1].copy()
    for config, of in ((make_config(partition=lda, seed=1), labels), (make_config(partition=lda), other_labels)):
        assert any(
            len(a) != len(b) or (a != b).any() for a, b in zip(deal(first, labels), deal(config, of), strict=True)
        )
