from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedntd import Federation, FedntdError, federate, tree
from fedntd.analysis.rounds import (
    class_accuracy,
    next_cohort,
    next_round,
    reopen,
    start_from,
    trace_client,
    watch,
)
from fedntd.config.registry import Choice
from fedntd.config.schema import Config, Measure
from fedntd.config.toml import from_table
from fedntd.runs.measures import in_local, out_local
from fedntd.runs.record import Record

SMALL = {
    "workers": 1,
    "data": {"train_size": 300},
    "federation": {"clients": 10, "ratio": 0.3, "rounds": 2, "local_epochs": 1, "batch_size": 10},
    "algorithm": {"name": "fedavg"},
    "partition": {"name": "sharding", "s": 5},
    "optimiser": {"lr": 0.05},  # large enough for a hundred test images to tell models apart
    "measure": {"local_every": 0},
}


@pytest.fixture
def config(few_test_images: None) -> Config:
    return from_table(SMALL)


def measured(record: Record) -> dict:
    return {key: value for key, value in asdict(record).items() if key != "seconds"}


def equal(a: dict, b: dict) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedacg", "moon"])
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_watching_changes_nothing(blobs, make_config, tiny_net, algorithm, engine):
    config = make_config(algorithm={"name": algorithm}, engine=engine)
    plain = Federation(config, blobs, tiny_net())
    records = [measured(record) for record in plain]
    watched = Federation(config, blobs, tiny_net())
    seen = list(watch(watched))
    assert [measured(inside.record) for inside in seen] == records
    assert equal(watched.state.w, plain.state.w)
    assert watched.algorithm == plain.algorithm


def test_a_round_from_inside(blobs, make_config, tiny_net):
    """FedAvg: the new global model is the mean of the local ones by size, and the next round begins with it."""
    slow = {"lr": 0.01}  # every round's accuracies are new
    federation = Federation(make_config(algorithm={"name": "fedavg"}, optimiser=slow), blobs, tiny_net())
    start = federation.state.w
    first, second, third = (next_round(federation) for _ in range(3))
    assert equal(first.w_g, start)
    assert equal(second.w_g, first.w)
    cohort = first.record.cohort
    size = torch.tensor([len(federation.parts[k]) for k in cohort], dtype=torch.float64)
    for name, leaf in first.w.items():
        torch.testing.assert_close(leaf, torch.tensordot(size / size.sum(), first.w_k[name], 1))
        torch.testing.assert_close(first.local(1)[name], first.w_k[name][1])
    assert second.before.tolist() == first.record.class_accuracy
    assert third.before.tolist() == second.record.class_accuracy != first.record.class_accuracy
    expected = class_accuracy(federation, start)
    assert first.before.tolist() == expected.tolist()


@pytest.mark.parametrize("robust", [{"name": "median"}, {"name": "krum", "bad": 0}])
def test_every_local_model_is_seen_where_a_robust_rule_leaves_some_out(blobs, make_config, tiny_net, robust):
    plain, wary = (
        next_round(Federation(make_config(algorithm={"name": "fedavg"}, robust=rule), blobs, tiny_net()))
        for rule in ({"name": "none"}, robust)
    )
    assert equal(wary.w_k, plain.w_k)
    assert not equal(wary.w, plain.w)


def test_more_rounds_than_were_meant(blobs, make_config, tiny_net):
    federation = Federation(make_config(federation={"rounds": 1}), blobs, tiny_net())
    list(watch(federation))
    assert next_round(federation).record.round == 2


