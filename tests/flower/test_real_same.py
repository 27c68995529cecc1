"""Real processes on loopback, with TLS and node authentication: the same results as in simulation, also when the
coordinator and a site were killed on the way."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from processes import Process, RealFederation, assert_same_weights, simulated, wait

from fedntd import read_run
from fedntd.config.cohort import cohort as draw_cohort
from fedntd.runs.record import load_checkpoint, read_records
from fedntd.support.files import read_json

METHODS = ("fedavg", "fedntd", "scaffold", "moon", "fedcurv")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """With three sites, that go on from one test to the next."""
    federation = RealFederation(tmp_path_factory.mktemp("real"), keys=3)
    try:
        federation.register(0, 1, 2)
        for k in range(3):
            federation.start_site(k, name=f"site-{k}")
        yield federation
    finally:
        federation.close()


@pytest.fixture(scope="module")
def runs(three: RealFederation) -> dict[str, Process]:
    """One of each method, all at the same time: a site answers their questions in turn, and must not mix them up."""
    started = {}
    for name in METHODS:
        started[name] = three.run(three.app(f"with-{name}", {"algorithm": {"name": name}}))
        started[name].wait_for("waiting for 3 sites")  # a coordinator that is slow to start is started once more
    return started


@pytest.mark.parametrize("name", METHODS)
def test_the_same_weights_as_in_simulation(three: RealFederation, runs: dict[str, Process], name: str):
    runs[name].wait_for("finished; read it with")
    folder = three.folder / f"run-with-{name}"
    federation = simulated(algorithm={"name": name})
    assert_same_weights(folder, federation)
    found = read_run(folder)
    assert found.status == "finished"
    assert [r.cohort for r in found.records] == [draw_cohort(1, round, 3, 0.67) for round in (1, 2, 3)]
    assert found.counts.tolist() == federation.counts.tolist()
    kept = kept_at_sites(three, folder)
    assert bool(kept) == (name in ("scaffold", "moon", "fedcurv"))  # state is kept at the sites
    assert all(file.suffix == ".safetensors" for file in kept)
    checkpoint = load_checkpoint(folder / "checkpoint.safetensors", torch.device("cpu"))
    assert all(set(own) == {"round"} for own in checkpoint.own.values())  # and not at the coordinator


def kept_at_sites(federation: RealFederation, folder: Path) -> list[Path]:
    run = read_json(folder / "federation.json")["run"]
    return list(federation.folder.glob(f"home-site-*/fedntd-state/{run}/*/*"))


def test_a_killed_coordinator_and_a_stopped_site_go_on_where_they_were(three: RealFederation):
    """SCAFFOLD, whose sites have a state: the end is that of a run in which nothing happened."""
    app, folder = three.app("killed", {"algorithm": {"name": "scaffold"}}), three.folder / "run-killed"
    first = three.run(app)
    wait(lambda: len(read_records(folder / "records.jsonl")) == 1, "the first round\n", first.text)
    three.kill_server_app()
    three.sites[0].stop()
    three.link.kill()
    wait(lambda: read_run(folder).status == "interrupted", "the coordinator's end")
    three.start_link()
    three.start_site(0, name="site-0")
    three.run(app).wait_for("finished; read it with")
    federation = simulated(algorithm={"name": "scaffold"})
    assert_same_weights(folder, federation)
    records = read_run(folder).records
    assert [r.round for r in records] == [1, 2, 3]
    assert records[-1].accuracy == pytest.approx(federation.history[-1].mean(), abs=1e-6)
    assert len(json.loads((folder / "environment.json").read_text())) == 2  # it was started twice
