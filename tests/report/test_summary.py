import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from make_runs import make_run, plain_record, settings, write_run
from rich.console import Console

from fedntd.algorithms import FedAvg
from fedntd.record import Run
from fedntd.report.summary import compare_json, compare_table, curves, differing, group, labels, summarise


@dataclass(frozen=True)
class Decaying(FedAvg):
    decay: float = 0.5


def exact_run(path: Path, accuracies: list[float], status: str = "finished", reason: str = "", **more) -> Run:
    records = [plain_record(t, a, forgetting=a / 2) for t, a in enumerate(accuracies, start=1)]
    config = settings(**{"rounds": max(1, len(accuracies)), **more})
    return write_run(path, config, records, status=status, reason=reason)


def printed(runs: list[Run], width: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None).print(
        compare_table(runs)
    )
    return out.getvalue()


class TestOneRun:
    def test_figures(self, tmp_path):
        s = summarise(exact_run(tmp_path / "a", [0.1, 0.5, 0.4]))
        assert (s.final, s.best, s.rounds) == (0.4, 0.5, 3)
        assert s.last10 == pytest.approx(1 / 3)
        assert s.ema == pytest.approx(0.316)  # 0.1 -> 0.6 * 0.1 + 0.4 * 0.5 = 0.26 -> 0.6 * 0.26 + 0.4 * 0.4
        assert s.forgetting == 0.2  # of the last record
        assert (s.seconds, s.bytes_up, s.bytes_down) == (6.0, 1500, 3000)

    def test_last10_is_of_the_last_ten_rounds_only(self, tmp_path):
        assert summarise(exact_run(tmp_path / "a", [1.0, 1.0] + [0.2] * 5 + [0.4] * 5)).last10 == pytest.approx(0.3)

    def test_without_records(self, tmp_path):
        s = summarise(exact_run(tmp_path / "a", [], status="failed", reason="no luck"))
        assert (s.final, s.best, s.last10, s.ema, s.forgetting) == (None,) * 5
        assert (s.rounds, s.seconds, s.status, s.reason) == (0, 0, "failed", "no luck")


class TestLabels:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ([{"algorithm": "fedntd"}], ["fedntd"]),
            ([{"algorithm": "fedavg"}, {"algorithm": "fedntd"}], ["fedavg", "fedntd"]),
            (
                [{}, {"algorithm": "fedntd"}, {"algorithm": "fedntd", "algorithm__beta": 0.3}],
                ["fedavg", "fedntd beta=1", "fedntd beta=0.3"],
            ),
            ([{"seed": 0}, {"seed": 1}, {"algorithm": "fedntd"}], ["fedavg seed=0", "fedavg seed=1", "fedntd"]),
            # what differs is told even where the algorithms' names would do: it may be why one is better
            (
                [{"partition__s": 2}, {"algorithm": "fedntd", "partition__s": 5}],
                ["fedavg s=2", "fedntd s=5"],
            ),
            ([{"partition__name": "iid"}, {"partition__s": 2}], ["fedavg iid", "fedavg sharding"]),
            ([{"data__augment": True}, {"data__augment": False}], ["fedavg augment=true", "fedavg augment=false"]),
            # two keys of one ending are told in full, and of an import path only the thing
            (
                [
                    {"algorithm": "test_summary:Decaying", "algorithm__decay": 0.2, "optimiser__decay": 0.9},
                    {"algorithm": "test_summary:Decaying"},
                ],
                [
                    "Decaying algorithm.decay=0.2 optimiser.decay=0.9",
                    "Decaying algorithm.decay=0.5 optimiser.decay=0.99",
                ],
            ),
            # what the server does besides is told where it does something
            (
                [{}, {"server__name": "fedopt"}, {"auxiliary__name": "fashion-mini"}],
                ["fedavg", "fedavg server=fedopt", "fedavg auxiliary=fashion-mini"],
            ),
            # neither speed nor what is measured besides makes another run of it
            ([{"workers": 1}, {"algorithm": "fedntd", "workers": 2, "measure__local_every": 5}], ["fedavg", "fedntd"]),
        ],
    )
    def test_are_made_of_what_differs(self, tmp_path, given, expected):
        assert labels([exact_run(tmp_path / str(i), [0.5], **more) for i, more in enumerate(given)]) == expected

    def test_fall_back_on_the_folder(self, tmp_path):
        runs = [exact_run(tmp_path / "first", [0.5]), exact_run(tmp_path / "second", [0.6])]
        assert labels(runs) == ["fedavg first", "fedavg second"]
        assert len(set(labels([runs[0], runs[0]]))) == 2

    def test_differing(self, tmp_path):
        runs = [
            exact_run(tmp_path / "a", [0.5]),
            exact_run(tmp_path / "b", [0.5], algorithm="fedntd", optimiser__lr=0.1),
        ]
        assert set(differing(runs)) == {"algorithm.name", "algorithm.beta", "algorithm.tau", "optimiser.lr"}
        assert differing(runs[:1]) == []


