"""Real processes on loopback: sites that send nonsense, and one that is killed in the middle of a round."""

import json
from collections.abc import Iterator

import pytest
from processes import RealFederation, assert_same_weights, faulty, wait
from world import TABLE

from fedntd import Federation, read_run
from fedntd.config.toml import from_table
from fedntd.runs.record import read_records

FAULTS = {2: "slow", 3: "nan inf shape", 4: "missing samples crash"}  # what a site does wrong, round by round
FIVE = {"federation": {"clients": 5, "ratio": 1.0, "rounds": 4}, "measure": {"local_every": 0}}


@pytest.fixture
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    federation = RealFederation(tmp_path_factory.mktemp("faults"), keys=5)
    try:
        federation.register(*range(5))
        for k in range(5):
            federation.start_site(k, fault=FAULTS.get(k, ""), name=f"hospital {k}")
        yield federation
    finally:
        federation.close()


def test_bad_updates_and_a_killed_site_do_not_stop_the_others(five: RealFederation, monkeypatch: pytest.MonkeyPatch):
    app = faulty(five.app("bad", FIVE, failures=3, min_share=0.4, time_limit=120.0))
    folder, run = five.folder / "run-bad", five.run(app)
    five.sites[2].wait_for("Receiving: train message")
    five.sites[2].kill()
    wait(lambda: len(read_records(folder / "records.jsonl")) >= 1, "the round without it\n", run.text)
    five.start_site(2, name="hospital 2")  # mended: it does not wait any more
    run.wait_for("finished; read it with")

    found = read_run(folder)
    assert found.records[0].cohort == [0, 1]
    assert found.records[3].cohort == [0, 1, 2]  # it is back
    lines = [json.loads(line) for line in (folder / "sites.jsonl").read_text().splitlines()]
    told = {(line["round"], line["site"]): line for line in lines if line["what"] in ("refused", "no answer")}
    assert told[1, 2]["what"] == "no answer"
    for place, reason in {
        (1, 3): "'delta/hidden.weight' in its update is not finite",
        (2, 3): "'delta/hidden.weight' in its update is not finite",
        (3, 3): "'delta/hidden.weight' in its update is of shape [1, 2], not [5, 2]",
        (1, 4): "'delta/hidden.weight' is missing",
        (2, 4): "it says that it trained on 1000000000000 samples",
        (3, 4): "it failed: <class 'RuntimeError'>:<'disk on fire'>",
    }.items():
        assert reason in told[place]["reason"]
    assert "round 1: the update of hospital 3 (site 3) is refused" in run.text()
    left = {line["site"]: line["round"] for line in lines if line["what"] == "left out"}
    assert left == {3: 3, 4: 3}
    assert "hospital 3 (site 3) was left out: its last 3 updates were refused" in run.text()

    federation = Federation(from_table({**TABLE, "federation": {**TABLE["federation"], "clients": 5}}))
    for record in found.records:  # the rest is aggregated as if the others were not there
        monkeypatch.setattr(federation, "cohort", lambda _, cohort=record.cohort: cohort)
        federation.upcoming = (None, None)  # planned with the cohort that would have been drawn
        federation.play_round()
    assert_same_weights(folder, federation)
