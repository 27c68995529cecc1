"""Run folders that version 0.1.0 wrote (commit fe7ef69), before the package was arranged in rooms.

Two runs of three rounds on the points of tests/points.py: SCAFFOLD, finished; and FedNTD, stopped after two rounds.
"""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from fedntd import federate, read_run
from fedntd.config.schema import with_own_code
from fedntd.config.toml import identity
from fedntd.runs.ledger import read_result, record
from fedntd.runs.record import load_checkpoint

OLD = Path(__file__).parent / "written-by-0.1"
IDENTITY = {"finished": "69eefd46385b491b", "interrupted": "f2084207176d9258"}  # as 0.1.0 computed them


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(OLD / request.param, tmp_path / request.param))


def measured(folder: Path) -> list[dict]:
    return [{k: v for k, v in dataclasses.asdict(r).items() if k != "seconds"} for r in read_run(folder).records]


@pytest.mark.parametrize("folder", IDENTITY, indirect=True)
def test_is_the_run_that_it_was(folder: Path):
    run = read_run(folder)
    assert run.status == folder.name
    assert identity(run.config) == identity(with_own_code(run.config)) == IDENTITY[folder.name]
    assert [record.round for record in run.records] == [1, 2, 3][: len(run.records)]


@pytest.mark.parametrize("folder", IDENTITY, indirect=True)
def test_trains_to_the_same_numbers(folder: Path, tmp_path: Path):
    """A new run and one resumed from the old checkpoint both give the old records."""
    config = read_run(folder).config
    before = measured(folder)
    list(federate(config, out=tmp_path / "anew"))
    list(federate(config, out=folder, resume=True))
    assert len(measured(folder)) == 3
    for old, new, resumed in zip(before, measured(tmp_path / "anew"), measured(folder), strict=False):
        for key, value in old.items():
            expected = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
            assert new[key] == expected, key
            assert resumed[key] == expected, key
    ends = [
        load_checkpoint(path / "checkpoint.safetensors", torch.device("cpu")) for path in (folder, tmp_path / "anew")
    ]
    for name, leaf in ends[0].w.items():
        torch.testing.assert_close(leaf, ends[1].w[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("folder", ["finished"], indirect=True)
def test_goes_into_the_ledger_under_its_old_name(folder: Path, tmp_path: Path):
    (tmp_path / "ledger").mkdir()
    (file,) = record([folder], tmp_path / "ledger")
    assert file.stem.endswith(IDENTITY["finished"])
    assert read_result(file).history["accuracy"] == [round(r["accuracy"], 4) for r in measured(folder)]
