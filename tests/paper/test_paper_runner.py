"""Finding missing runs, resuming after an interrupt, measuring once: on real, tiny runs."""

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedntd import FedntdError, Record, read_run
from fedntd.config.toml import identity
from fedntd.paper.item import Item, Results, Setting, table
from fedntd.paper.items import find
from fedntd.paper.runner import Workshop, choose, wanted
from fedntd.runs.ledger import find_runs, read_store, record
from ledgers import made_up, write_ledger
from started import Started

ITEM = Item(
    name="two",
    title="Two methods",
    paper="nowhere",
    about="",
    runs={("FedAvg", "s=2"): table("cifar10-s2"), ("FedNTD", "s=2"): table("cifar10-s2", "fedntd")},
    render=lambda results: [],
    seeds=1,
)
SMALL = Setting(small=True, settings=("federation.rounds=2", "federation.ratio=0.05", "checkpoint_seconds=0"))


def workshop(out: Path, ledger: Path | None = None) -> Workshop:
    return Workshop(out, read_store(out, ledger), ledger)


def round_of(event: Record | FedntdError) -> int:
    assert isinstance(event, Record), event
    return event.round


def test_interrupted_and_gone_on_with(tmp_path: Path):
    shop = workshop(tmp_path / "a")
    configs = shop.missing(ITEM, SMALL)
    assert [config.algorithm.name for config in configs] == ["fedavg", "fedntd"]
    events = shop.train(configs)
    seen = [next(events) for _ in range(3)]  # the first run whole, a round of the second
    events.close()
    assert [(config.algorithm.name, round_of(event)) for config, event in seen] == [
        ("fedavg", 1),
        ("fedavg", 2),
        ("fedntd", 1),
    ]

    again = workshop(tmp_path / "a")
    missing = again.missing(ITEM, SMALL)
    assert [config.algorithm.name for config in missing] == ["fedntd"]
    assert [len(runs) for runs in again.results(ITEM, SMALL).values()] == [1, 0]
    rest = list(again.train(missing))
    assert [round_of(event) for _, event in rest] == [2]  # not from the start
    assert workshop(tmp_path / "a").missing(ITEM, SMALL) == []

    # the same records as without an interrupt
    list(workshop(tmp_path / "b").train(configs))
    for folder in (tmp_path / "a" / "runs").iterdir():
        ours, other = (read_run(path).records for path in (folder, tmp_path / "b" / "runs" / folder.name))
        assert [replace(r, seconds=0) for r in ours] == [replace(r, seconds=0) for r in other]


def test_killed_in_the_middle_of_a_group(tmp_path: Path):
    """A real process is killed: finished runs are recorded, the others resume."""
    out, ledger = tmp_path / "out", tmp_path / "ledger"
    cells = ["FedAvg", "MSE β=0.001", "MSE β=0.1"]
    quick = ["federation.rounds=4", "federation.ratio=0.05", "federation.batch_size=50"]
    quick += ["engine=vectorised", "checkpoint_seconds=0"]
    options = ["--small", "--out", str(out), "--ledger", str(ledger)]
    command = ["paper", "mse", *options]
    command += [part for cell in cells for part in ("--cells", cell)]
    command += [part for setting in quick for part in ("--set", setting)]
    process = Started(*command)
    try:
        while process.poll() is None:
            files = list(out.glob("runs/*fedntd-mse*/checkpoint.safetensors"))
            if len(files) == 2:
                break
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL

    setting = Setting(small=True, settings=tuple(quick))
    assert [path.name.split("-")[3] for path in find_runs(out)] == ["fedavg"]
    record(find_runs(out), ledger)
    shop = workshop(out, ledger)
    missing = shop.missing(find("mse"), setting, cells)
    assert [config.algorithm.options["beta"] for config in missing] == [0.001, 0.1]
    rounds = [round_of(event) for _, event in shop.train(missing)]
    assert 1 not in rounds  # nobody starts again
    assert rounds[-2:] == [4, 4]

    # as if nothing had happened
    list(workshop(tmp_path / "whole").train(missing))
    for folder in (tmp_path / "whole" / "runs").iterdir():
        ours, other = (read_run(path).records for path in (out / "runs" / folder.name, folder))
        assert [replace(r, seconds=0) for r in ours] == [replace(r, seconds=0) for r in other]


