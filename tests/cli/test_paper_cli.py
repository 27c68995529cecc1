"""fedntd paper as a user meets it: what is listed, trained, drawn, recorded; what goes wrong."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from fedntd.cli import main
from fedntd.cli.paper import terminal_list
from fedntd.paper import runner
from fedntd.paper.item import Setting
from fedntd.paper.items import ITEMS, find
from fedntd.paper.published import Published
from fedntd.paper.runner import describe, groups, wanted
from fedntd.paper.tables import Figures, Table
from fedntd.runs.reader import read_run
from ledgers import made_up, write_ledger

QUICK = ("--small", "--set", "federation.rounds=1", "--set", "federation.ratio=0.05", "--out", "out")
CELL = ("--cells", "FedNTD/CIFAR-10 s=2")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FEDNTD_DATA", str(tmp_path / "no data"))


def fedntd(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command and return its exit code."""
    monkeypatch.setattr("sys.argv", ["fedntd", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_made_listed_recorded_and_drawn_from_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert fedntd(monkeypatch, "paper", "table1", *QUICK, *CELL) == 0
    printed = capsys.readouterr()
    run = read_run(next(Path("out/runs").iterdir()))
    accuracy = f"{100 * run.records[-1].accuracy:.2f}"
    assert f"[1 of 1] fedntd on images, sharding s=2, seed 0: accuracy {accuracy} %" in printed.err
    assert "paper" in printed.out
    assert f"{float(accuracy) - 52.61:+.2f}".replace("-", "−") in printed.out
    written = {path.name for path in Path("out/table1").iterdir()}
    assert {"table1-sharding.md", "table1-sharding.tex", "table1-lda.csv"} < written

    # again: nothing is trained
    assert fedntd(monkeypatch, "paper", "table1", *QUICK, *CELL) == 0
    assert "[1 of" not in capsys.readouterr().err

    monkeypatch.setattr("fedntd.paper.estimate.measure_pass", lambda config: 0.001)
    assert fedntd(monkeypatch, "paper", "list", "--json", *QUICK) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(ITEMS)
    # some set-ups of Table 1 are the same on the packaged images
    assert rows["table1"]["done"] == rows["table1-std"]["done"] == rows["mse"]["done"] == 1
    assert rows["mse"]["runs"] == 8
    assert rows["mse"]["groups"] == 2  # FedAvg, and FedNTD by squares; FedNTD itself is done
    assert rows["mse"]["seconds"] > 0
    assert rows["requirements"]["runs"] == 0

    assert fedntd(monkeypatch, "paper", "record", "out", "--ledger", "book") == 0
    assert "1 runs and 0 measurements recorded in book" in capsys.readouterr().out
    elsewhere = [*QUICK[:-1], "elsewhere", "--ledger", "book"]
    assert fedntd(monkeypatch, "paper", "table1", *elsewhere, "--no-train") == 0
    assert not Path("elsewhere/runs").exists()
    for name in ("table1-sharding.md", "table1-sharding.tex", "table1-lda.csv"):
        assert Path("elsewhere/table1", name).read_text() == Path("out/table1", name).read_text()


def test_an_item_that_trains_nothing_is_recorded_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert fedntd(monkeypatch, "paper", "prop3", "--out", "out") == 0
    assert fedntd(monkeypatch, "paper", "record", "out", "--ledger", "book") == 0
    assert "0 runs and 1 measurements recorded in book" in capsys.readouterr().out
    assert (
        Path("book/measured/prop3.released.json").read_bytes() == Path("out/measured/prop3.released.json").read_bytes()
    )
    Path("empty").mkdir()
    assert fedntd(monkeypatch, "paper", "record", "empty", "--ledger", "book") == 2
    assert "empty has no run folders in it" in capsys.readouterr().err


def test_what_is_trained_in_one_group():
    """Runs that differ only in numbers, seeds and partitions form one group."""

    def count(name: str, *cells: str) -> list[int]:
        return [len(group) for group in groups(run.config for run in wanted(find(name), Setting(), cells))]

    assert count("learning-rate") == [48, 48]  # six rates, eight partitions; FedAvg and FedNTD
    cifar = [f"CIFAR-10 {split}" for split in ("s=2", "s=3", "s=5", "s=10", "α=0.05", "α=0.1", "α=0.3", "α=0.5")]
    assert count("table1", *cifar) == [24] * 7
    assert count("local-epochs-s2") == count("sampling-ratio-lda") == [15] * 5
    assert count("mse") == [3, 18, 3]
    assert count("fig-hyper") == [2, 22]


def test_a_run_is_told_apart_from_the_others():
    def told(name: str, row: str, column: str, **options) -> str:
        item, setting = find(name), Setting(**options)
        return describe(item.config((row, column), 1, setting), [run.config for run in wanted(item, setting)])

    assert told("table1", "FedNTD", "CIFAR-10 α=0.1") == "fedntd on cifar10, lda alpha=0.1, seed 1"
    assert (
        told("learning-rate", "FedAvg lr=0.002", "CIFAR-10 s=2") == "fedavg on cifar10, sharding s=2, lr=0.002, seed 1"
    )
    assert told("kd-ntd", "LDA α=0.1", "λ=0.3") == "fedkd-ntd lam=0.3 on cifar10, lda alpha=0.1, seed 1"
    assert told("mse", "Sharding s=2", "MSE β=0.05") == "fedntd-mse beta=0.05 on cifar10, sharding s=2, seed 1"
    assert told("fig-hyper", "Sharding s=2", "τ=0.5") == "fedntd beta=1 tau=0.5 on cifar10, sharding s=2, seed 1"
    assert told("local-epochs-s2", "FedProx", "E=10") == "fedprox on cifar10, sharding s=2, local_epochs=10, seed 1"
    assert told("mse", "Sharding s=2", "FedAvg", small=True) == "fedavg on images, sharding s=2, seed 1"


def test_estimate_counts_passes():
    """FedNTD on CIFAR-10 s=2: 200 rounds of ten clients with 500 samples and five epochs, a pass forth, one back (two
    forth) and the teacher's; and 10,000 test samples."""
    from fedntd.paper.estimate import passes

    config = find("table1").config(("FedNTD", "CIFAR-10 s=2"), 0, Setting())
    assert passes(config) == 200 * (10 * 500 * 5 * 4 + 10_000)
    measured = find("kd-ntd").config(("Sharding s=2", "FedAvg"), 0, Setting())  # local models are tested, too
    assert passes(measured) == 200 * (10 * 500 * 5 * 3 + 10_000 + 10 * (10_000 + 500))


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # these tests shall still mind a Ctrl-C
    train, calls = runner.federate_together, []

    def interrupted(*arguments, **options):
        """Interrupt during the second method's runs."""
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        yield from train(*arguments, **options)

    monkeypatch.setattr(runner, "federate_together", interrupted)
    cells = ("--cells", "FedNTD/CIFAR-10 s=2", "--cells", "FedAvg/CIFAR-10 s=2")
    assert fedntd(monkeypatch, "paper", "table1", *QUICK, *cells) == 130
    assert "the same command goes on where this one stopped" in capsys.readouterr().err
    monkeypatch.setattr(runner, "federate_together", train)
    assert fedntd(monkeypatch, "paper", "table1", *QUICK, *cells) == 0
    assert "[1 of 1]" in capsys.readouterr().err  # the other one


def test_several_items_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    trained = []

    def instead(configs, *arguments, **options):
        trained.append([config.algorithm.name for config in configs])
        yield from ()

    monkeypatch.setattr(runner, "federate_together", instead)
    assert fedntd(monkeypatch, "paper", "make", "fig-hyper", "mse", *QUICK) == 0
    # FedAvg once; the base values of FedNTD are those of a third cell of mse
    assert trained == [["fedavg"] * 2, ["fedntd"] * 20, ["fedntd-mse"] * 6]
    trained.clear()
    cells = ("--cells", "FedNTD/CIFAR-10 s=3", "--cells", "Sharding s=2/β=3")
    assert fedntd(monkeypatch, "paper", "make", "table1", "mse", "fig-hyper", *cells, *QUICK) == 0
    assert trained == [["fedntd"] * 3, ["fedavg"], ["fedntd-mse"] * 6]  # one of table1, mse whole, one of fig-hyper
    page = Path("out/index.html").read_text()
    assert '<section id="mse">' in page
    assert '<section id="fig-hyper">' in page


def test_groups_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(runner, "federate_together", lambda *_, **__: (_ for _ in ()))
    assert fedntd(monkeypatch, "paper", "mse", *QUICK, "--set", "engine=vectorised") == 0
    told = [line.split(", after")[0] for line in capsys.readouterr().err.splitlines() if line.startswith("group")]
    assert told == [
        "group 1 of 3: 1 runs of fedavg on images",
        "group 2 of 3: 6 runs of fedntd-mse on images",
        "group 3 of 3: 1 runs of fedntd on images",
    ]


def test_data_that_is_not_here_leaves_cells_open(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    arguments = ("--cells", "FedNTD/CINIC-10 s=2", "--seeds", "2", "--out", "out")
    assert fedntd(monkeypatch, "paper", "table1", *arguments) == 1
    error = capsys.readouterr().err
    assert "not made: 2 runs: " in error.replace("\n", " ")
    assert "fedntd data get cinic10" in error.replace("\n", " ")
    rows = Path("out/table1/table1-sharding.md").read_text().splitlines()
    assert rows[-1].endswith("| open<br>paper 48.07 (0.48) |")


def test_failed_runs_are_shown_as_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert fedntd(monkeypatch, "paper", "table1", *QUICK, *CELL, "--set", "optimiser.lr=1e30") == 0
    assert "failed: the global weights are not finite after round 1" in capsys.readouterr().err
    assert "| failed<br>paper 52.61 (0.43) |" in Path("out/table1/table1-sharding.md").read_text()
    assert "1 of 1 runs failed: the global weights are not finite" in Path("out/index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table1", "--small", "--cells", "FedNDT"], "table1 has no cell 'FedNDT'; its rows are FedAvg, FedCurv"),
        (["all", "--cells", "FedNTD"], "--cells is for items by name"),
        (["make", "table1", "msee"], "the paper has no item 'msee'; did you mean 'mse'?"),
        (["make", "mse", "table1", "--cells", "CIFAR-10 s=4"], "mse has no cell 'CIFAR-10 s=4'; its rows are Sharding"),
        (["table1", "--protocol", "publishd"], "protocol = 'publishd' is not known; did you mean 'published'?"),
        (["table1", "--set", "sed=1"], "unknown key 'sed'; did you mean 'seed'?"),
        (["requirements", "--out", "file"], "file/requirements/requirements.md cannot be written: "),
        (["record", "nowhere"], "there is no folder nowhere"),
        (["record", "."], ". has no run folders in it"),
        (["page"], "there is no ledger docs/results/ledger; create one with: fedntd paper record"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    Path("file").touch()
    assert fedntd(monkeypatch, "paper", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
    assert not Path("runs").exists()


def test_the_protocol_changes_rate_and_rule(monkeypatch: pytest.MonkeyPatch):
    item, cell = find("table1"), ("FedNTD", "CIFAR-10 s=2")
    for protocol in ("released", "published"):
        accuracy = [*[0.6] * 199, 0.5]  # final 50; moving average 0.6 · 60 + 0.4 · 50 = 56
        write_ledger(Path("book"), [made_up(item.config(cell, 0, Setting(protocol=protocol)), 0, accuracy=accuracy)])
    arguments = ("paper", "table1", "--no-train", "--seeds", "1", "--ledger", "book")
    told = {}
    for protocol in ("released", "published"):
        assert fedntd(monkeypatch, *arguments, "--protocol", protocol, "--out", protocol) == 0
        told[protocol] = Path(protocol, "table1", "table1-sharding.csv").read_text()
    assert "FedNTD,CIFAR-10 s=2,1,1,0,50," in told["released"]
    assert "FedNTD,CIFAR-10 s=2,1,1,0,56," in told["published"]


def test_names_give_way_to_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Every number of a table with long names is complete, even in a narrow terminal."""
    cell, width = ("a method with a name that is far too long for a terminal", "a set-up, with a long name"), 80
    table = Table(
        "t", "title", "", [cell[0]], [cell[1]], {cell: Figures([52.61, 52.63], [0.43], 0, 2, Published(40.14))}
    )
    Console(width=width).print(terminal_list(table))
    lines = capsys.readouterr().out.splitlines()
    assert "52.62 ± 0.01" in (numbers := " ".join(lines))
    assert "40.14" in numbers
    assert "+12.48" in numbers
    assert "…" not in numbers
    assert max(map(len, lines)) <= width
