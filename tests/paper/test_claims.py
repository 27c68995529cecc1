"""Each claim on made-up results (holds, does not hold, not measured) and on the paper's own numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedntd.paper import published
from fedntd.paper.claims import CLAIMS
from fedntd.paper.evidence import Evidence, Verdict
from fedntd.paper.item import Results, Setting
from fedntd.paper.items import find
from ledgers import fill, made_up


def evidence(*known: Results, rule: str = "final") -> Evidence:
    """Evidence from these items only."""
    by_name = {results.item.name: results for results in known}
    return Evidence(lambda name: by_name[name] if name in by_name else Results(find(name), Setting(), {}, {}), rule)


def verdict(name: str, of: Evidence) -> Verdict:
    return CLAIMS[name].verdict(of)


def from_print(name: str, table: Mapping[tuple[str, str], published.Published]) -> Results:
    """The results of an item, with the paper's own numbers."""
    item, setting = find(name), Setting(seeds=1)
    found = {}
    for cell in item.runs:
        printed = table.get(cell)
        if printed is not None:
            status = "failed" if printed.value is None else "finished"
            run = made_up(item.config(cell, 0, setting), printed.value or 10.0, printed.second or 0.0, status)
            found[cell] = [run]
    return Results(item, setting, found, {})


def measured(name: str, data: Mapping[str, Any]) -> Results:
    return Results(find(name), Setting(), {}, data)


TABLE1 = published.TABLE1_SHARDING | published.TABLE1_LDA


def test_nothing_is_claimed_of_nothing():
    for name in CLAIMS:
        known = name == "needs nothing"  # found out from the definitions
        assert verdict(name, evidence()).words == ("holds" if known else "not measured yet"), name
    assert len({claim.text for claim in CLAIMS.values()}) == len(CLAIMS) == 24


def test_the_papers_own_table_1():
    of = evidence(from_print("table1", TABLE1))
    assert verdict("above FedAvg", of).words == "holds"
    assert "CIFAR-10 s=2: +12.5" in verdict("above FedAvg", of).numbers  # 52.61 - 40.14
    # the paper's table itself has SCAFFOLD above FedNTD at s=5, s=10, α=0.5 and on CIFAR-100 by LDA
    everything = verdict("above all", of)
    assert everything.words == "does not hold"
    assert everything.numbers.count("(SCAFFOLD +") == 4
    assert "CIFAR-10 s=5: place 2 (SCAFFOLD +0.8, in print +0.8)" in everything.numbers  # 65.74 - 64.93
    assert (everything.good, everything.measured, everything.cases) == (10, 14, 14)
    assert everything.tally == "true of 10 of 14 cases"
    assert verdict("best mostly", of).words == "holds"  # by the same figures
    assert verdict("others fall below", of).words == "holds"
    assert "SCAFFOLD: below on 4 of 14" in verdict("others fall below", of).numbers
    assert verdict("forgetting grows", of).numbers == (
        "sharding: F 0.26 → 0.37 → 0.46 → 0.59; LDA: F 0.28 → 0.36 → 0.51 → 0.71"
    )
    assert verdict("forgetting grows", of).words == "holds"
    assert verdict("forgetting tells accuracy", of).words == "holds"


def test_the_papers_own_other_tables():
    of = evidence(
        from_print("local-epochs-s2", published.EPOCHS_S2),
        from_print("local-epochs-lda", published.EPOCHS_LDA),
        from_print("resnet10", published.RESNET10),
        from_print("kd-ntd", published.KD_NTD),
        from_print("mse", published.MSE),
    )
    assert verdict("gap grows with epochs", of) == Verdict(
        True, "s=2: +6.3 at E=1, +10.1 at E=10; α=0.1: +4.2 at E=1, +6.9 at E=10", good=2, measured=2, cases=2
    )
    assert verdict("first with ResNet-10", of).words == "holds"
    assert verdict("nearer to NTD", of).words == "holds"
    assert verdict("MSE falls short", of) == Verdict(
        True, "FedAvg 40.1, best MSE 44.4 at β=0.05, FedNTD 52.6, β=0.3: 1 of 1 failed", good=1, measured=1
    )


def test_weights_that_move_less_from_round_to_round():
    moved = {"distributions": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "weights": [[7.0, 8.0, 9.0], [1.0, 2.0, 3.0]]}
    found = verdict("divergence follows distance", evidence(measured("fig-divergence", {"FedAvg/s=2": moved})))
    assert found.numbers == "FedAvg: r = 0.26, within a round 1.00 on average"  # 4 / sqrt(4 * 58)
    assert found.words == "does not hold"


def test_one_run_that_diverges_is_enough_for_mse():
    printed = from_print("mse", published.MSE)
    cell = ("Sharding s=2", "MSE β=0.3")
    printed[cell].append(made_up(printed.item.config(cell, 1, printed.setting), 43.0))
    found = verdict("MSE falls short", evidence(printed))
    assert (found.words, found.numbers.rsplit(", ")[-1]) == ("holds", "β=0.3: 1 of 2 failed")


