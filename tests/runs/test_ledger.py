"""Ledger files: from a real run and back, and which run stands for which."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedntd import Config, FedntdError, configure, federate, read_run
from fedntd.config.schema import Measure
from fedntd.config.toml import identity
from fedntd.paper.item import shrink, table
from fedntd.report.summary import summarise
from fedntd.runs.ledger import (
    RunResult,
    Store,
    distinct,
    file_name,
    read_result,
    read_store,
    record,
    result_of,
    to_text,
)
from ledgers import made_up


def found(store: Store, config: Config) -> RunResult:
    result = store.find(config)
    assert result is not None
    return result


TINY = ["data.name=fedntd.paper.rehearsal:images", "federation.clients=20", "federation.rounds=3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "fedntd"
    list(federate(configure("demo", [*TINY, "measure.local_every=2"]), out=path))
    return path


def test_a_real_run_through_the_ledger(folder: Path, tmp_path: Path):
    run = read_run(folder)
    (file,) = record([folder], tmp_path)
    assert file.name.startswith("images-sharding-s2-fedntd-seed0-")
    back = read_result(file)
    assert back.config == replace(run.config, precision="fp32")  # what "auto" came to
    assert back.status == "finished"
    summary, records = summarise(run), run.records
    assert back.accuracies["final"] == pytest.approx(summary.final, abs=5e-5)
    assert back.accuracies["best"] == pytest.approx(summary.best, abs=5e-5)
    assert back.accuracies["last10"] == pytest.approx(summary.last10, abs=5e-5)
    assert back.accuracies["ema"] == pytest.approx(summary.ema, abs=5e-5)
    assert back.forgetting == pytest.approx(summary.forgetting, abs=5e-5)
    assert back.seconds == pytest.approx(summary.seconds, abs=0.05)
    assert back.history["class_accuracy"] == [[round(a, 4) for a in r.class_accuracy] for r in records]
    assert [value is None for value in back.history["in_local"]] == [True, False, True]
    assert back.history["out_local"][1] == round(records[1].out_local or 0, 4)
    assert back.environment["torch"] == run.environment["torch"]
    assert back.environment["date"] == run.environment["started"][:10]
    assert back.folder is None
    # the figures stand in the file for people to read, too
    assert json.loads(file.read_text())["figures"]["F"] == round(summary.forgetting or 0, 4)
    assert to_text(back) == file.read_text()


def test_recorded_again_it_is_the_same_file(folder: Path, tmp_path: Path):
    (file,) = record([folder], tmp_path)
    odd = file.rename(tmp_path / "as-an-earlier-version-called-it.json")
    assert record([folder], tmp_path) == [odd]


def test_only_what_ended_is_recorded(tmp_path: Path):
    records = federate(configure("demo", TINY), out=tmp_path / "run")
    next(records)
    with pytest.raises(FedntdError, match="is running; only a finished or failed run can be recorded"):
        record([tmp_path / "run"], tmp_path / "ledger")
    records.close()
    assert not (tmp_path / "ledger").exists()


def test_a_damaged_file_is_named(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"config": {"sed": 0}, "status": "finished", "reason": "", "history": {}}')
    with pytest.raises(FedntdError, match=r"x\.json is not a ledger file: unknown key 'sed'; did you mean 'seed'"):
        read_result(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"config": {"seed": 0}, "status": "finished", "reason": "", "history": {}}')
    with pytest.raises(FedntdError, match=r"x\.json is not a ledger file: it has no 'accuracy'"):
        read_result(tmp_path / "x.json")


def test_which_run_stands_for_which():
    plain = configure("cifar10-s2", ["measure.local_every=0", "precision=fp32"])
    measured, every_five = (replace(plain, measure=Measure(every)) for every in (1, 5))
    rough = replace(plain, precision="bf16")
    store = Store([made_up(measured, 50.0), made_up(rough, 40.0)])
    assert found(store, plain).config is measured  # it measured more than is asked for
    assert found(store, every_five).config is measured
    assert found(store, rough).config is rough
    assert store.find(replace(plain, precision="tf32")) is None
    assert found(store, replace(plain, precision="auto")).config is measured  # the highest precision
    assert store.find(replace(plain, seed=1)) is None
    assert (
        found(store, replace(plain, workers=3, device="cpu")).config is measured
    )  # how it is computed makes no difference
    # Of two runs of one setting, tables with many and with few measures must use the same one.
    store = Store([made_up(each, 50.0) for each in (plain, every_five, measured)])
    assert found(store, plain).config is found(store, every_five).config is measured
    assert Store([made_up(plain, 50.0)]).find(measured) is None  # too little was measured
    assert Store([made_up(every_five, 50.0)]).find(measured) is None


def test_of_runs_that_stand_for_each_other_one_is_made():
    plain = configure("cifar10-s2", ["measure.local_every=0"])
    measured, other = replace(plain, measure=Measure(1)), replace(plain, seed=1)
    assert distinct([plain, other, measured, plain]) == [measured, other]
    assert distinct([measured, plain]) == [measured]
    fine, coarse = (replace(plain, precision=precision) for precision in ("fp32", "bf16"))
    assert distinct([plain, fine, coarse]) == [fine, coarse]  # either stands for one of any precision


def test_a_store_reads_folders_and_ledger(folder: Path, tmp_path: Path):
    config = read_run(folder).config
    assert found(read_store(folder.parent, None), config).folder == folder
    record([folder], tmp_path)
    assert found(read_store(tmp_path / "nothing", tmp_path), config).folder is None
    # A run folder is preferred to its ledger file, because it has the weights.
    assert found(read_store(folder.parent, tmp_path), config).folder == folder


def test_a_failed_run_is_kept_with_its_reason(tmp_path: Path):
    config = configure("demo", [*TINY, "optimiser.lr=1e30"])
    with pytest.raises(FedntdError):
        list(federate(config, out=tmp_path / "run"))
    (file,) = record([tmp_path / "run"], tmp_path / "ledger")
    back = read_result(file)
    assert back.status == "failed"
    assert "not finite" in back.reason
    assert result_of(read_run(tmp_path / "run")).status == "failed"


def test_names_of_files():
    config = configure("cifar10-lda0.05", ["algorithm.name=scaffold", "seed=2"])
    assert file_name(config) == f"cifar10-lda-alpha0.05-scaffold-seed2-{identity(config)}"
    small = shrink(table("cifar10-s2"))
    assert small["federation"]["clients"] == 20
    assert small["data"] == {"name": "fedntd.paper.rehearsal:images"}
