"""Statistics over many runs, against numbers computed by hand and by scipy."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_runs import plain_record, settings, write_run
from rich.console import Console
from scipy import stats

from fedntd import FedntdError
from fedntd.config.toml import to_toml
from fedntd.report.compare import compare_table
from fedntd.report.leaderboard import leaderboard
from fedntd.report.statistics import Baseline, extras, heat_map, paired_p, parse_target, reaching, to_target
from fedntd.report.summary import group
from fedntd.runs.ledger import record
from fedntd.runs.reader import Run

Command = Callable[..., tuple[int, str, str]]


def made(path: Path, accuracies: list[float], status: str = "finished", **more) -> Run:
    records = [plain_record(t, a) for t, a in enumerate(accuracies, start=1)]
    return write_run(path, settings(**{"rounds": len(accuracies), **more}), records, status=status, reason="no luck")


@pytest.fixture
def sweep(tmp_path: Path) -> list[Run]:
    """Two methods, two partitions, four seeds; FedNTD is better by 0.1 plus something of each run."""
    rng = np.random.default_rng(0)
    runs = []
    for s in (2, 5):
        for seed in range(4):
            luck = rng.normal(0, 0.1)  # of the seed: both methods have it
            for method in ("fedavg", "fedntd"):
                own = rng.normal(0, 0.01)
                final = 0.4 + 0.02 * s + luck + own + (0.1 if method == "fedntd" else 0)
                path = tmp_path / "sweep" / f"{method},s={s},seed={seed}"
                runs.append(made(path, [0.1, final], algorithm=method, seed=seed, partition__s=s))
    return runs


def finals(runs: list[Run], **wanted) -> dict[tuple, float]:
    return {
        (run.config.partition.options["s"], run.config.seed): run.records[-1].accuracy
        for run in runs
        if run.config.algorithm.name == wanted["method"]
    }


def p_value(result: Any) -> float:
    return result.pvalue


class TestDifference:
    def test_is_scipys_paired_t_test(self, sweep: list[Run]):
        baseline = Baseline(sweep, "fedavg")
        a, b = finals(sweep, method="fedntd"), finals(sweep, method="fedavg")
        for g in group(sweep):
            found = baseline.difference(g)
            if g.label.startswith("fedavg"):
                assert found is None
                continue
            s = g.runs[0].config.partition.options["s"]
            ours, theirs = ([values[s, seed] for seed in range(4)] for values in (a, b))
            assert found is not None
            assert found.n == 4
            assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs))
            assert found.p == pytest.approx(p_value(stats.ttest_rel(ours, theirs)))
            assert p_value(stats.ttest_rel(ours, theirs)) < 0.01
            assert p_value(stats.ttest_ind(ours, theirs)) > 0.1  # pairing is what finds it

    def test_by_method_pairs_over_partitions_and_seeds(self, sweep: list[Run]):
        (found,) = (
            difference
            for g in group(sweep, ["algorithm.name"])
            if (difference := Baseline(sweep, "algorithm.name=fedavg").difference(g))
        )
        a, b = finals(sweep, method="fedntd"), finals(sweep, method="fedavg")
        expected = stats.ttest_rel([a[key] for key in sorted(a)], [b[key] for key in sorted(b)])
        assert found.n == 8
        assert found.p == pytest.approx(p_value(expected))

    def test_of_another_setting(self, sweep: list[Run]):
        found = [Baseline(sweep, "partition.s=2").difference(g) for g in group(sweep)]
        assert [f and f.n for f in found] == [None, None, 4, 4]

    def test_without_a_partner_or_with_one_pair(self, tmp_path: Path):
        runs = [
            made(tmp_path / "a", [0.5], algorithm="fedavg", seed=0),
            made(tmp_path / "b", [0.6], algorithm="fedntd", seed=0),
            made(tmp_path / "c", [0.7], algorithm="moon", seed=1),
            made(tmp_path / "d", [0.7], algorithm="fedntd", seed=1, status="failed"),
        ]
        by_label = {g.label: Baseline(runs, "fedavg").difference(g) for g in group(runs, ["algorithm.name"])}
        assert by_label["moon"] is None
        pair = by_label["fedntd"]
        assert pair is not None
        assert (pair.n, pair.p, pair.mean) == (1, None, pytest.approx(0.1))

    def test_a_method_with_data_of_its_own_has_partners(self, tmp_path: Path):
        runs = [made(tmp_path / f"a{seed}", [0.5], algorithm="fedavg", seed=seed) for seed in (0, 1)]
        data = {"auxiliary__name": "fashion-mini", "auxiliary__samples": 10}
        runs += [made(tmp_path / f"b{seed}", [0.6], algorithm="feddf", seed=seed, **data) for seed in (0, 1)]
        found = [Baseline(runs, "fedavg").difference(g) for g in group(runs)]
        assert [f and (f.n, round(f.mean, 6)) for f in found] == [None, (2, 0.1)]

    def test_a_value_in_brackets_is_no_markup(self, tmp_path: Path):
        runs = [made(tmp_path / str(seed), [0.5], seed=seed) for seed in (0, 1)]
        for run, note in zip(runs, ("[b]", "[i]"), strict=True):
            run.settings["algorithm.note"] = note
        out = io.StringIO()
        Console(file=out, width=80).print(compare_table(runs, extras=extras(runs, "algorithm.note=[b]", None)))
        assert "vs [b]" in out.getvalue()

    def test_the_same_difference_everywhere_has_no_p(self):
        assert paired_p(np.array([0.5, 0.75]), np.array([0.25, 0.5])) is None
        assert paired_p(np.array([0.2, 0.9]), np.array([0.1, 0.8])) is None  # the same but for rounding

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("fedavgg", "no run has algorithm.name = fedavgg; did you mean 'fedavg'"),
            ("optimizer.lr=1", "no run has the setting 'optimizer.lr'; did you mean 'optimiser.lr'"),
        ],
    )
    def test_a_baseline_that_is_not_there(self, sweep: list[Run], text: str, sentence: str):
        with pytest.raises(FedntdError, match=sentence):
            Baseline(sweep, text)


class TestTarget:
    def test_first_round_and_bytes_until_then(self, tmp_path: Path):
        run = made(tmp_path / "a", [0.1, 0.5, 0.4, 0.6])  # 1000 bytes down and 500 up a round
        assert to_target(run, 0.5) == (2, 3000)
        assert to_target(run, 0.55) == (4, 6000)
        assert to_target(run, 0.7) is None

    def test_of_a_group(self, tmp_path: Path):
        runs = [made(tmp_path / str(i), a, seed=i) for i, a in enumerate([[0.1, 0.5], [0.5, 0.1], [0.1, 0.2]])]
        (g,) = group(runs)
        got = reaching(g, 0.5)
        assert (got.reached, got.runs, got.rounds, got.bytes) == (2, 3, 1.5, 2250.0)
        told = [extras(runs, None, target)[0].text(g) for target in (0.5, 0.1)]
        assert told == ["2 rounds\n2.25 kB\n2/3 runs", "1 round\n1.50 kB"]

    def test_what_has_exactly_that_accuracy_has_reached_it(self, tmp_path: Path):
        """Exactly --target percent of 2,000 images are correct."""
        for percent, right in ((1.1, 22), (55.55, 1111), (57.0, 1140), (100.0, 2000)):
            target = parse_target(percent)
            assert target is not None
            assert right / 2000 >= target > (right - 1) / 2000


class TestToldApart:
    """Names that are equal in short are shown in full: two modules may have methods of the same name."""

    def test_methods_of_one_name(self, tmp_path: Path):
        runs = [
            made(tmp_path / f"{method}{s}{seed}", [value], seed=seed, partition__s=s)
            for method, value in (("mine", 0.5), ("theirs", 0.6))
            for s in (2, 5)
            for seed in (0, 1)
        ]
        for run in runs:
            run.settings["algorithm.name"] = f"{run.name[:-2]}:Method"
        assert [g.label for g in group(runs)][:2] == ["mine:Method s=2", "theirs:Method s=2"]
        assert [(g.label, len(g.runs)) for g in group(runs, ["algorithm.name"])] == [
            ("mine:Method", 4),
            ("theirs:Method", 4),
        ]
        found = Baseline(runs, "mine:Method").difference(group(runs, ["algorithm.name"])[1])
        assert found is not None
        assert (found.n, found.mean) == (4, pytest.approx(0.1))
        assert leaderboard(runs).splitlines()[2:] == [
            "| theirs:Method | **60.00 ± 0.00** | **60.00 ± 0.00** | 1.0 |",
            "| mine:Method | 50.00 ± 0.00 | 50.00 ± 0.00 | 2.0 |",
        ]
        alone = [run for run in runs if run.name.startswith("mine")]
        assert [g.label for g in group(alone, ["algorithm.name"])] == ["Method"]
        assert Baseline(alone, "mine:Method").value == Baseline(alone, "Method").value == "Method"

    def test_numbers_that_are_close(self, tmp_path: Path):
        runs = [made(tmp_path / str(lr), [0.5], optimiser__lr=lr) for lr in (0.1, 0.10000001)]
        told = ["lr=0.1", "lr=0.10000001"]
        assert [g.label for g in group(runs, ["optimiser.lr"])] == told
        assert leaderboard(runs).splitlines()[0] == f"| method | {' | '.join(told)} | mean place |"


class TestHeatMap:
    def test_means_over_seeds(self, tmp_path: Path):
        runs = [
            made(tmp_path / f"{lr}{s}{seed}", [lr + s / 100 + seed / 10], seed=seed, optimiser__lr=lr, partition__s=s)
            for lr in (0.1, 0.02)
            for s in (2, 10)
            for seed in (0, 1)
        ]
        runs[-1] = made(tmp_path / "failed", [0.9], "failed", seed=5, optimiser__lr=0.02, partition__s=10)
        found = heat_map(runs)
        assert found is not None
        assert (found.rows, found.row_values) == ("partition.s", ["2", "10"])
        assert (found.columns, found.column_values) == ("optimiser.lr", ["0.02", "0.1"])
        assert found.values == pytest.approx(np.array([[0.09, 0.17], [0.12, 0.25]]))  # 0.12: the other one failed
        assert found.counts.tolist() == [[2, 2], [1, 2]]

    def test_a_setting_may_be_a_list(self, sweep: list[Run]):
        sizes = {"fedavg": [8], "fedntd": [16, 8]}
        for run in sweep:
            run.settings["model.sizes"] = sizes[run.config.algorithm.name]
        found = heat_map(sweep, ["model.sizes", "partition.s"])
        assert found is not None
        assert (found.row_values, found.column_values) == (["[16, 8]", "[8]"], ["2", "5"])
        assert found.counts.tolist() == [[4, 4], [4, 4]]

    def test_only_of_two_settings(self, sweep: list[Run], tmp_path: Path):
        assert heat_map(sweep) is None  # the method brings its own settings along
        found = heat_map(sweep, ["algorithm.name", "partition.s"])
        assert found is not None
        assert found.row_values == ["fedavg", "fedntd"]
        assert heat_map(sweep, ["seed"]) is None

    def test_none_where_no_run_has_finished(self, tmp_path: Path):
        runs = [
            made(tmp_path / f"{lr}{s}", [0.1], "failed", optimiser__lr=lr, partition__s=s)
            for lr in (0.1, 0.02)
            for s in (2, 10)
        ]
        assert heat_map(runs) is None


class TestLeaderboard:
    def test_places_and_bold(self, tmp_path: Path):
        scores = {"fedavg": (0.5, 0.4), "fedntd": (0.6, 0.3), "moon": (0.55, 0.2)}
        runs = [
            made(tmp_path / f"{method}{s}{seed}", [value + d], algorithm=method, seed=seed, partition__s=s)
            for method, values in scores.items()
            for s, value in zip((2, 5), values, strict=True)
            for seed, d in ((0, -0.01), (1, 0.01))
        ]
        for seed in (0, 1):
            runs.append(made(tmp_path / f"x{seed}", [0.1], "failed", algorithm="fedprox", seed=seed, partition__s=2))
        assert leaderboard(runs) == (
            "| method | s=2 | s=5 | mean place |\n"
            "|---|---|---|---|\n"
            "| fedntd | **60.00 ± 1.41** | 30.00 ± 1.41 | 1.5 |\n"
            "| fedavg | 50.00 ± 1.41 | **40.00 ± 1.41** | 2.0 |\n"
            "| moon | 55.00 ± 1.41 | 20.00 ± 1.41 | 2.5 |\n"
            "| fedprox | failed | – | – |\n"
        )

    def test_columns_are_where_methods_are_run(self, tmp_path: Path):
        """Columns depend neither on a method's own settings (even if named like a partition's) nor on the data path."""
        of = {"fedavg": {}, "fedcurv": {"algorithm__s": 500}, "fedbe": {"auxiliary__name": "cifar100"}}
        runs = [
            made(tmp_path / f"{name}{s}", [0.5], algorithm=name, partition__s=s, data__path=f"/at/{name}", **more)
            for name, more in of.items()
            for s in (2, 5)
        ]
        head, _, *rows = leaderboard(runs).splitlines()
        assert head == "| method | s=2 | s=5 | mean place |"
        assert [row.split(" | ")[0] for row in rows] == ["| fedavg", "| fedcurv", "| fedbe"]

    def test_a_method_that_lacks_a_seed_has_no_place(self, tmp_path: Path):
        """The second partition is hard: the best of all on the first alone is neither bold nor first. The last round
        alone does not count, nor does a seed count twice."""
        runs = [
            made(tmp_path / "a0", [0.4, 0.6], algorithm="fedavg", seed=0),
            made(tmp_path / "again", [0.9, 0.9], algorithm="fedavg", seed=0),
            made(tmp_path / "a1", [0.1, 0.1], algorithm="fedavg", seed=1),
            made(tmp_path / "failed", [0.9, 0.9], "failed", algorithm="fedntd", seed=0),
            made(tmp_path / "n0", [0.5, 0.7], algorithm="fedntd", seed=0),
            made(tmp_path / "p0", [0.4, 0.4], algorithm="fedprox", seed=0),
            made(tmp_path / "p1", [0.4, 0.4], "failed", algorithm="fedprox", seed=1),
        ]
        assert leaderboard(runs).splitlines()[2:] == [
            "| fedprox | **40.00** (1 of 2) | 1.0 |",
            "| fedavg | 30.00 ± 28.28 | 2.0 |",
            "| fedntd | 60.00 (1 of 2) | – |",
        ]

    def test_one_method_with_two_settings_is_two(self, tmp_path: Path):
        runs = [made(tmp_path / str(mu), [0.5 + mu / 10], algorithm="fedprox", algorithm__mu=mu) for mu in (1.0, 2.0)]
        found = leaderboard(runs).splitlines()[2:]
        assert found == ["| fedprox mu=2 | **70.00** | 1.0 |", "| fedprox mu=1 | 60.00 | 2.0 |"]

    def test_a_bar_stays_in_its_cell(self, tmp_path: Path):
        runs = [made(tmp_path / str(seed), [0.5], seed=seed) for seed in (0, 1)]
        for run, note in zip(runs, ("x|y", "[b]"), strict=True):
            run.settings["algorithm.note"] = note
        assert r"| fedavg note=x\|y | " in leaderboard(runs)

    def test_nothing_right_is_0(self, tmp_path: Path):
        runs = [made(tmp_path / name, [value], algorithm=name) for name, value in (("fedavg", 0.0), ("fedntd", 0.1))]
        assert leaderboard(runs).splitlines()[2:] == ["| fedntd | **10.00** | 1.0 |", "| fedavg | 0.00 | 2.0 |"]

    def test_is_written_between_the_marks_of_a_page(self, sweep: list[Run], command: Command, tmp_path: Path):
        page = tmp_path / "page.md"
        page.write_text("before\n\n<!-- leaderboard -->\n\nold\n\n<!-- /leaderboard -->\n\nafter\n")
        assert command("leaderboard", "sweep", "-o", "page.md")[0] == 0
        text = page.read_text()
        assert text.startswith("before\n\n<!-- leaderboard -->\n\n16 of 16 runs finished, 4 seeds, ")
        assert text.endswith("\n\n<!-- /leaderboard -->\n\nafter\n")
        assert leaderboard(sweep) in text
        assert "\nold\n" not in text
        page.write_text("nothing")
        code, _, told = command("leaderboard", "sweep", "-o", "page.md")
        assert (code, page.read_text()) == (2, "nothing")
        assert "page.md has no <!-- leaderboard --> ... <!-- /leaderboard --> to write between" in told

    def test_a_page_that_is_not_there_is_made(self, sweep: list[Run], command: Command, tmp_path: Path):
        for _ in range(2):
            assert command("leaderboard", "sweep", "-o", "new/page.md")[0] == 0
        text = (tmp_path / "new/page.md").read_text()
        assert text.startswith("<!-- leaderboard -->\n\n16 of 16 runs finished, 4 seeds, ")
        assert text.count(leaderboard(sweep)) == 1

    def test_of_a_ledger_is_that_of_its_runs(self, sweep: list[Run], command: Command, tmp_path: Path):
        """Up to the ledger's four digits. A sweep file selects the runs."""
        made(tmp_path / "other", [0.9, 0.9], algorithm="fedntd", seed=9, partition__s=2)
        failed = made(tmp_path / "failed", [0.1, 0.1], "failed", algorithm="fedprox", seed=0, partition__s=2)
        record([run.path for run in sweep] + [tmp_path / "other", failed.path], tmp_path / "ledger")
        code, told, _ = command("leaderboard", "ledger")
        assert (code, told) == (0, command("leaderboard", "sweep", "other", "failed")[1])

        (tmp_path / "base.toml").write_text(to_toml(sweep[0].config))
        grid = '[grid]\nalgorithm = [{ name = "fedavg" }, { name = "fedntd" }]\npartition.s = [2, 5, 7]\n'
        (tmp_path / "asked.toml").write_text(f'base = "base.toml"\nseeds = [0, 1, 2, 3]\n{grid}')
        assert command("leaderboard", "ledger", "--of", "asked.toml")[:2] == (0, leaderboard(sweep))
        (tmp_path / "page.md").write_text("<!-- leaderboard --><!-- /leaderboard -->")
        assert command("leaderboard", "sweep", "ledger", "--of", "asked.toml", "-o", "page.md")[0] == 0
        assert "16 of 24 runs finished, 4 seeds" in (tmp_path / "page.md").read_text()
        assert command("leaderboard", "sweep", "sweep", "-o", "page.md")[0] == 0
        assert "16 of 16 runs finished" in (tmp_path / "page.md").read_text()
        code, _, err = command("leaderboard", "other", "--of", "asked.toml")
        assert code == 2
        assert "none of the 1 runs is one of asked.toml" in err