def test_a_claim_about_all_needs_only_one_exception():
    def figures(method: str, column: str) -> float | None:
        if "CINIC" in column:
            return None
        return {"FedNTD": 60.0, "FedAvg": 50.0}.get(method, 40.0) - 20 * (method == "FedNTD" and column == "MNIST s=2")

    of = evidence(fill(find("table1"), figures))
    found = verdict("above FedAvg", of)
    assert (found.words, found.tally) == ("does not hold", "true of 11 of 12 cases, 2 open")
    assert "MNIST s=2: -10.0" in found.numbers
    better = evidence(fill(find("table1"), lambda m, c: None if "CINIC" in c else 60.0 if m == "FedNTD" else 50.0))
    assert verdict("above FedAvg", better).words == "holds so far"
    assert verdict("best mostly", better).words == "holds so far"
    assert verdict("best mostly", better).tally == "true of 12 of 12 cases, 2 open"
    assert verdict("others fall below", better).words == "not measured yet"  # they may, on the open ones
    whole = evidence(fill(find("table1"), lambda m, c: 60.0 if m == "FedNTD" else 50.0))
    assert verdict("others fall below", whole).words == "does not hold"  # all are as good as FedAvg
    assert verdict("forgetting grows", better).words == "holds"  # F is level everywhere


@pytest.mark.parametrize(
    ("first", "known", "words"),
    [(1, 2, "undecided"), (0, 6, "undecided"), (0, 7, "does not hold"), (2, 3, "holds so far"), (8, 14, "holds"),
     (7, 14, "does not hold")],
)  # fmt: skip
def test_most_cases_are_more_than_half_of_all(first: int, known: int, words: str):
    setups = CLAIMS["best mostly"].cases

    def figures(method: str, column: str) -> float | None:
        place = setups.index(column)
        return None if place >= known else 60.0 if method == "FedNTD" else 50.0 if place < first else 70.0

    assert verdict("best mostly", evidence(fill(find("table1"), figures))).words == words


def test_methods_are_compared_on_the_seeds_that_both_have():
    """A method does not gain by failing on a hard partition."""
    item, cells = find("table1"), [("FedNTD", "CIFAR-10 s=2"), ("FedAvg", "CIFAR-10 s=2")]

    def runs(cell: tuple[str, str], percents: list[float | None]) -> list:
        return [
            made_up(item.config(cell, seed, Setting()), percent or 10.0, status="finished" if percent else "failed")
            for seed, percent in enumerate(percents)
        ]

    found = {cells[0]: runs(cells[0], [60.0, 50.0, 20.0]), cells[1]: runs(cells[1], [59.0, 45.0, None])}
    of = evidence(Results(item, Setting(), found, {}))
    assert of.lead("table1", *cells) == pytest.approx(3.0)  # (1 + 5) / 2
    assert of.accuracy("table1", *cells[0]) == pytest.approx(130 / 3)
    found[cells[1]] = runs(cells[1], [None, None, None])
    assert evidence(Results(item, Setting(), found, {})).lead("table1", *cells) == pytest.approx(130 / 3)


@pytest.mark.parametrize(
    ("claim", "name", "numbers"),
    [
        ("above all", "table1", "CIFAR-10 s=2: place 2 (SCAFFOLD +2.0)"),
        ("first with ResNet-10", "resnet10", "Sharding s=2: SCAFFOLD 60.0, FedNTD 58.0, MOON 30.0, FedAvg 20.0"),
    ],
)
def test_what_is_told_of_an_order_is_what_it_was_made_of(claim: str, name: str, numbers: str):
    """SCAFFOLD is ahead on the two seeds that all methods finished, and behind on the one that FedAvg lacks."""
    item, percents = find(name), {"SCAFFOLD": (60.0, 60.0, 30.0), "FedNTD": (58.0, 58.0, 60.0), "FedAvg": (20.0, 20.0)}

    def runs(cell: tuple[str, str], method: str) -> list:
        told = percents.get(method, (30.0, 30.0, 30.0))
        return [made_up(item.config(cell, seed, Setting()), percent) for seed, percent in enumerate(told)]

    found = {cell: runs(cell, cell[name == "resnet10"]) for cell in item.runs if "s=2" in "".join(cell)}
    assert numbers in verdict(claim, evidence(Results(item, Setting(), found, {}))).numbers


def test_a_rule_of_reporting_is_followed():
    item = find("table1")
    results = fill(item, lambda m, c: 50.0)
    run = results["FedNTD", "MNIST s=2"][0]
    results["FedNTD", "MNIST s=2"] = [made_up(run.config, 50.0, accuracy=[*[0.9] * 199, 0.3])]
    assert evidence(results).accuracy("table1", "FedNTD", "MNIST s=2") == pytest.approx(30)
    # the moving average keeps 0.6 of 0.9 and takes 0.4 of 0.3
    assert evidence(results, rule="ema").accuracy("table1", "FedNTD", "MNIST s=2") == pytest.approx(66)


