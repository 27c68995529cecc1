"""One definition: what sites and coordinator compute, message by message, is what the simulation computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loop import play
from processes import PATHS
from world import CHEAP, TABLE

from fedntd import ALGORITHMS, Federation, read_run
from fedntd.config.toml import from_table
from fedntd.flower import sites
from fedntd.flower.site import held_out
from fedntd.runs.record import load_checkpoint
from fedntd.tree import flatten


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "POLL", 0.01)


@pytest.mark.parametrize(
    ("name", "aggregation"), [*((name, "size") for name in ALGORITHMS), ("fedntd", "uniform"), ("scaffold", "uniform")]
)
def test_every_method_gives_the_same_weights_and_records(name: str, aggregation: str, tmp_path: Path):
    table = {**TABLE, "precision": "fp64", "algorithm": {"name": name, **CHEAP.get(name, {})}}
    table["federation"] = {**TABLE["federation"], "rounds": 5, "aggregation": aggregation}
    play(table, tmp_path / "run", held_out(from_table(table)))
    simulated = Federation(from_table(table))
    records = list(simulated)

    state = load_checkpoint(tmp_path / "run/checkpoint.safetensors", torch.device("cpu"))
    ours, theirs = (
        flatten({"w": state.w, "server": state.server}),
        flatten({"w": simulated.state.w, "server": simulated.state.server}),
    )
    assert ours.keys() == theirs.keys()
    for leaf in ours:
        torch.testing.assert_close(ours[leaf], theirs[leaf], rtol=1e-10, atol=1e-12)
    found = read_run(tmp_path / "run")
    assert found.status == "finished"
    assert found.counts.tolist() == simulated.counts.tolist()
    for mine, wanted in zip(found.records, records, strict=True):
        for field, value in vars(wanted).items():
            if field not in ("seconds", "bytes_down", "bytes_up"):
                assert getattr(mine, field) == pytest.approx(value, abs=1e-9), field
    assert [r.bytes_up for r in found.records] == [r.bytes_up for r in records]


def test_a_site_imports_nothing_that_it_does_not_need(tmp_path: Path):
    """Flower starts a new process for each question, so what it imports is waited for in every round."""
    code = """
import sys
from pathlib import Path
from loop import play
from world import TABLE, samples_to_test_on
from fedntd.config.toml import from_table

play({**TABLE, "algorithm": {"name": "fedntd"}}, Path(sys.argv[1]), samples_to_test_on(from_table(TABLE)))
print(sorted({"matplotlib", "pandas", "scipy", "sklearn", "sympy", "torch._dynamo", "triton"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PATHS})
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