def test_compare_and_report_of_a_sweep(sweep: list[Run], command: Command, tmp_path: Path):
    arguments = ("sweep", "--by", "algorithm.name", "--by", "partition.s", "--baseline", "fedavg", "--target", "50")
    code, out, _ = command("compare", *arguments, "--json")
    assert code == 0
    rows = {row["label"]: row for row in json.loads(out)}
    assert set(rows) == {f"{m} s={s}" for m in ("fedavg", "fedntd") for s in (2, 5)}
    good = [value for (s, _), value in finals(sweep, method="fedntd").items() if s == 5]
    row = rows["fedntd s=5"]
    assert row["final"] == pytest.approx(np.mean(good))
    assert row["final_std"] == pytest.approx(np.std(good, ddof=1))
    assert (row["pairs"], row["target_reached"]) == (4, sum(value >= 0.5 for value in good))
    code, out, _ = command("compare", *arguments)
    assert "vs fedavg" in out
    assert "n=4" in out

    assert command("report", *arguments, "-o", "page.html", "--figures", "figures")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Accuracy by two settings" in page
    assert "paired t-test" in page
    assert {"two-settings.png", "cost.pdf"} <= {file.name for file in (tmp_path / "figures").iterdir()}

    code, _, err = command("compare", "sweep", "--by", "algorithm.nam")
    assert code == 2
    assert "no run has such a setting; did you mean 'algorithm.name'" in err
    assert command("compare", "sweep", "--target", "0")[0] == 2