class TestReopen:
    def test_goes_on_as_the_run_would_have(self, config, tmp_path):
        list(federate(config, out=tmp_path / "run"))
        longer = replace(config, federation=replace(config.federation, rounds=3))
        *_, expected = federate(longer)
        federation = reopen(tmp_path / "run")
        assert federation.state.round == 2
        inside = next_round(federation)
        assert measured(inside.record) == measured(expected)

    def test_another_algorithm_begins_with_the_weights(self, config, tmp_path):
        list(federate(replace(config, algorithm=Choice("scaffold")), out=tmp_path / "run"))
        kept, fresh = reopen(tmp_path / "run"), reopen(tmp_path / "run", algorithm=config.algorithm)
        assert equal(kept.state.w, fresh.state.w)
        assert kept.state.server
        assert not fresh.state.server
        assert not fresh.state.own
        assert fresh.config.algorithm.name == "fedavg"

    def test_another_server_rule_begins_with_the_weights(self, config, tmp_path):
        list(federate(config, out=tmp_path / "run"))
        federation = reopen(tmp_path / "run", server=Choice("fedavgm", {"beta": 0.5}))
        assert next_round(federation).record.round == 3

    @pytest.mark.parametrize("engine", ["sequential", "vectorised"])
    def test_another_precision_is_that_of_all_weights_and_states(self, config, tmp_path, engine):
        list(federate(replace(config, algorithm=Choice("scaffold"), engine=engine), out=tmp_path / "run"))
        federation = reopen(tmp_path / "run", precision="fp64")
        inside = next_round(federation)
        kept = [federation.state.w, federation.state.server, *federation.state.own.values(), inside.w_k]
        assert {leaf.dtype for one in kept for leaf in tree.leaves(one)} == {torch.float64}

    def test_what_a_method_keeps_in_a_type_of_its_own_keeps_it(self, config):
        federation = Federation(config)
        sums = {"sum": torch.zeros(3, dtype=torch.float64), "rounds": torch.ones((), dtype=torch.int64)}
        federation.restore(replace(federation.state, server=sums), [])
        assert [leaf.dtype for leaf in tree.leaves(federation.state.server)] == [torch.int64, torch.float64]

    def test_start_from(self, config):
        w = {name: leaf + 1 for name, leaf in Federation(config).state.w.items()}
        federation = start_from(config, w, round=7)
        assert equal(federation.state.w, w)
        assert next_round(federation).record.round == 8

    def test_clients_start_from_the_same_weights(self, config):
        """MOON: before its first round, a client's last model is the one that the federation begins with."""
        moon = replace(config, algorithm=Choice("moon"))
        w = {name: leaf + 1 for name, leaf in Federation(moon).state.w.items()}
        assert equal(start_from(moon, w).own(0)["w_prev"], w)

    def test_without_a_checkpoint(self, config, tmp_path):
        list(federate(config, out=tmp_path / "run"))
        (tmp_path / "run" / "checkpoint.safetensors").unlink()
        with pytest.raises(FedntdError, match="has no checkpoint"):
            reopen(tmp_path / "run")


def test_class_accuracy_is_that_of_the_record(config):
    federation = Federation(config)
    assert next_cohort(federation) == (record := next(iter(federation))).cohort
    assert class_accuracy(federation, federation.state.w).tolist() == record.class_accuracy


class TestTrace:
    @pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
    def test_ends_with_the_trained_model(self, config, algorithm):
        """The trace ends at what the round itself gives for the same client."""
        federation = Federation(replace(config, algorithm=Choice(algorithm)))
        next_round(federation)
        before = federation.state.w
        cohort = next_cohort(federation)
        trace = trace_client(federation, cohort[1], every=2)
        assert equal(federation.state.w, before)
        assert trace.steps == [0, 2, 3]  # three batches of ten
        inside = next_round(federation)
        accuracy = class_accuracy(federation, inside.local(1))
        assert trace.class_accuracy[-1] == pytest.approx(accuracy)
        assert trace.class_accuracy[0] == pytest.approx(inside.before)
        p = federation.p[cohort[1]]
        assert trace.in_local == pytest.approx([in_local(a, p) for a in trace.class_accuracy])
        assert trace.out_local == pytest.approx([out_local(a, p) for a in trace.class_accuracy])

    def test_every(self, config):
        federation = Federation(config)
        assert trace_client(federation, 0).steps == [0, 1, 2, 3]
        assert trace_client(federation, 0, every=5).steps == [0, 3]

    def test_dropout_is_drawn_as_in_the_run(self, blobs, make_config):
        """The last accuracies are those of the model that the round trains."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        federation = Federation(make_config(algorithm={"name": "fedavg"}), blobs, net)
        client = next_cohort(federation)[0]
        traced = [trace_client(federation, client).class_accuracy[-1] for _ in range(2)]
        local = next_round(federation).local(0)
        for accuracies in traced:
            np.testing.assert_array_equal(accuracies, class_accuracy(federation, local))
        with pytest.raises(FedntdError, match="at least 1"):
            trace_client(federation, 0, every=0)


def test_means_are_over_the_cohort(config):
    """The record's in-local accuracy is the mean of the traces' ends."""
    federation = Federation(replace(config, measure=Measure(1)))
    cohort = next_cohort(federation)
    ends = [trace_client(federation, k, every=99) for k in cohort]
    record = next(iter(federation))
    assert record.in_local == pytest.approx(np.mean([trace.in_local[-1] for trace in ends]))
    assert record.out_local == pytest.approx(np.mean([trace.out_local[-1] for trace in ends]))