class TestGroups:
    def test_mean_and_sample_deviation_over_seeds(self, tmp_path):
        runs = [exact_run(tmp_path / str(i), [a], seed=i, workers=i) for i, a in enumerate([0.4, 0.5, 0.9])]
        (g,) = group(runs)
        assert g.label == "fedavg"
        assert g.mean("final") == pytest.approx(0.6)
        assert g.std("final") == pytest.approx(((0.2**2 + 0.1**2 + 0.3**2) / 2) ** 0.5)
        assert g.std("forgetting") == pytest.approx(((0.2**2 + 0.1**2 + 0.3**2) / 2) ** 0.5 / 2)

    def test_one_run_has_no_deviation(self, tmp_path):
        (g,) = group([exact_run(tmp_path / "a", [0.4])])
        assert (g.mean("final"), g.std("final")) == (0.4, None)

    def test_other_settings_make_another_group(self, tmp_path):
        runs = [exact_run(tmp_path / f"{lr}{s}", [0.5], seed=s, optimiser__lr=lr) for lr in (0.1, 0.2) for s in (0, 1)]
        assert [(g.label, len(g.runs)) for g in group(runs)] == [("fedavg lr=0.1", 2), ("fedavg lr=0.2", 2)]

    def test_a_failed_run_is_counted_but_never_averaged(self, tmp_path):
        runs = [exact_run(tmp_path / str(i), [0.4], seed=i) for i in (0, 1)]
        runs.append(exact_run(tmp_path / "f", [0.9] * 6, seed=2, rounds=1, status="failed", reason="too fast"))
        (g,) = group(runs)
        assert (len(g.finished), len(g.failed), g.count) == (2, 1, "2/3")
        assert (g.mean("final"), g.std("final")) == (0.4, 0.0)

    def test_unfinished_runs_stand_by_themselves(self, tmp_path):
        runs = [exact_run(tmp_path / str(i), [0.4], seed=i) for i in (0, 1)]
        runs.append(exact_run(tmp_path / "i", [0.1], seed=2, status="interrupted"))
        assert [(g.label, g.mean("final")) for g in group(runs)] == [("fedavg", 0.4), ("fedavg seed=2", 0.1)]

    def test_one_seed_run_twice_is_no_second_sample(self, tmp_path):
        runs = [exact_run(tmp_path / name, [0.4]) for name in ("a", "b")]
        assert [len(g.runs) for g in group(runs)] == [1, 1]
        # but a seed that failed and then ran through counts
        runs = [replace(runs[0], status="failed"), runs[1], exact_run(tmp_path / "c", [0.4], seed=1)]
        assert [g.count for g in group(runs)] == ["2/3"]


class TestMethodsInSeveralSettings:
    @pytest.fixture
    def runs(self, tmp_path):
        """Two methods by two partitions: FedNTD is better on one of them, FedAvg on the other."""
        return [
            exact_run(tmp_path / f"{method}{s}", [accuracy], algorithm=method, partition__s=s)
            for method, s, accuracy in (("fedavg", 2, 0.3), ("fedavg", 5, 0.8), ("fedntd", 2, 0.5), ("fedntd", 5, 0.7))
        ]

    def test_those_of_one_setting_stand_together(self, runs):
        told = [(g.label, g.method, g.facet) for g in group(runs)]
        assert told == [
            ("fedavg s=2", "fedavg", "s=2"),
            ("fedntd s=2", "fedntd", "s=2"),
            ("fedavg s=5", "fedavg", "s=5"),
            ("fedntd s=5", "fedntd", "s=5"),
        ]

    def test_each_setting_has_its_best(self, runs):
        bold = re.findall(r"\x1b\[1m\s*([\d.]+)", printed(runs, colour=True))
        assert set(bold) == {"50.00", "80.00", "0.150", "0.350"}  # of each, the lower F too

    def test_a_method_has_its_colour_and_a_setting_its_dash(self, runs):
        styles = {(c.method, c.facet): (c.colour, c.dash) for c in curves(runs)}
        for method in ("fedavg", "fedntd"):
            assert styles[method, "s=2"][0] == styles[method, "s=5"][0]
        for s in ("s=2", "s=5"):
            assert styles["fedavg", s][1] == styles["fedntd", s][1]
        assert len(set(styles.values())) == 4

    def test_a_list_of_runs_is_none(self, tmp_path):
        given = [("fedavg", 2), ("fedntd", 5)]
        runs = [exact_run(tmp_path / method, [0.5], algorithm=method, partition__s=s) for method, s in given]
        assert [g.facet for g in group(runs)] == ["", ""]


