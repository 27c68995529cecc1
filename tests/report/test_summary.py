from dataclasses import dataclass, replace

import pytest
from make_runs import exact_run, make_run, methods_by_partitions

from fedntd.algorithms import FedAvg
from fedntd.report.summary import differing, group, labels, summarise


@dataclass(frozen=True)
class Decaying(FedAvg):
    decay: float = 0.5


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
            # other differences are shown even if the algorithms differ: they may explain the results
            (
                [{"partition__s": 2}, {"algorithm": "fedntd", "partition__s": 5}],
                ["fedavg s=2", "fedntd s=5"],
            ),
            ([{"partition__name": "iid"}, {"partition__s": 2}], ["fedavg iid", "fedavg sharding"]),
            ([{"data__augment": True}, {"data__augment": False}], ["fedavg augment=true", "fedavg augment=false"]),
            # keys with the same ending are shown in full; import paths are shortened to the name
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
            # the server rule is shown unless it is "none"
            (
                [{}, {"server__name": "fedopt"}, {"robust__name": "median"}, {"auxiliary__name": "fashion-mini"}],
                ["fedavg", "fedavg server=fedopt", "fedavg robust=median", "fedavg auxiliary=fashion-mini"],
            ),
            # neither the engine nor extra measures make it a different run
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
        # but a seed that failed first and finished later counts
        runs = [replace(runs[0], status="failed"), runs[1], exact_run(tmp_path / "c", [0.4], seed=1)]
        assert [g.count for g in group(runs)] == ["2/3"]


class TestMethodsInSeveralSettings:
    def test_those_of_one_setting_stand_together(self, tmp_path):
        told = [(g.label, g.method, g.facet) for g in group(methods_by_partitions(tmp_path))]
        assert told == [
            ("fedavg s=2", "fedavg", "s=2"),
            ("fedntd s=2", "fedntd", "s=2"),
            ("fedavg s=5", "fedavg", "s=5"),
            ("fedntd s=5", "fedntd", "s=5"),
        ]

    def test_a_list_of_runs_is_none(self, tmp_path):
        given = [("fedavg", 2), ("fedntd", 5)]
        runs = [exact_run(tmp_path / method, [0.5], algorithm=method, partition__s=s) for method, s in given]
        assert [g.facet for g in group(runs)] == ["", ""]


def test_plausible_runs_read_back(tmp_path):
    run = make_run(tmp_path / "a", "fedntd", rounds=12, stop=5, status="interrupted")
    assert (run.status, len(run.records), run.counts.shape) == ("interrupted", 5, (100, 10))
