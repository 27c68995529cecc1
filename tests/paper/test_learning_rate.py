"""The finding about the learning rate, from made-up ledger files with a known answer."""

from pathlib import Path

import numpy as np
import pytest

from fedntd.paper.item import Plot, Results, Setting
from fedntd.paper.items import learning_rate
from fedntd.paper.items.learning_rate import ITEM, PRINTED, RATES, fit, row
from fedntd.paper.render import draw
from fedntd.paper.runner import Workshop
from fedntd.paper.tables import Figures, Table
from fedntd.runs.ledger import read_store
from ledgers import made_up, write_ledger

SETUPS = ("CIFAR-10 s=2", "CIFAR-10 α=0.1")
SHIFT = {0.001: -10, 0.002: -5, 0.003: 0, 0.005: 5, 0.01: 10}  # points above what makes the moving average right


def from_ledger(tmp_path: Path, runs: list) -> Results:
    write_ledger(tmp_path / "ledger", runs)
    out = tmp_path / "out"
    return Workshop(out, read_store(out, tmp_path / "ledger"), tmp_path / "ledger").results(ITEM, Setting())


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """At lr=0.003 the moving average is the printed accuracy: with 4 points more in all rounds but the last, and 6 less
    in the last, it is 0.6 · 4 − 0.4 · 6 = 0 away. F is as printed at lr=0.005. Runs at lr=0.1 fail."""
    runs = []
    for method in learning_rate.METHODS:
        for setup in SETUPS:
            printed = PRINTED[method, setup]
            assert printed.value is not None
            assert printed.second is not None
            for rate, shift in SHIFT.items():
                target = printed.value + shift
                accuracy = [(target + 4) / 100] * 199 + [(target - 6) / 100]
                forgetting = printed.second + (0 if rate == 0.005 else 0.1)
                config = ITEM.config((row(method, rate), setup), 0, Setting())
                runs.append(made_up(config, 0, accuracy=accuracy, forgetting=forgetting))
            failing = ITEM.config((row(method, 0.1), setup), 0, Setting())
            runs.append(made_up(failing, 10, status="failed"))
    alone = ITEM.config((row("FedAvg", 0.01), "CIFAR-10 s=10"), 0, Setting())  # at one rate only: tells nothing
    return from_ledger(tmp_path, [*runs, made_up(alone, 99)])


def test_the_answer_is_found(results: Results):
    found = fit(results)
    assert found.rates == list(RATES)
    assert set(found.cells) == {(method, setup) for method in ("FedAvg", "FedNTD") for setup in SETUPS}
    assert found.closest() == found.closest("FedAvg") == found.closest("FedNTD") == ("ema", 0.003)
    assert found.mean("ema", 0.003) == pytest.approx(0, abs=0.02)
    assert found.mean("ema", 0.01) == pytest.approx(10, abs=0.02)
    assert found.mean("final", 0.003) == pytest.approx(6, abs=0.02)
    assert found.mean("final", 0.002) == pytest.approx(11, abs=0.02)
    assert found.mean("best", 0.003) == pytest.approx(4, abs=0.02)
    assert found.mean("last10", 0.003) == pytest.approx(3, abs=0.02)  # 0.9 · 4 − 0.1 · 6
    assert found.mean("forgetting", 0.005) == pytest.approx(0, abs=0.02)
    assert found.mean("forgetting", 0.003) == pytest.approx(10, abs=0.02)
    assert found.mean("final", 0.1) == pytest.approx(np.mean([40.14, 46.49, 52.61, 54.42]))  # failed: 0 %


def test_what_is_shown(results: Results, tmp_path: Path):
    table, curves, against, accuracies = draw(results)
    assert isinstance(table, Table)
    best = [(r, c) for r in table.rows for c in table.columns if table.is_best(r, c)]
    assert ("moving average 0.6", "lr=0.003") in best
    assert ("F", "lr=0.005") in best
    assert table.cell("F", "lr=0.1") == "failed"
    assert "a failed run counts as 0 %, and has no F" in table.caption
    sentence = "Closest over 4 cells: lr=0.003, moving average 0.6: 0.0 points."
    assert sentence in table.caption
    assert isinstance(curves, Plot)
    assert sentence in curves.caption

    assert isinstance(against, Plot)
    against.figure.savefig(tmp_path / "against.png")  # a warning would be an error
    assert "moving average 0.6" in against.caption
    shown = [ax for ax in against.figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == ["CIFAR-10 s=2", "CIFAR-10 α=0.1"]
    (container, *_) = shown[0].containers
    assert [label.get_text() for label in shown[0].get_xticklabels()] == [".001", ".002", ".003", ".005", ".01", ".1"]
    expected = [40.14 + shift for shift in SHIFT.values()]
    assert container[0].get_ydata() == pytest.approx([*expected, 0], abs=0.02)  # pyright: ignore
    heights = [np.unique(np.asarray(line.get_ydata())).tolist() for line in shown[0].lines]
    assert [40.14] in heights
    assert [52.61] in heights

    assert isinstance(accuracies, Table)
    cell = accuracies.cell("FedNTD lr=0.003", "CIFAR-10 α=0.1")
    assert isinstance(cell, Figures)
    assert cell.mean == pytest.approx(54.42, abs=0.02)  # by the rule that fits
    assert accuracies.difference(cell) in ("+0.00", "−0.00", "+0.01", "−0.01")


def test_one_rate_tells_nothing(tmp_path: Path):
    runs = [
        made_up(ITEM.config((row(m, 0.01), setup), 0, Setting()), 50) for m in learning_rate.METHODS for setup in SETUPS
    ]
    (only,) = draw(from_ledger(tmp_path, runs))
    assert isinstance(only, Table)
    assert only.name == "learning-rate-accuracy"
