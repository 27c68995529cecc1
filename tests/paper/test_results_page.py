"""docs/results.md: made from the ledger, up to date with it, and true to it."""

import re
from pathlib import Path

from fedntd.config.toml import identity
from fedntd.paper.item import Results, Setting
from fedntd.paper.items import find
from fedntd.paper.render import progress
from fedntd.paper.results import results_page, write_results_page
from ledgers import made_up, write_ledger

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    text, plots = results_page(DOCS / "results" / "ledger")
    assert text == (DOCS / "results.md").read_text(encoding="utf-8"), "run: fedntd paper page"
    for name in plots:
        assert (DOCS / "results" / "figures" / f"{name}.png").exists(), "run: fedntd paper page"


def test_the_readme_counts_as_the_page_does():
    told = re.search(r"Of (\d+) claims: (.*)\.", (DOCS / "results.md").read_text(encoding="utf-8"))
    assert told
    tally = {words: int(number) for words, number in (part.split(": ") for part in told[2].split(", "))}
    measured, hold = int(told[1]) - tally["not measured yet"], tally["holds"] + tally["holds so far"]
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"Of the paper's {told[1]} claims, {measured} have been measured on the real data so far" in readme
    assert f"{hold} of these hold" in readme


def test_the_page_of_methods_tells_the_same_figures():
    variants = (DOCS / "results.md").read_text(encoding="utf-8").split("### Methods as defined and as released")[1]
    shown = [float(number) for number in re.findall(r"\d+\.\d\d", variants.split("###")[0])]
    told = [float(number) for number in re.findall(r"(\d+\.\d) %", (DOCS / "methods.md").read_text(encoding="utf-8"))]
    assert told
    assert [number for number in told if min(abs(number - other) for other in shown) > 0.0501] == []


def test_a_page_of_two_protocols(tmp_path: Path):
    item, results = find("table1"), []
    for protocol, gain in (("released", 10.0), ("published", -5.0)):
        for seed in range(2):
            for method, accuracy in (("FedAvg", 40.0), ("FedNTD", 40.0 + gain)):
                config = item.config((method, "CIFAR-10 s=2"), seed, Setting(protocol=protocol))
                results.append(made_up(config, accuracy + seed, forgetting=0.5))
    write_ledger(tmp_path / "ledger", results)
    page = write_results_page(tmp_path / "ledger", tmp_path / "results.md").read_text()
    assert "8 runs; 0.0 hours of training; 2026-01-02; a machine, torch 2.13; precision fp32." in page
    released, rest = page.split("## Protocol `published`")
    published, either = rest.split("## Under either protocol")
    claim = "| FedNTD outperforms FedAvg on all set-ups. (Section 4.2) |"
    assert f"{claim} **holds so far**: true of 1 of 1 cases, 13 open | CIFAR-10 s=2: +10.0 |" in released
    assert f"{claim} **does not hold**: true of 0 of 1 cases, 13 open | CIFAR-10 s=2: −5.0 |" in published
    assert "- FedNTD also smoothed the local landscape. (Appendix J)" in released  # not measured yet
    assert "| `table1`: Accuracy and forgetting of seven methods | Table 1 | 4 of 294 | 0 of 98 |" in released
    # 50 and 51; Table 1 has 52.61 (0.43)
    assert "**50.50 ± 0.71** (0.50) ↑<br>paper 52.61 (0.43), −2.11<br>2 of 3 runs" in released
    # what is open is named, not shown
    assert "| method | CIFAR-10 s=2 |\n" in released
    assert "0 of 49 cells are measured, 2 more in part. " in released
    assert "Open rows: FedCurv, FedProx, FedNova, SCAFFOLD, MOON. Open columns: " in released
    assert "| open" not in page
    # Table 7 and the tables of other items have the same two cells
    assert page.count("**50.50 ± 0.71**") == 1
    assert "An accuracy in a table is the moving average (0.6) over the rounds." in published
    assert "| FedNTD | ✓, paper ✓ |" in either
    assert "✓" not in released


def test_an_empty_ledger_is_said_to_be_empty(tmp_path: Path):
    text, plots = results_page(tmp_path)
    assert "Nothing has been recorded yet." in text
    assert plots == {}
    assert "| `mse`" not in text
    assert "not measured yet" not in text


def test_a_run_that_serves_several_cells_counts_once():
    """FedNTD with beta = 1 and tau = 1 is in two rows of the figure."""
    item = find("fig-hyper")
    first, second = list(item.runs)[:2]
    result = made_up(item.config(first, 0, Setting()), 40.0, forgetting=0.5)
    done, wanted = progress(Results(item, Setting(), {first: [result], second: [result]}, {}))
    assert done == 1
    assert wanted == len({identity(item.config(cell, 0, Setting())) for cell in item.runs}) < len(item.runs)