def test_a_ledger_file_is_enough(tmp_path: Path):
    shop = workshop(tmp_path / "a")
    list(shop.train(shop.missing(ITEM, SMALL)))
    record((tmp_path / "a" / "runs").iterdir(), tmp_path / "ledger")
    elsewhere = workshop(tmp_path / "b", tmp_path / "ledger")
    assert elsewhere.missing(ITEM, SMALL) == []
    results = elsewhere.results(ITEM, SMALL)
    here = workshop(tmp_path / "a").results(ITEM, SMALL)
    assert results["FedNTD", "s=2"][0].accuracies == pytest.approx(here["FedNTD", "s=2"][0].accuracies, abs=5e-5)


def test_another_precision_will_do_unless_one_is_asked_for(tmp_path: Path):
    (cell, *_) = ITEM.runs
    coarse = ITEM.config(cell, 0, Setting(settings=("precision=bf16",)))
    write_ledger(tmp_path / "ledger", [made_up(coarse, 50)])
    shop = workshop(tmp_path / "out", tmp_path / "ledger")

    def missing(*settings: str) -> list[str]:
        return [config.algorithm.name for config in shop.missing(ITEM, Setting(settings=settings))]

    assert missing() == missing("precision=bf16") == ["fedntd"]
    assert missing("precision=fp32") == ["fedavg", "fedntd"]


def test_measured_once_and_what_needs_weights_is_trained(tmp_path: Path):
    calls = []

    def measure(results: Results) -> Mapping[str, Any]:
        calls.append(sorted(cell[0] for cell, runs in results.items() if runs))
        return {cell[0]: runs[0].accuracies["final"] for cell, runs in results.items() if runs}

    item = replace(ITEM, measure=measure)
    shop = workshop(tmp_path / "a")
    assert not shop.measure(item, SMALL)  # nothing to measure on
    first, second = shop.missing(item, SMALL)
    list(shop.train([first]))
    shop = workshop(tmp_path / "a")
    assert shop.measure(item, SMALL)
    assert not shop.measure(item, SMALL)
    list(shop.train([second]))
    shop = workshop(tmp_path / "a")
    assert shop.measure(item, SMALL)
    assert not shop.measure(item, SMALL)
    assert calls == [["FedAvg"], ["FedAvg", "FedNTD"]]
    assert set(shop.results(item, SMALL).measured) == {"FedAvg", "FedNTD"}

    record((tmp_path / "a" / "runs").iterdir(), tmp_path / "ledger")
    elsewhere = workshop(tmp_path / "b", tmp_path / "ledger")
    assert len(elsewhere.missing(item, SMALL)) == 2  # the ledger has no weights
    assert elsewhere.missing(ITEM, SMALL) == []
    (tmp_path / "ledger" / "measured").mkdir()
    kept = next((tmp_path / "a" / "measured").iterdir())
    (tmp_path / "ledger" / "measured" / kept.name).write_text(kept.read_text())
    assert elsewhere.missing(item, SMALL) == []  # and needs none: it has the measurement
    assert elsewhere.results(item, Setting()).measured == {}  # which is of a rehearsal


def test_the_first_seed_of_all_cells_comes_first():
    runs = wanted(ITEM, replace(SMALL, seeds=2))
    assert [(run.cell[0], run.seed) for run in runs] == [("FedAvg", 0), ("FedNTD", 0), ("FedAvg", 1), ("FedNTD", 1)]
    assert len({identity(run.config) for run in runs}) == 4


def test_cells_by_row_column_or_both():
    assert choose(ITEM, ["FedNTD"]) == [("FedNTD", "s=2")]
    assert choose(ITEM, ["s=2"]) == list(ITEM.runs)
    assert choose(ITEM, ["FedNTD/s=2", "FedAvg/s=2"]) == list(ITEM.runs)
    with pytest.raises(FedntdError, match="two has no cell 'FedNDT'; its rows are FedAvg, FedNTD; its columns are s=2"):
        choose(ITEM, ["FedNDT"])
