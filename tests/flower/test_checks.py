"""What is checked of a site before it takes part, and of each update before it is used."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from loop import LoopGrid, play
from safetensors.torch import load_file
from world import TABLE, client, server

from fedntd import Config, Federation, FedntdError, read_run
from fedntd.config.cohort import cohort as draw_cohort
from fedntd.config.toml import from_table
from fedntd.data.dataset import Part
from fedntd.flower import client_app, server_app, sites
from fedntd.flower.client_app import StateFolder
from fedntd.flower.messages import (
    Hello,
    Report,
    Settings,
    check_hello,
    check_report,
    check_update,
    hello,
    read_counts,
    read_hello,
    read_update,
)
from fedntd.flower.site import Samples, Site, held_out, site_number
from fedntd.runs.record import Record, load_checkpoint
from fedntd.support.files import read_json
from fedntd.tree import Weights

GOOD = Hello(1, "b", "1.2", [3, 0, 4], ["x", "y", "z"], [2], '{"w": [[2, 3], "float32"]}', False, False)
LIKE = {"delta/w": torch.zeros(2, 3), "a": torch.zeros(())}


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "POLL", 0.01)


def test_a_site_that_fits_is_admitted():
    check_hello(GOOD, GOOD._replace(number=0, name="", counts=[]), clients=2, max_samples=7)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": "1.3"}, r"it runs fedntd 1\.3, the coordinator 1\.2; install one version at all sites"),
        ({"number": 2}, r"its number 2 is not one of 0\.\.1"),
        ({"number": -1}, r"its number -1"),
        ({"classes": ["x", "y"]}, "it has the classes x, y; the federation has x, y, z"),
        ({"shape": [3]}, r"its samples are of shape \[3\], not \[2\]"),
        ({"weights": '{"w": [[2, 4], "float32"]}'}, r"'w' is \[2, 4\] \(float32\) there, \[2, 3\] \(float32\) at the"),
        ({"weights": '{"w": [[2, 3], "float64"]}'}, r"'w' is \[2, 3\] \(float64\) there"),
        ({"weights": '{"v": [[2, 3], "float32"]}'}, r"'v' is \[2, 3\] \(float32\) there, missing at the coordinator"),
        ({"weights": "[1]"}, "its description of the model cannot be read"),
        ({"weights": '{"w": 5}'}, "its description of the model cannot be read"),
        ({"weights": "[" * 100_000}, "its description of the model cannot be read"),
        ({"counts": [3, 0]}, r"its sample counts \[3, 0\] are not believable"),
        ({"counts": [3, -1, 4]}, "not believable"),
        ({"counts": [0, 0, 0]}, "not believable"),
        ({"counts": [3, 0, 5]}, "at most 7 in all"),
        ({"counts": [3, 0, float("nan")]}, "not believable"),
    ],
)
def test_a_site_that_does_not_fit_is_told_why(change: dict, sentence: str):
    with pytest.raises(FedntdError, match=sentence):
        check_hello(GOOD._replace(**change), GOOD, clients=2, max_samples=7)


def test_a_strange_first_message_is_no_crash():
    assert read_hello(GOOD.record()) == GOOD
    with pytest.raises(FedntdError, match="says nothing about 'number'"):
        read_hello(ConfigRecord())
    with pytest.raises(FedntdError, match="cannot be read"):
        read_hello(ConfigRecord({**GOOD._asdict(), "counts": "many"}))
    with pytest.raises(FedntdError, match="cannot be read"):
        read_hello(ConfigRecord({**GOOD._asdict(), "number": True}))
    with pytest.raises(FedntdError, match="cannot be read"):
        read_hello(ConfigRecord({**GOOD._asdict(), "classes": [0, 1, 2]}))
    with pytest.raises(FedntdError, match="cannot be read"):
        read_hello(ConfigRecord({**GOOD._asdict(), "shape": ["two"]}))


@pytest.mark.parametrize("record", [ArrayRecord(), MetricRecord({"sentence": 1}), ConfigRecord({"why": "no"})])
def test_a_strange_refusal_is_one(record: ArrayRecord | MetricRecord | ConfigRecord):
    with pytest.raises(FedntdError, match="it refused without a reason"):
        read_update(Message(RecordDict({"refusal": record}), 1, "train"), LIKE, samples=7)


def test_a_good_update_passes():
    check_update({"a": torch.tensor(2.0), "delta/w": torch.ones(2, 3)}, LIKE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"delta/w": None}, "'delta/w' is missing"),
        ({"delta/w": torch.zeros(3, 2)}, r"'delta/w' in its update is of shape \[3, 2\], not \[2, 3\]"),
        ({"delta/w": torch.zeros(2, 3, dtype=torch.float64)}, r"is torch\.float64, not torch\.float32"),
        ({"delta/w": torch.tensor([[0, 0, 0], [0, float("nan"), 0]])}, "not finite"),
        ({"a": torch.tensor(-float("inf"))}, "'a' in its update is not finite"),
        ({"b": torch.zeros(1)}, "'b' in its update is not one of this method"),
    ],
)
def test_a_bad_update_is_refused(change: dict, sentence: str):
    with pytest.raises(FedntdError, match=sentence):
        check_update({k: v for k, v in (LIKE | change).items() if v is not None}, LIKE)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (Report(10**12, 0.1, 1.0), "trained on 1000000000000 samples, but it has 7"),
        (Report(-7, 0.1, 1.0), "trained on -7 samples"),
        (Report(7, float("nan"), 1.0), "not a number"),
        (Report(7, float("inf"), 1.0), "not a number"),
        (Report(7, 0.1, 1.0, 8.0, 0.2), "its model got 8 of its 7 samples right"),
        (Report(7, 0.1, 1.0, -1.0, 0.2), "its model got -1 of its 7 samples right"),
        (Report(7, 0.1, 1.0, [5.0], 0.2), r"what it measured is not numbers: \(\[5\.0\], 0\.2\)"),  # pyright: ignore
    ],
)
def test_a_strange_report_is_refused(report: Report, sentence: str):
    check_report(Report(7, 0.1, 1.0), samples=7)
    with pytest.raises(FedntdError, match=sentence):
        check_report(report, samples=7)


@pytest.mark.parametrize(
    ("correct", "total", "loss"),
    [
        ([2, 3], [1, 4], 0.1),
        ([-1, 3], [2, 4], 0.1),
        ([1], [2], 0.1),
        ([1, 3], [2, 4], math.nan),
        ([math.inf, 3], [math.inf, 4], 0.1),
        ([1, 3], [2, 4], [0.1, 0.2]),
        ([1, 3], [2, 99], 0.1),
        ([0, 0], [0, 0], 0.0),
    ],
)
def test_strange_counts_are_refused(correct: list, total: list, loss: float | list):
    def answer(*numbers: object) -> Message:
        counts = dict(zip(("correct", "total", "loss"), numbers, strict=True))
        return Message(RecordDict({"counts": ConfigRecord(counts)}), 1, "evaluate")  # pyright: ignore

    assert read_counts(answer([1.0, 3.0], [2.0, 98.0], 0.5), 2, max_samples=100).accuracy == pytest.approx(4 / 100)
    with pytest.raises(FedntdError, match="its counts are not believable"):
        read_counts(answer([float(n) for n in correct], [float(n) for n in total], loss), 2, max_samples=100)


def test_a_site_must_say_its_number():
    assert site_number({"partition-id": 2, "num-partitions": 3}, clients=3) == 2
    for node, sentence in (
        ({}, "has no number; start flower-supernode with --node-config 'partition-id=0'"),
        ({"partition-id": "two"}, "must be a whole number"),
        ({"partition-id": 3}, r"is not a site of this federation, which has 0\.\.2"),
    ):
        with pytest.raises(FedntdError, match=sentence):
            site_number(node, clients=3)


def test_samples_need_not_have_all_classes_but_must_be_right():
    Samples(Part(torch.zeros(2, 3), torch.tensor([1, 1])), ("a", "b", "c"))
    with pytest.raises(FedntdError, match=r"the samples: labels run from 0 to 3, but must lie in 0\.\.2"):
        Samples(Part(torch.zeros(2, 3), torch.tensor([0, 3])), ("a", "b", "c"))
    with pytest.raises(FedntdError, match=r"the samples: classes are named by text, not by \[0\]"):
        Samples(Part(torch.zeros(2, 3), torch.tensor([1, 1])), (0, 1))  # pyright: ignore
    with pytest.raises(FedntdError, match="the held-out samples: 2 samples but 1 labels"):
        Samples(Part(torch.zeros(1, 3), torch.tensor([0])), ("a",), test=Part(torch.zeros(2, 3), torch.tensor([0])))


@pytest.mark.parametrize(
    "bad", [{"min_share": 0.0}, {"time_limit": 0.0}, {"failures": 0}, {"clip": -1.0}, {"noise": 1.0}, {"delta": 1.0}]
)
def test_settings_are_checked(bad: dict):
    with pytest.raises(FedntdError, match=rf"^flower\.{next(iter(bad))} "):
        Settings(**bad)


# --- whole federations, in one process --------------------------------------------------------------------------

EIGHT = {**TABLE, "federation": {**TABLE["federation"], "clients": 8, "ratio": 1.0, "rounds": 3}}


def test_all_faults_at_once(tmp_path: Path):
    """Six sites go wrong, each in its own way; the other two train on as if they were alone."""
    faults = [None, None, "nan", "inf", "shape", "missing", "extra", "crash"]
    nodes = [{"fault": fault} if fault else {} for fault in faults]
    grid = play(EIGHT, tmp_path / "run", held_out(from_table(EIGHT)), nodes, failures=2, min_share=0.25)
    found = read_run(tmp_path / "run")
    assert [r.cohort for r in found.records] == [[0, 1]] * 3
    trained = [m.metadata.dst_node_id - 100 for m in grid.sent if m.metadata.message_type == "train"]
    assert trained == [*range(8), *range(8), 0, 1]  # twice refused, a site is asked no more


def test_too_few_good_updates_end_the_run_and_it_can_go_on(tmp_path: Path):
    nodes = [{"fault": "nan"}, {"fault": "mute"}, {}]
    table = {**TABLE, "federation": {**TABLE["federation"], "ratio": 1.0}}
    test = held_out(from_table(table))
    with pytest.raises(
        FedntdError, match="round 1: 1 good updates from 3 sites, 2 are needed; the rounds before are kept"
    ):
        play(table, tmp_path / "run", test, nodes, min_share=0.5, time_limit=0.3)
    assert read_run(tmp_path / "run").status == "failed"
    play(table, tmp_path / "run", test)
    assert [r.cohort for r in read_run(tmp_path / "run").records] == [[0, 1, 2]] * 3
    with pytest.raises(FedntdError, match="holds a finished run; choose another"):
        play(table, tmp_path / "run", test)


def test_a_round_of_none_but_unfit_sites_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The only site that is drawn for the first round has another model."""
    table = {**TABLE, "federation": {**TABLE["federation"], "ratio": 0.3}}
    assert draw_cohort(1, 1, 3, 0.3) == [1]

    def with_another_model(site: Site, samples: Samples, w: Weights) -> Hello:
        return hello(site, samples, w if site.number != 1 else {})

    monkeypatch.setattr(client_app, "hello", with_another_model)
    started = time.monotonic()
    with pytest.raises(FedntdError, match=r"round 1: all sites whose turn it is \(site 1\) were turned away or left"):
        play(table, tmp_path / "run", held_out(from_table(table)), time_limit=60.0)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"flower.clip": -1.0}, "flower.clip must be 0, or from 1e-30 to 1e+30, not -1.0"),
        ({"optimiser.lr": 0.5}, "was run with optimiser.lr = 0.1, not 0.5; resume it with its own settings, or choose"),
    ],
)
def test_what_the_coordinator_cannot_begin_is_logged_as_one_sentence(
    change: dict, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    logged = []
    monkeypatch.setattr(server_app, "log", lambda level, text, *words: logged.append((level, text % words)))
    grid = play(TABLE, tmp_path / "run", held_out(from_table(TABLE)))
    with pytest.raises(FedntdError):
        server(grid, Context(1, 1, {}, RecordDict(), grid.settings | change))
    assert logged[-1][0] == logging.ERROR
    assert sentence in logged[-1][1]
    assert "--out" not in logged[-1][1]


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    used = sites.Sites.used

    def on_a_full_disk(self: sites.Sites, round: int, site: int, report: Report) -> None:
        self.log.file = Path("/dev/full")
        used(self, round, site, report)

    monkeypatch.setattr(sites.Sites, "used", on_a_full_disk)
    with pytest.raises(FedntdError, match="cannot be written to: No space left on device"):
        play(TABLE, tmp_path / "run", held_out(from_table(TABLE)))
    assert read_run(tmp_path / "run").status == "failed"


def test_a_run_killed_after_its_last_round_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    test = held_out(from_table(TABLE))

    def killed(record: Record, _: Config) -> None:
        assert record.round < 3, "killed"

    monkeypatch.setattr(server_app, "tell", killed)
    with pytest.raises(AssertionError, match="killed"):
        play(TABLE, tmp_path / "run", test)
    assert read_run(tmp_path / "run").status == "interrupted"
    with pytest.raises(FedntdError, match="holds a finished run"):
        play(TABLE, tmp_path / "run", test)
    assert read_run(tmp_path / "run").status == "finished"


def test_a_site_whose_answer_came_too_late_keeps_its_state_of_before(tmp_path: Path):
    """SCAFFOLD: a site that trained, but was not heard, must not count its change of state."""
    table = {**TABLE, "precision": "fp64", "algorithm": {"name": "scaffold"}}
    table["federation"] = {**TABLE["federation"], "ratio": 1.0, "rounds": 4}
    test = held_out(from_table(table))
    short = {**table, "federation": {**table["federation"], "rounds": 2}}
    play(short, tmp_path / "run", test)
    with pytest.raises(FedntdError, match="round 3"):
        play(table, tmp_path / "run", test, [{"fault": "mute"}] * 3, time_limit=0.3)
    play(table, tmp_path / "run", test)
    simulated = Federation(from_table(table))
    records = list(simulated)
    found = read_run(tmp_path / "run").records
    assert [r.class_accuracy for r in found] == [r.class_accuracy for r in records]
    assert found[-1].loss == pytest.approx(records[-1].loss, abs=1e-12)


def test_training_that_outlived_its_node_takes_no_later_state_away(tmp_path: Path):
    """A killed node's process trains on, and ends after the node that took its place has trained in the next round."""
    folder = StateFolder(Site(0, {"state": str(tmp_path)}, from_table(TABLE)), "abc")
    for round, keep in ((1, 0), (2, 1), (3, 2), (5, 2), (4, 2)):
        folder.write(round, {"c": torch.tensor(float(round))}, keep)
    assert folder.read(5, torch.device("cpu")) == {"c": torch.tensor(5.0)}
    folder.write(6, {"c": torch.tensor(6.0)}, keep=5)
    assert {file.name for file in folder.path.iterdir()} == {"round-5.safetensors", "round-6.safetensors"}


def test_a_plain_mean_over_all_sites_stays_one_where_some_are_refused(tmp_path: Path):
    """SCAFFOLD as the released code has it: c is the mean of all c_i, that of a refused site being what it was: 0."""
    table = {**TABLE, "precision": "fp64", "algorithm": {"name": "scaffold-released"}}
    table["federation"] = {**TABLE["federation"], "ratio": 1.0, "rounds": 1}
    play(table, tmp_path / "run", held_out(from_table(table)), [{}, {}, {"fault": "nan"}])
    run = read_json(tmp_path / "run/federation.json")["run"]
    used = [load_file(tmp_path / f"states/{run}/site-{k}/round-1.safetensors") for k in (0, 1)]
    c = load_checkpoint(tmp_path / "run/checkpoint.safetensors", torch.device("cpu")).server["c"]
    for name, leaf in c.items():
        torch.testing.assert_close(leaf, sum(own[f"c_i/{name}"] for own in used) / 3, rtol=0, atol=1e-12)


def test_a_site_that_lost_its_state_is_refused(tmp_path: Path):
    table = {**TABLE, "algorithm": {"name": "scaffold"}, "federation": {**TABLE["federation"], "ratio": 1.0}}
    test = held_out(from_table(table))
    play({**table, "federation": {**table["federation"], "rounds": 1}}, tmp_path / "run", test)
    run = read_json(tmp_path / "run/federation.json")["run"]
    (tmp_path / f"states/{run}/site-1/round-1.safetensors").write_bytes(b"damaged")
    play(table, tmp_path / "run", test)
    assert [r.cohort for r in read_run(tmp_path / "run").records] == [[0, 1, 2], [0, 2], [0, 2]]
    assert "its state of round 1 cannot be read" in (tmp_path / "run/sites.jsonl").read_text()


def test_the_sites_test_where_the_coordinator_cannot(tmp_path: Path):
    """Counts of three sites add up to the accuracy over all that they hold out."""
    nodes = [{"hold_out": 7}, {"hold_out": 5}, {}]
    play(TABLE, tmp_path / "run", None, nodes)
    found = read_run(tmp_path / "run")
    for record in found.records:
        assert 12 * record.accuracy == pytest.approx(round(12 * record.accuracy))
    simulated = Federation(from_table(TABLE))
    x, y = simulated.dataset.train
    # a site's held-out samples are the first of its share
    places = [*simulated.parts[0][:7].tolist(), *simulated.parts[1][:5].tolist()]
    w = load_checkpoint(tmp_path / "run/checkpoint.safetensors", torch.device("cpu")).w
    hidden = torch.tanh(x[places].float() @ w["hidden.weight"].T + w["hidden.bias"])
    answers = (hidden @ w["head.weight"].T + w["head.bias"]).argmax(1)
    assert found.records[-1].accuracy == pytest.approx(float((answers == y[places]).float().mean()))


@pytest.mark.parametrize("holds_out", [False, True])
def test_samples_may_be_integers(holds_out: bool, tmp_path: Path):
    """Tokens reach an embedding as they are; also where only the sites have samples to test on."""
    table = {**TABLE, "precision": "fp64", "data": {"name": "world:tokens"}, "model": {"name": "world:Words"}}
    if holds_out:
        play(table, tmp_path / "run", None, [{"hold_out": 5}] * 3)
        assert read_run(tmp_path / "run").status == "finished"
    else:
        play(table, tmp_path / "run", held_out(from_table(table)))
        losses = [record.loss for record in Federation(from_table(table))]
        assert [record.loss for record in read_run(tmp_path / "run").records] == pytest.approx(losses, abs=1e-9)


def test_without_anything_to_test_on_one_sentence(tmp_path: Path):
    with pytest.raises(FedntdError, match="neither the coordinator nor a site has samples to test on"):
        play(TABLE, tmp_path / "run", None)


def test_two_that_claim_one_number(tmp_path: Path):
    """The second must wait while the first answers."""
    nodes = [{}, {}, {}, {"partition-id": 1, "name": "impostor", "fault": "nan"}]
    play(TABLE, tmp_path / "run", held_out(from_table(TABLE)), nodes)
    assert "impostor" not in (tmp_path / "run/sites.jsonl").read_text()
    assert all(line.count('"used"') == 1 for line in (tmp_path / "run/sites.jsonl").read_text().splitlines())


def test_a_second_waits_also_while_the_first_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whose answer comes only when others have been looked for some times."""
    pulled, pull = Counter(), LoopGrid.pull_messages

    def later(self: LoopGrid, ids: Iterable[str]) -> list[Message]:
        pulled.update(ids := list(ids))
        return pull(self, [id for id in ids if pulled[id] > 5])

    monkeypatch.setattr(LoopGrid, "pull_messages", later)
    nodes = [{}, {}, {}, {"partition-id": 1, "name": "impostor", "few": 2}]
    table = {**TABLE, "federation": {**TABLE["federation"], "ratio": 1.0}}
    play(table, tmp_path / "run", held_out(from_table(table)), nodes)
    assert [r.cohort for r in read_run(tmp_path / "run").records] == [[0, 1, 2]] * 3
    assert "impostor" not in (tmp_path / "run/sites.jsonl").read_text()


def test_a_site_that_was_too_busy_to_say_who_it_is_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Flower itself answers a question that nobody came for in time."""
    busy, pull = set(range(3)), LoopGrid.pull_messages

    def expired(self: LoopGrid, ids: Iterable[str]) -> list[Message]:
        found = []
        for reply in pull(self, ids):
            site = reply.metadata.src_node_id - 100
            lost = site in busy and reply.metadata.message_type == "query.hello"
            question = self.sent[int(reply.metadata.reply_to_message_id[1:])]
            found.append(Message(Error(ErrorCode.MESSAGE_UNAVAILABLE), reply_to=question) if lost else reply)
            busy.discard(site)
        return found

    monkeypatch.setattr(LoopGrid, "pull_messages", expired)
    play(TABLE, tmp_path / "run", held_out(from_table(TABLE)), time_limit=5.0)
    assert read_run(tmp_path / "run").status == "finished"
    assert not busy


def test_a_site_that_was_turned_away_and_mended_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It comes back before the last of the others appears, who is waited for."""
    looks, nodes = Counter(), LoopGrid.get_node_ids

    def come_and_go(self: LoopGrid) -> list[int]:
        looks["all"] += 1
        self.nodes[100]["partition-id"] = 7 if looks["all"] < 10 else 0
        absent = {100} if 10 <= looks["all"] < 20 else set()
        return [k for k in nodes(self) if k not in absent and (k < 102 or looks["all"] > 40)]

    monkeypatch.setattr(LoopGrid, "get_node_ids", come_and_go)
    table = {**TABLE, "federation": {**TABLE["federation"], "ratio": 1.0, "rounds": 1}}
    play(table, tmp_path / "run", held_out(from_table(table)), time_limit=5.0)
    assert [r.cohort for r in read_run(tmp_path / "run").records] == [[0, 1, 2]]


def test_a_node_is_one_site_at_a_time():
    """One that comes back under another number and is asked for both would move the weights by twice the clip."""
    config = from_table({"federation": {"clients": 2, "ratio": 1.0}})
    known = sites.Sites(LoopGrid({}, [], client), config, Settings(), None)  # pyright: ignore[reportArgumentType]
    wanted = GOOD._replace(number=0, name="", counts=[])
    for number in (0, 1):
        assert known.settled(100, GOOD._replace(number=number), wanted, {100})
    assert known.node_of == {1: 100}
    assert known.settled(101, GOOD._replace(number=0), wanted, {100, 101})
    assert known.node_of == {1: 100, 0: 101}


def test_nodes_of_another_federation_are_not_taken_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are turned away at once; the sites, which introduce themselves one after the other, are waited for."""
    pulled, pull = Counter(), LoopGrid.pull_messages

    def slowly(self: LoopGrid, ids: Iterable[str]) -> list[Message]:
        pulled.update(ids := list(ids))
        site = {id: self.sent[int(id[1:])].metadata.dst_node_id - 100 for id in ids}
        return pull(self, [id for id in ids if site[id] >= 3 or pulled[id] > 10 * site[id]])

    monkeypatch.setattr(LoopGrid, "pull_messages", slowly)
    table = {**TABLE, "federation": {**TABLE["federation"], "ratio": 1.0, "rounds": 1}}
    nodes = [{}, {}, {}, {"partition-id": 7}, {"partition-id": 8}]
    play(table, tmp_path / "run", held_out(from_table(table)), nodes)
    assert [r.cohort for r in read_run(tmp_path / "run").records] == [[0, 1, 2]]


def test_no_pickle_and_no_state_on_the_wire(tmp_path: Path):
    """What is sent: names and arrays of the method's own upload, and numbers; c_i of SCAFFOLD never."""
    table = {**TABLE, "algorithm": {"name": "scaffold"}}
    grid = play(table, tmp_path / "run", held_out(from_table(table)))
    for message in grid.sent:
        assert set(message.content) <= {"weights", "shared", "what"}
    assert {name.split("/")[0] for reply in grid.answered for name in reply.content.array_records.get("up", {})} == {
        "delta",
        "delta_c",
    }
    assert {key for reply in grid.answered for key in reply.content} == {"who", "up", "report"}