class TestCurves:
    def test_a_group_is_one_line_and_its_failed_run_another(self, tmp_path):
        runs = [exact_run(tmp_path / str(i), [0.2, 0.1 * i], seed=i) for i in (1, 3)]
        runs.append(exact_run(tmp_path / "f", [0.9], seed=4, rounds=2, status="failed"))
        mean, failed = curves(runs)
        assert (mean.label, failed.label) == ("fedavg", "fedavg seed=4")
        rounds, values, std = mean.values("accuracy")
        assert rounds == [1, 2]
        assert values == pytest.approx([0.2, 0.2])
        assert std == pytest.approx([0, 0.02**0.5])
        assert failed.values("accuracy")[2] is None

    def test_values_only_where_measured(self, tmp_path):
        records = [plain_record(t, 0.5, in_local=0.8 if t == 2 else None, loss=float("nan")) for t in (1, 2, 3)]
        (curve,) = curves([write_run(tmp_path / "a", settings(rounds=3), records)])
        assert curve.values("in_local")[0] == [2]
        assert curve.values("loss")[0] == []

    def test_styles_tell_ten_runs_apart(self, tmp_path):
        runs = [exact_run(tmp_path / str(i), [0.5], optimiser__lr=0.1 + i) for i in range(10)]
        assert len({(curve.colour, curve.dash) for curve in curves(runs)}) == 10


class TestTable:
    def test_numbers_are_whole_at_80_columns(self, tmp_path):
        runs = [
            exact_run(tmp_path / f"{long}{i}", [a] * 200, algorithm="fedntd", seed=i, algorithm__beta=long)
            for long in (0.123456, 1234.5)
            for i, a in enumerate([1.0, 0.6542])
        ]
        runs.append(exact_run(tmp_path / "f", [0.5] * 122, rounds=200, status="failed", reason="it went wrong"))
        text = printed(runs)
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "…" not in text
        for number in ("82.71", "±24.45", "0.414", "±0.122", "6.7 min", "122/200", "200"):
            assert number in text

    def test_best_values_are_bold(self, tmp_path):
        runs = [exact_run(tmp_path / "a", [0.4]), exact_run(tmp_path / "b", [0.6], algorithm="fedntd")]
        runs.append(exact_run(tmp_path / "c", [0.9], status="interrupted", rounds=2))  # no rival: it is not done
        text = printed(runs, colour=True)
        bold = re.findall(r"\x1b\[1m\s*([\d.]+)", text)
        assert bold.count("60.00") == 4
        assert "0.200" in bold  # the lower F
        assert not {"40.00", "90.00", "0.300"} & set(bold)

    def test_a_single_run_has_no_best(self, tmp_path):
        assert not re.search(r"\x1b\[1m\s*\d", printed([exact_run(tmp_path / "a", [0.4])], colour=True))

    def test_failed_runs_tell_where_and_why(self, tmp_path):
        reason = "the global weights are not finite after round 7; a lower optimiser.lr may help"
        runs = [
            exact_run(tmp_path / "a", [0.4]),
            exact_run(tmp_path / "b", [0.5] * 6, rounds=9, status="failed", reason=reason),
        ]
        text = printed(runs)
        assert "failed (round 7)" in text
        assert reason in " ".join(text.split())
        assert "6/9" in text
        assert "50.00" not in text

    def test_names_are_not_read_as_markup(self, tmp_path):
        runs = [exact_run(tmp_path / "[red]a", [0.4]), exact_run(tmp_path / "[red]b", [0.5])]
        assert "[red]a" in printed(runs)


def test_json(tmp_path):
    runs = [exact_run(tmp_path / str(i), [0.2 * (i + 1)], seed=i) for i in (0, 1)]
    runs += [exact_run(tmp_path / "f", [], algorithm="fedntd", status="failed", reason="why")]
    seeds, failed = json.loads(json.dumps(compare_json(runs), allow_nan=False))
    assert seeds["final"] == pytest.approx(0.3)
    assert seeds["final_std"] == pytest.approx(0.02**0.5)
    assert (seeds["runs"], seeds["finished"], seeds["settings"]) == (2, 2, {"algorithm.name": "fedavg"})
    assert [member["seed"] for member in seeds["members"]] == [0, 1]
    assert (failed["final"], failed["failed"], failed["members"][0]["reason"]) == (None, 1, "why")


def test_plausible_runs_read_back(tmp_path):
    run = make_run(tmp_path / "a", "fedntd", rounds=12, stop=5, status="interrupted")
    assert (run.status, len(run.records), run.counts.shape) == ("interrupted", 5, (100, 10))
