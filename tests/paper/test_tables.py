"""Cells and tables, by worked examples, in every format."""

import csv
import io
import re
from typing import Any

import pytest

from fedntd.paper.item import Setting
from fedntd.paper.items import ITEMS, find, prop2
from fedntd.paper.published import Published
from fedntd.paper.render import draw
from fedntd.paper.tables import Figures, Table, aside, to_csv, to_html, to_latex, to_markdown
from fedntd.report.latex import tex
from ledgers import fill

PRINTED = Published(52.61, 0.43, 1.00)


def test_latex_is_plain_ascii():
    """Other characters would need further packages."""
    setting, sides = Setting(seeds=1), dict.fromkeys(prop2.SIDES, 0.5)
    terms = {"true_terms": [0.0, 0.0], "not_true_terms": [0.0, 0.0]}
    split = dict.fromkeys(prop2.METHODS, sides | terms) | {
        "p": [0.5, 0.5],
        "classes": ["cat", "dog"],
        "of": "CIFAR-10",
    }
    for name in ITEMS:
        item = find(name)
        found = fill(item, lambda row, column: 50.0, setting=setting, measured=split if name == "prop2" else None)
        tables = [thing for thing in draw(found) if isinstance(thing, Table)]
        assert all(to_latex(table).isascii() for table in tables), name
    assert tex("Σ p̃ E[…]") == r"$\sum$ $\tilde{p}$ E[\dots{}]"


def make(cells: dict, **options: Any) -> Table:
    rows, columns = (list(dict.fromkeys(cell[i] for cell in cells)) for i in (0, 1))
    settings: dict[str, Any] = {"second": "F", "baseline": "FedAvg"} | options
    return Table("some", "Some figures", "In 100 % of cases.", rows, columns, cells, **settings)


@pytest.fixture
def table() -> Table:
    return make(
        {
            ("FedAvg", "s=2"): Figures([40.0, 42.0], [0.5, 0.6], wanted=2, published=Published(40.14, 0.59)),
            ("FedAvg", "α=0.1"): Figures([50.0], [0.4], wanted=2, published=Published(46.49, 0.51)),
            ("SCAFFOLD", "s=2"): Figures([], [], failed=2, wanted=2, published=Published(None)),
            ("SCAFFOLD", "α=0.1"): Figures([49.0], [0.45], failed=1, wanted=2, published=Published(23.12, 0.74)),
            ("FedNTD", "s=2"): Figures([53.0, 54.0], [0.30, 0.32], wanted=2, published=PRINTED),
            ("FedNTD", "α=0.1"): Figures(wanted=2, published=Published(54.42, 0.42)),
        }
    )


def test_the_parts_of_a_cell(table: Table):
    cell = table.cells["FedNTD", "s=2"]
    assert isinstance(cell, Figures)
    # mean 53.5; sample standard deviation of 53 and 54: sqrt(0.5) = 0.7071
    assert table.measured(cell) == "53.50 ± 0.71"
    assert table.beside(cell) == "(0.31)"
    assert table.printed(cell) == "52.61 (0.43)"
    assert table.difference(cell) == "+0.89"  # 53.50 - 52.61
    assert aside(table, cell) == "paper 52.61 (0.43), +0.89"
    assert table.notes(cell) == ""
    below = Figures([40.0], published=PRINTED)
    assert table.difference(below) == "−12.61"
    assert table.measured(below) == "40.00"


def test_open_failed_and_partly_done(table: Table):
    def told(row: str, column: str) -> tuple[str, str, str]:
        cell = table.cells[row, column]
        assert isinstance(cell, Figures)
        return table.measured(cell), aside(table, cell), table.notes(cell)

    assert told("FedNTD", "α=0.1") == ("open", "paper 54.42 (0.42)", "")
    assert told("SCAFFOLD", "s=2") == ("failed", "paper failed", "")
    assert told("SCAFFOLD", "α=0.1") == ("49.00", "paper 23.12 (0.74), +25.88", "1 failed")
    assert told("FedAvg", "α=0.1") == ("50.00", "paper 46.49 (0.51), +3.51", "1 of 2 runs")
    assert table.done == (4, 6)
    assert not table.is_open
    assert make({("a", "b"): Figures(), ("a", "c"): Figures()}).is_open