def test_failed_runs_are_below_all():
    item = find("table1")
    results = fill(item, lambda m, c: 50.0)
    run = results["FedNTD", "MNIST s=2"][0]
    results["FedNTD", "MNIST s=2"] = [made_up(run.config, 50.0, status="failed")]
    assert verdict("above FedAvg", evidence(results)).words == "does not hold"


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        (
            "inconsistent",
            lambda good: history(
                "fig-consistency", lambda row, c: {"similarity": 0.9 if (c == "IID") == good else 0.8}
            ),
        ),
        (
            "local forgets",
            lambda good: history(
                "fig-local-forgetting",
                lambda row, c: {
                    "global_in_before": 0.5,
                    "in_local": 0.9,
                    "global_out_before": 0.5,
                    "out_local": 0.1 if good else 0.6,
                },
            ),
        ),
        (
            "average forgets",
            lambda good: history(
                "fig-local-forgetting",
                lambda row, c: {"global_out_before": 0.5, "global_out_after": 0.4 if good else 0.6},
            ),
        ),
        (
            "keeps out-local",
            lambda good: history(
                "fig-curves",
                lambda row, c: {
                    "in_local": 0.9,
                    "out_local": (0.3 if good else 0.1) if row == "FedNTD" else 0.2,
                },
            ),
        ),
        (
            "KD holds locals back",
            lambda good: history("kd-ntd", lambda row, c: {"in_local": 0.7 if (c == "NTD") == good else 0.6}),
        ),
        (
            "personalises",
            lambda good: history(
                "fig-personalized", lambda row, c: {"in_local": 0.7 if (row == "FedNTD") == good else 0.6}
            ),
        ),
        (
            "SCAFFOLD is odd",
            lambda good: fill_history(
                "fig-personalized",
                lambda row, c: 60.0 if row == "SCAFFOLD" and good else 50.0,
                lambda row, c: {"in_local": 0.4 if row == "SCAFFOLD" else 0.6},
            ),
        ),
        (
            "aligned",
            lambda good: measured(
                "alignment",
                {
                    f"{method}/{p}": [
                        {"locals": 0.6 + 0.1 * (method == "FedNTD") * (1 if good else -1), "aggregated": a}
                    ]
                    for p in ("s=2", "α=0.05")
                    for method, a in (("FedAvg", 0.6), ("FedNTD", 0.9))
                },
            ),
        ),
        (
            "divergence follows distance",
            lambda good: measured(
                "fig-divergence",
                {
                    f"{method}/s=2": {
                        "distributions": [[1, 2], [3, 4]],
                        "weights": [[5, 6], [7, 8] if good else [0, 0]],
                    }
                    for method in ("FedAvg", "FedNTD")
                },
            ),
        ),
        (
            "drifts less",
            lambda good: measured(
                "fig-divergence",
                {"FedAvg/s=2": {"weights": [[3.0, 5.0]]}, "FedNTD/s=2": {"weights": [[3.0, 4.0 if good else 6.0]]}},
            ),
        ),
        (
            "smooths",
            lambda good: measured(
                "fig-landscape",
                {
                    "16 clients, α=0.5/FedAvg": {"perturbed": [[0, 0], [0.4, 0.6]], "eigenvalues": [9, 5]},
                    "16 clients, α=0.5/FedNTD": {
                        "perturbed": [[0, 0], [0.1, 0.3]],
                        "eigenvalues": [3 if good else 12, 1],
                    },
                },
            ),
        ),
        (
            "steady in beta",
            lambda good: fill(
                find("fig-hyper"),
                lambda row, c: 30.0 if c == f"τ={0.1 if good else 5:g}" else 50.0 if not c.startswith("β") else 55.0,
            ),
        ),
        (
            "MSE falls short",
            lambda good: (
                fill(find("mse"), lambda row, c: {"FedAvg": 40.0, "FedNTD β=1": 45.0}.get(c, 42.0))
                if not good
                else from_print("mse", published.MSE)
            ),
        ),
        (
            "first with ResNet-10",
            lambda good: fill(find("resnet10"), lambda row, c: 60.0 if (c == "FedNTD") == good else 50.0),
        ),
        (
            "nearer to NTD",
            lambda good: fill(
                find("kd-ntd"),
                lambda row, c: (1 if good else -1) * {"KD": 0.0, "NTD": 1.0}.get(c, 0.5) + 50,
            ),
        ),
    ],
)
def test_both_ways(name: str, make: Callable[[bool], Results], good: bool):
    found = verdict(name, evidence(make(good)))
    assert found.words == ("holds" if good else "does not hold")
    assert any(character.isdigit() for character in found.numbers)


def history(name: str, measures: Callable[[str, str], dict[str, Any]]) -> Results:
    return fill_history(name, lambda row, column: 50.0, measures)


def fill_history(
    name: str, figures: Callable[[str, str], float], measures: Callable[[str, str], dict[str, Any]]
) -> Results:
    item, setting = find(name), Setting(seeds=1)
    found = {cell: [made_up(item.config(cell, 0, setting), figures(*cell), **measures(*cell))] for cell in item.runs}
    return Results(item, setting, found, {})
