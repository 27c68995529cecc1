"""Real processes on loopback, with TLS and node authentication: the same results as in simulation, and what happens
when sites or the coordinator die, send nonsense, or do not belong."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import SOURCE, RealFederation, faulty, fedntd, wait
from world import TABLE

from fedntd import Federation, plan, read_run
from fedntd.config import from_table
from fedntd.record import load_checkpoint, read_records
from fedntd.tree import flatten


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    federation = RealFederation(tmp_path_factory.mktemp("real"), sites=8)
    try:
        yield federation
    finally:
        federation.close()


@pytest.fixture(scope="module")
def three(real: RealFederation) -> RealFederation:
    """With three sites that go on from one test to the next."""
    for k in range(3):
        real.start_site(k, name=f"site-{k}")
    return real


def simulated(**sections: Any) -> Federation:
    table = {k: {**v, **sections.get(k, {})} if isinstance(v, dict) else v for k, v in TABLE.items()}
    federation = Federation(from_table(table))
    list(federation)
    return federation


def assert_same_weights(run: Path, federation: Federation) -> None:
    state = load_checkpoint(run / "checkpoint.safetensors", torch.device("cpu"))
    ours = flatten({"w": state.w, "server": state.server})
    theirs = flatten({"w": federation.state.w, "server": federation.state.server})
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6


def site_lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "sites.jsonl").read_text().splitlines()]


OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in ("fedavg", "scaffold", "moon", "fedcurv")]


@pytest.mark.parametrize("name", ["fedntd", *OTHERS])
def test_the_same_weights_as_in_simulation(three: RealFederation, name: str):
    app = three.app(f"with-{name}", {"algorithm": {"name": name}})
    three.run(app).wait_for("finished; read it with")
    folder = three.folder / f"run-with-{name}"
    federation = simulated(algorithm={"name": name})
    assert_same_weights(folder, federation)
    found = read_run(folder)
    assert found.status == "finished"
    assert [r.cohort for r in found.records] == [plan.cohort(1, round, 3, 0.67) for round in (1, 2, 3)]
    assert found.counts.tolist() == federation.counts.tolist()
    kept = list(
        three.folder.glob(f"home-site-*/fedntd-state/{json.loads((folder / 'federation.json').read_text())['run']}/*/*")
    )
    assert bool(kept) == (name in ("scaffold", "moon", "fedcurv"))  # state is kept at the sites
    assert all(file.suffix == ".safetensors" for file in kept)
    checkpoint = load_checkpoint(folder / "checkpoint.safetensors", torch.device("cpu"))
    assert all(set(own) == {"round"} for own in checkpoint.own.values())  # and not at the coordinator


def test_a_killed_coordinator_and_a_killed_site_go_on_where_they_were(three: RealFederation):
    """SCAFFOLD, whose sites have a state: the end is that of a run in which nothing happened."""
    app, folder = three.app("killed", {"algorithm": {"name": "scaffold"}}), three.folder / "run-killed"
    first = three.run(app)
    wait(lambda: len(read_records(folder / "records.jsonl")) == 1, f"the first round\n{first.text()}", first.text)
    three.kill_coordinator()
    three.sites[0].stop()
    wait(lambda: read_run(folder).status == "interrupted", "the coordinator's end")
    three.start_link()
    three.restart_site(0, name="site-0")
    three.run(app).wait_for("finished; read it with")
    federation = simulated(algorithm={"name": "scaffold"})
    assert_same_weights(folder, federation)
    records = read_run(folder).records
    assert [r.round for r in records] == [1, 2, 3]
    assert records[-1].accuracy == pytest.approx(federation.history[-1].mean(), abs=1e-6)
    assert len(json.loads((folder / "environment.json").read_text())) == 2  # it was started twice


@pytest.mark.long
def test_bad_updates_and_a_killed_site_do_not_stop_the_others(three: RealFederation, monkeypatch: pytest.MonkeyPatch):
    faults = {3: "slow", 4: "nan", 5: "shape", 6: "missing", 7: "samples"}
    for k, fault in faults.items():
        three.start_site(k, fault=fault, name=f"hospital {fault}")
    sections = {"federation": {"clients": 8, "ratio": 1.0, "rounds": 4}, "measure": {"local_every": 0}}
    app = faulty(three.app("bad", sections, failures=2, min_share=0.3, time_limit=120.0))
    folder, run = three.folder / "run-bad", three.run(app)
    three.sites[3].wait_for("Receiving: train message")
    three.sites[3].kill()
    three.restart_site(3, name="hospital slow")  # mended: it does not wait any more
    run.wait_for("finished; read it with")

    found = read_run(folder)
    assert found.records[0].cohort == [0, 1, 2]
    assert found.records[3].cohort == [0, 1, 2, 3]  # it is back
    told = {
        (line["round"], line["site"]): line for line in site_lines(folder) if line["what"] in ("refused", "no answer")
    }
    assert told[1, 3]["what"] == "no answer"
    reasons = {k: told[1, k]["reason"] for k in (4, 5, 6, 7)}
    assert "'delta/hidden.weight' in its update is not finite" in reasons[4]
    assert "'delta/hidden.weight' in its update is of shape [1, 2], not [5, 2]" in reasons[5]
    assert "'delta/hidden.weight' is missing" in reasons[6]
    assert "it says that it trained on 1000000000000 samples" in reasons[7]
    assert "round 1: the update of hospital nan (site 4) is refused" in run.text()
    left = {line["site"]: line["round"] for line in site_lines(folder) if line["what"] == "left out"}
    assert left == {4: 2, 5: 2, 6: 2, 7: 2}
    assert "hospital nan (site 4) was left out: its last 2 updates were refused" in run.text()

    federation = Federation(from_table({**TABLE, "federation": {**TABLE["federation"], "clients": 8}}))
    for record in found.records:  # the rest is aggregated as if the others were not there
        monkeypatch.setattr(federation, "cohort", lambda _, cohort=record.cohort: cohort)
        federation.upcoming = (None, None)  # planned with the cohort that would have been drawn
        federation.play_round()
    assert_same_weights(folder, federation)
    for k in faults:
        three.sites[k].stop()


def test_who_does_not_fit_is_refused_and_sites_can_be_poor(three: RealFederation, tmp_path: Path):
    """No test set at the coordinator; sites of one class, with less than a batch, with another model or version."""
    for k in (0, 1, 2):
        three.sites[k].stop()
    here = Path(__file__).parent
    shutil.copytree(SOURCE / "fedntd", tmp_path / "old/fedntd", ignore=shutil.ignore_patterns("__pycache__"))
    init = tmp_path / "old/fedntd/__init__.py"
    init.write_text(init.read_text() + '\n__version__ = "0.0.9"\n')
    (tmp_path / "other").mkdir()
    (tmp_path / "other/world.py").write_text(
        (here / "world.py").read_text().replace("width: int = 5", "width: int = 4")
    )
    sections = {"seed": 2, "federation": {"clients": 4, "ratio": 1.0, "rounds": 2}, "algorithm": {"name": "fedntd"}}
    app = faulty(three.app("poor", sections, min_share=0.5))
    only = int(np.argmax(Federation(from_table({**TABLE, **sections})).counts[0]))
    three.start_site(0, only=only, hold_out=10)
    three.start_site(1, few=2, hold_out=5)
    three.start_site(2, {"PYTHONPATH": f"{tmp_path / 'other'}:{SOURCE}"}, name="with-another-model")
    three.start_site(3, {"PYTHONPATH": f"{tmp_path / 'old'}:{here}"}, name="with-an-old-version")
    run = three.run(app)
    run.wait_for("finished; read it with")

    assert "turned away: with-another-model (site 2): it has another model: 'head.weight' is [3, 4]" in run.text()
    assert "turned away: with-an-old-version (site 3): it runs fedntd 0.0.9, the coordinator" in run.text()
    found = read_run(three.folder / "run-poor")
    assert [r.cohort for r in found.records] == [[0, 1], [0, 1]]
    assert np.count_nonzero(found.counts[0]) == 1
    assert found.counts[1].sum() == 2
    assert found.counts[2:].sum() == 0
    assert {line["what"] for line in site_lines(found.path)} == {"used"}  # nobody waits for those that do not fit
    right = 15 * found.records[-1].accuracy  # of 15 that the two have held out
    assert right == pytest.approx(round(right))
    fedntd("report", str(found.path), "--out", str(tmp_path / "report.html"))


def test_strangers_are_turned_away(three: RealFederation, tmp_path: Path):
    """A key that nobody registered, another CA, no TLS at all: none becomes a node, one that belongs does."""
    fedntd("flower", "keys", str(tmp_path / "keys"), "--sites", "1")
    ours, theirs = three.keys, tmp_path / "keys"
    config = ("--node-config", "partition-id=0")

    def start(name: str, ca: Path, key: Path) -> Any:
        return three.start_node(name, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key), *config)

    unknown = start("unknown", ours / "ca.crt", theirs / "site-0")
    wrong_ca = start("wrong-ca", theirs / "ca.crt", ours / "site-1")
    no_key = three.start_node("no-key", "--root-certificates", str(ours / "ca.crt"), *config)
    no_tls = three.start_node("no-tls", "--insecure", *config)
    three.restart_site(6)
    unknown.wait_for("Failed to activate SuperNode")
    wrong_ca.wait_for("certificate verify failed")
    no_key.wait_for("All SuperNodes must be registered")
    wait(lambda: no_tls.text().count("Connection attempt failed") > 3, "some attempts without TLS", no_tls.text)
    wait(lambda: not any(p.running() for p in (unknown, wrong_ca, no_key)), "their ends")
    assert not any("SuperNode ID:" in p.text() for p in (unknown, wrong_ca, no_key, no_tls))
    no_tls.kill()
    three.sites[6].stop()
