"""Real processes on loopback: who is let in, who is turned away, and sites that are poor but fit."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import SOURCE, Process, RealFederation, faulty, fedntd, wait
from world import TABLE

from fedntd import Federation, read_run
from fedntd.config.toml import from_table

HERE = Path(__file__).parent
SECTIONS = {"seed": 2, "federation": {"clients": 4, "ratio": 1.0, "rounds": 2}, "algorithm": {"name": "fedntd"}}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """Sites of one class, with less than a batch, with another model, with another version."""
    folder = tmp_path_factory.mktemp("admission")
    shutil.copytree(SOURCE / "fedntd", folder / "old/fedntd", ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "old/fedntd/__init__.py"
    init.write_text(init.read_text() + '\n__version__ = "0.0.9"\n')
    (folder / "other").mkdir()
    world = (HERE / "world.py").read_text().replace("width: int = 5", "width: int = 4")
    (folder / "other/world.py").write_text(world)
    federation = RealFederation(folder, keys=4)
    try:
        federation.register(0, 1, 2, 3)
        only = int(np.argmax(Federation(from_table({**TABLE, **SECTIONS})).counts[0]))
        federation.start_site(0, only=only, hold_out=10)
        federation.start_site(1, few=2, hold_out=5)
        federation.start_site(2, {"PYTHONPATH": f"{folder / 'other'}:{SOURCE}"}, name="with-another-model")
        federation.start_site(3, {"PYTHONPATH": f"{folder / 'old'}:{HERE}"}, name="with-an-old-version")
        yield federation
    finally:
        federation.close()


def test_who_does_not_fit_is_refused_and_sites_can_be_poor(four: RealFederation, tmp_path: Path):
    """Without a test set at the coordinator."""
    run = four.run(faulty(four.app("poor", SECTIONS, min_share=0.5)))
    run.wait_for("finished; read it with")
    assert "turned away: with-another-model (site 2): it has another model: 'head.weight' is [3, 4]" in run.text()
    assert "turned away: with-an-old-version (site 3): it runs fedntd 0.0.9, the coordinator" in run.text()
    found = read_run(four.folder / "run-poor")
    assert [r.cohort for r in found.records] == [[0, 1], [0, 1]]
    assert np.count_nonzero(found.counts[0]) == 1
    assert found.counts[1].sum() == 2
    assert found.counts[2:].sum() == 0
    lines = [json.loads(line) for line in (found.path / "sites.jsonl").read_text().splitlines()]
    assert {line["what"] for line in lines} == {"used"}  # nobody waits for those that do not fit
    right = 15 * found.records[-1].accuracy  # of 15 that the two have held out
    assert right == pytest.approx(round(right))
    fedntd("report", str(found.path), "--out", str(tmp_path / "report.html"))


def test_strangers_are_turned_away(four: RealFederation, tmp_path: Path):
    """A key that nobody registered, another CA, no key, no TLS at all: none becomes a node, those that belong do."""
    fedntd("flower", "keys", str(tmp_path / "keys"), "--sites", "1")
    ours, theirs = four.keys, tmp_path / "keys"
    config = ("--node-config", "partition-id=0")

    def start(name: str, ca: Path, key: Path) -> Process:
        return four.start_node(name, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key), *config)

    unknown = start("unknown", ours / "ca.crt", theirs / "site-0")
    wrong_ca = start("wrong-ca", theirs / "ca.crt", ours / "site-1")
    no_key = four.start_node("no-key", "--root-certificates", str(ours / "ca.crt"), *config)
    no_tls = four.start_node("no-tls", "--insecure", *config)
    unknown.wait_for("Failed to activate SuperNode")
    wrong_ca.wait_for("certificate verify failed")
    no_key.wait_for("All SuperNodes must be registered")
    wait(lambda: no_tls.text().count("Connection attempt failed") > 1, "attempts without TLS\n", no_tls.text)
    wait(lambda: not any(p.running() for p in (unknown, wrong_ca, no_key)), "their ends")
    assert not any("SuperNode ID:" in p.text() for p in (unknown, wrong_ca, no_key, no_tls))
    assert all("SuperNode ID:" in site.text() for site in four.sites.values())
