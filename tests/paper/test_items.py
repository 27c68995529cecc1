"""Every item: its settings are valid, its cells are the paper's; table items are rehearsed through the command line."""

import csv
from pathlib import Path

import pytest

from fedntd import read_run
from fedntd.cli import main
from fedntd.config.toml import identity
from fedntd.paper import published
from fedntd.paper.item import Setting
from fedntd.paper.items import ITEMS, find
from fedntd.paper.runner import wanted
from fedntd.report.summary import summarise
from fedntd.runs.ledger import kind

PRINTED = {
    "table1": published.TABLE1_SHARDING | published.TABLE1_LDA,
    "table1-std": published.TABLE1_SHARDING | published.TABLE1_LDA,
    "local-epochs-s2": published.EPOCHS_S2,
    "local-epochs-lda": published.EPOCHS_LDA,
    "sampling-ratio-s2": published.RATIOS_S2,
    "sampling-ratio-lda": published.RATIOS_LDA,
    "resnet10": published.RESNET10,
    "kd-ntd": published.KD_NTD,
    "fedalign": published.FEDALIGN,
    "mse": published.MSE,
}


@pytest.mark.parametrize("name", ITEMS)
def test_settings_are_valid(name: str):
    item = find(name)
    assert item.name == name
    for setting in (Setting(), Setting(small=True), Setting(protocol="published")):
        configs = [run.config for run in wanted(item, setting)]
        assert len(configs) == len(item.runs) * item.wanted_seeds(setting)
        assert all(config.data.name.startswith("fedntd.paper.rehearsal:") == setting.small for config in configs)


@pytest.mark.parametrize("name", PRINTED)
def test_every_printed_cell_has_a_run(name: str):
    assert set(PRINTED[name]) <= set(find(name).runs)


def test_settings_of_the_paper():
    def config(name: str, row: str, column: str, protocol: str = "released"):
        return find(name).config((row, column), 1, Setting(protocol=protocol))

    one = config("table1", "FedProx", "CINIC-10 α=0.1")
    assert (one.federation.clients, one.federation.ratio, one.federation.local_epochs) == (200, 0.05, 5)
    assert (one.data.name, one.partition.options["alpha"], one.algorithm.options) == ("cinic10", 0.1, {"mu": 0.1})
    assert (one.federation.rounds, one.optimiser.lr, one.seed) == (200, 0.01, 1)
    assert config("table1", "FedAvg", "MNIST s=2").federation.local_epochs == 3
    assert config("table1", "FedAvg", "CIFAR-100 s=10").partition.options == {"s": 10}
    assert config("table1", "FedNova", "CIFAR-10 s=2").algorithm.name == "fednova-released"
    assert config("table1", "FedNTD", "CIFAR-10 s=2", "published").optimiser.lr < 0.01
    assert config("local-epochs-lda", "FedNTD", "E=20").federation.local_epochs == 20
    assert config("sampling-ratio-s2", "SCAFFOLD", "R=0.05").federation.ratio == 0.05
    assert config("resnet10", "Sharding s=5", "MOON").model.name == "resnet10"
    assert config("kd-ntd", "LDA α=0.1", "λ=0.7").algorithm.options["lam"] == 0.7
    scaffold = config("variants", "SCAFFOLD, released", "CIFAR-10 s=2").algorithm
    assert (scaffold.name, scaffold.options["uniform"]) == ("scaffold", True)
    assert config("mse", "Sharding s=2", "MSE β=0.3").algorithm.options["beta"] == 0.3
    # what is in two tables is one run
    epochs, ratios = config("local-epochs-s2", "FedNTD", "E=5"), config("sampling-ratio-s2", "FedNTD", "R=0.1")
    assert identity(epochs) == identity(ratios) == identity(config("table1", "FedNTD", "CIFAR-10 s=2"))
    assert config("learning-rate", "FedAvg lr=0.002", "CIFAR-10 s=2", "published").optimiser.lr == 0.002


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


SOME = {
    "table1": ["CIFAR-10 s=2", "FedNTD/CIFAR-10 α=0.5"],
    "table1-std": ["CIFAR-10 s=2"],
    "local-epochs-s2": ["FedAvg/E=1", "FedNTD/E=10"],
    "local-epochs-lda": ["FedNTD"],
    "sampling-ratio-s2": ["FedNTD/R=0.05", "FedNTD/R=0.3"],
    "sampling-ratio-lda": ["SCAFFOLD/R=0.05"],
    "resnet10": ["Sharding s=5/FedNTD"],
    "kd-ntd": ["Sharding s=2/FedAvg", "Sharding s=2/KD", "Sharding s=2/λ=0.5", "Sharding s=2/NTD"],
    "fedalign": ["16 clients, α=0.1/FedAlign"],
    "mse": [],
    "requirements": [],
    "learning-rate": [
        f"{method} lr={rate}/CIFAR-10 α=0.3" for method in ("FedAvg", "FedNTD") for rate in (0.003, 0.01)
    ],
    "variants": ["SCAFFOLD, released/CIFAR-10 s=2"],
}


@pytest.mark.parametrize("name", SOME)
def test_rehearsal(name: str, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Some cells for one round; every number in the item's files is that of a run folder."""
    monkeypatch.chdir(tmp_path)
    cells = [part for cell in SOME[name] for part in ("--cells", cell)]
    settings = "federation.rounds=1", "data.name=fedntd.paper.rehearsal:thumbnails"  # a quarter of the pixels
    chosen = [part for setting in settings for part in ("--set", setting)]
    arguments = ["paper", name, "--small", *chosen, "--out", str(out), *cells]
    monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code

    item, setting = find(name), Setting(small=True, settings=settings)
    runs = [read_run(path.parent) for path in (out / "runs").glob("*/config.toml")] if item.runs else []
    found = {kind(run.config): summarise(run) for run in runs}  # one that measured more may stand for the item's
    filled = 0
    for file in (out / name).glob("*.csv"):
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
            cell = (row["row"], row["column"])
            if cell in item.runs and row["mean"]:
                summary = found[kind(item.config(cell, 0, setting))]
                assert summary.final is not None  # after one round, all rules agree
                assert float(row["mean"]) == pytest.approx(100 * summary.final, abs=1e-3)
                filled += 1
    drawn_only = {"kd-ntd": 1}  # FedAvg is a line of its plot, and no cell of its table
    assert filled >= len(SOME[name]) - drawn_only.get(
        name, 0
    )  # more where other items of this folder had the same runs
    for ending in ("md", "tex", "csv"):
        assert list((out / name).glob(f"*.{ending}"))
    page = (out / "index.html").read_text(encoding="utf-8")
    assert f'<section id="{name}">' in page
    assert "A rehearsal" in page
    plots = {"kd-ntd": ["kd-ntd-curves"], "learning-rate": ["learning-rate-distance"]}.get(name, [])
    for plot in plots:
        assert (out / name / f"{plot}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / name / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("data:image/png;base64,") >= len(plots)