def test_arrows_and_the_best(table: Table):
    assert table.arrow("FedNTD", "s=2") == "↑"
    assert table.arrow("SCAFFOLD", "α=0.1") == "↓"
    assert table.arrow("FedAvg", "s=2") == table.arrow("SCAFFOLD", "s=2") == table.arrow("FedNTD", "α=0.1") == ""
    best = [(row, column) for row in table.rows for column in table.columns if table.is_best(row, column)]
    assert best == [("FedAvg", "α=0.1"), ("FedNTD", "s=2")]


def test_methods_as_columns_and_lower_is_better():
    cells = {("s=2", "FedAvg"): Figures([3.0]), ("s=2", "FedNTD"): Figures([2.0]), ("s=5", "FedAvg"): Figures([1.0])}
    table = make(cells, compare="columns", lower_is_better=True)
    assert table.arrow("s=2", "FedNTD") == "↓"
    assert table.is_best("s=2", "FedNTD")
    assert not table.is_best("s=2", "FedAvg")
    assert not table.is_best("s=5", "FedAvg")  # alone


def test_what_looks_the_same_is_equally_good():
    table = make({("FedAvg", "a"): Figures([50.001]), ("FedNTD", "a"): Figures([50.004])})
    assert table.is_best("FedAvg", "a")
    assert table.is_best("FedNTD", "a")
    assert table.arrow("FedNTD", "a") == ""


def test_standard_deviations_in_place_of_forgetting():
    table = make(
        {("FedNTD", "s=2"): Figures([53.0, 54.0], [0.3, 0.3], published=PRINTED)}, second="", published_std=True
    )
    cell = table.cells["FedNTD", "s=2"]
    assert isinstance(cell, Figures)
    assert table.beside(cell) == ""
    assert table.printed(cell) == "52.61 ± 1.00"


def test_markdown(table: Table):
    assert to_markdown(table).splitlines() == [
        "| method | s=2 | α=0.1 |",
        "|---|---|---|",
        "| FedAvg | 41.00 ± 1.41 (0.55)<br>paper 40.14 (0.59), +0.86 "
        "| **50.00** (0.40)<br>paper 46.49 (0.51), +3.51<br>1 of 2 runs |",
        "| SCAFFOLD | failed<br>paper failed | 49.00 (0.45) ↓<br>paper 23.12 (0.74), +25.88<br>1 failed |",
        "| FedNTD | **53.50 ± 0.71** (0.31) ↑<br>paper 52.61 (0.43), +0.89 | open<br>paper 54.42 (0.42) |",
    ]


def test_latex(table: Table):
    text = to_latex(table)
    assert r"\caption{Some figures. In 100 \% of cases.}" in text
    assert r"method & s=2 & $\alpha$=0.1 \\" in text
    above, below = (
        r"\textbf{53.50}{\scriptsize $\pm$0.71} (0.31) $\uparrow$",
        r"{\scriptsize paper 52.61 (0.43), +0.89}",
    )
    assert rf"FedNTD & \shortstack{{{above} \\ {below}}} & " in text
    # as LaTeX would see it: groups, environments and formulas are closed, and each line of the body has three cells
    assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [2, 2, 2]
    assert text.isascii()


def test_tex_escapes_all_that_means_something():
    assert tex(r"a_b & 50% of #1 {x} $y$ \z ^ ~ <") == (
        r"a\_b \& 50\% of \#1 \{x\} \$y\$ \textbackslash{}z \textasciicircum{} \textasciitilde{} \textless{}"
    )


def test_csv(table: Table):
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == 6
    ours = next(row for row in rows if row["row"] == "FedNTD" and row["column"] == "s=2")
    assert (ours["runs"], ours["wanted"], ours["failed"], ours["text"]) == ("2", "2", "0", "")
    assert float(ours["mean"]) == 53.5
    assert float(ours["std"]) == pytest.approx(0.5**0.5, abs=1e-6)
    assert float(ours["F"]) == pytest.approx(0.31)
    assert (ours["paper"], ours["paper std"], ours["paper F"]) == ("52.61", "1", "0.43")
    assert float(ours["difference"]) == pytest.approx(0.89)
    assert [row["text"] for row in rows] == ["", "", "failed", "", "", "open"]


def test_html(table: Table):
    text = to_html(table)
    assert "<b>53.50</b> <small>± 0.71</small> <small>(0.31)</small> <span class='up'>↑</span>" in text
    assert "<div class='paper'>52.61 (0.43) <i>+0.89</i></div>" in text
    assert "<span class='bad'>failed</span><div class='paper'>failed</div>" in text
    assert "<span class='open'>open</span>" in text
    assert text.count("<tr>") == 4
    assert "&lt;b&gt;" in to_html(make({("<b>", "a"): "x"}))
