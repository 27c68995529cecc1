"""The finding about the printed rule, from made-up runs of which the answer is known."""

import numpy as np
import pytest

from fedntd.paper.item import Plot, Results, Setting
from fedntd.paper.items import printed_rule
from fedntd.paper.items.printed_rule import FIRST, GROUPS, ITEM, PRINTED, PRINTED_RULE, RULES, gap, unexplained
from fedntd.paper.tables import Figures, Table
from ledgers import made_up

CHOSEN = next(iter(GROUPS))


def made(shift: float = 0.0, of: str = "") -> Results:
    """Runs whose mean from round 11 is the printed figure, `shift` more in one group: 9 points below print in the first
    ten rounds, and rising evenly from 20 below to 20 above it afterwards. P is as printed."""
    found = {}
    for name, cells in GROUPS.items():
        for cell, printed in cells.items():
            assert printed.value is not None
            target = printed.value + (shift if name == of else 0.0)
            accuracy = np.concatenate([np.full(10, target - 9), target + np.linspace(-20, 20, 190)]) / 100
            forgetting = (printed.value - 100 * accuracy[-1]) / 100 + (printed.second or 0.0)
            config = ITEM.config(cell, 0, Setting())
            found[cell] = [made_up(config, 0, accuracy=accuracy, forgetting=forgetting)]
    return Results(ITEM, Setting(), found, {})


def test_no_cell_is_in_two_groups():
    """Else a cell would count as evidence that was part of the search."""
    assert sum(map(len, GROUPS.values())) == len(PRINTED)
    assert {method for method, _ in GROUPS[CHOSEN]} == {"FedAvg", "FedProx", "FedNTD"}
    assert len(GROUPS[CHOSEN]) == 12
    assert set(printed_rule.SEARCHED) < set(GROUPS)


def test_the_rule_is_found():
    results = made()
    for cells in GROUPS.values():
        distances = {words: gap(results, cells, rule) for words, rule in RULES.items()}
        found = distances[PRINTED_RULE]
        assert found is not None
        assert found.distance == pytest.approx(0, abs=1e-9)
        assert found.cells == len(cells)
        last, average = distances["last round"], distances["mean of all rounds"]
        assert last is not None
        assert average is not None
        assert (last.distance, last.bias) == pytest.approx((20, 20))
        assert average.bias == pytest.approx(-9 * 10 / 200)


def test_what_the_rule_does_not_explain_is_named():
    assert unexplained(made()) == []
    far = unexplained(made(shift=-5.0, of="MNIST"))
    assert len(far) == len(GROUPS["MNIST"])
    assert far[0].endswith("(-5.0)")
    assert all("MNIST" in one for one in far)


def test_rules_by_hand():
    values = [float(x) for x in range(1, 21)]  # twenty rounds
    assert RULES["mean of all rounds"](values) == 10.5
    assert RULES[PRINTED_RULE](values) == np.mean(values[FIRST - 1 :]) == 15.5
    assert RULES["accuracy after 80 rounds"](values) == 20
    # towards keep = 1 a debiased average is the plain mean; at 0 it is the last value
    assert printed_rule.debiased(1 - 1e-9)(values) == pytest.approx(10.5, abs=1e-4)
    assert printed_rule.debiased(0.0)(values) == 20


def test_tables_have_the_figures():
    shown = printed_rule.render(made(shift=2.0, of="CIFAR-100"))
    tables = {one.name: one for one in shown if isinstance(one, Table)}
    assert [one.name for one in shown if isinstance(one, Plot)] == ["printed-rule-first"]
    cell = tables["printed-rule"].cells[PRINTED_RULE, "CIFAR-100"]
    assert isinstance(cell, Figures)
    assert (cell.mean, cell.second) == pytest.approx((2, 2))
    peak = tables["printed-rule-peaks"].cells["FedNTD", "CIFAR-10 s=2"]
    assert isinstance(peak, Figures)
    assert peak.mean == pytest.approx(52.61 + 43)
    assert peak.published is not None
    assert peak.published.value == pytest.approx(95.61)
    table1 = tables["printed-rule-table1"].cells["FedAvg", "CIFAR-10 s=5"]
    assert isinstance(table1, Figures)
    assert (table1.mean, table1.second) == pytest.approx((57.17, 0.37))
