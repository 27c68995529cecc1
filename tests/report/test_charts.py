import pytest
from make_runs import exact_run, methods_by_partitions, plain_record, settings, write_run

from fedntd.report.charts import MOST_CURVES, MOST_METHODS, best_groups, curves
from fedntd.report.html import View, write_report
from fedntd.report.statistics import is_baseline
from fedntd.report.summary import group


def test_a_group_is_one_line_and_its_failed_run_another(tmp_path):
    runs = [exact_run(tmp_path / str(i), [0.2, 0.1 * i], seed=i) for i in (1, 3)]
    runs.append(exact_run(tmp_path / "f", [0.9], seed=4, rounds=2, status="failed"))
    mean, failed = curves(runs)
    assert (mean.label, failed.label) == ("fedavg", "fedavg seed=4")
    rounds, values, std = mean.values("accuracy")
    assert rounds == [1, 2]
    assert values == pytest.approx([0.2, 0.2])
    assert std == pytest.approx([0, 0.02**0.5])
    assert failed.values("accuracy")[2] is None


def test_what_failed_at_once_takes_no_place_from_what_has_finished(tmp_path):
    """It gets no empty line, and takes no place among the best groups that a chart can show."""
    at_once = [exact_run(tmp_path / f"f{i}", [], status="failed", rounds=2, seed=i) for i in range(3)]
    late = [exact_run(tmp_path / f"l{i}", [0.1], status="failed", rounds=2, seed=i) for i in range(3, 7)]
    finished = [exact_run(tmp_path / f"{i}", [0.5, 0.6], optimiser__lr=1.0 + i) for i in range(MOST_CURVES - 1)]
    drawn = curves([*at_once, *late, *finished])
    assert [curve.runs[0].name for curve in drawn] == ["l3", *(run.name for run in finished)]
    assert [curve.runs for curve in curves(at_once)] == [[run] for run in at_once]  # rather than nothing


def test_values_only_where_measured(tmp_path):
    records = [plain_record(t, 0.5, in_local=0.8 if t == 2 else None, loss=float("nan")) for t in (1, 2, 3)]
    (curve,) = curves([write_run(tmp_path / "a", settings(rounds=3), records)])
    assert curve.values("in_local")[0] == [2]
    assert curve.values("loss")[0] == []


def test_styles_tell_ten_runs_apart(tmp_path):
    runs = [exact_run(tmp_path / str(i), [0.5], optimiser__lr=0.1 + i) for i in range(10)]
    assert len({(curve.colour, curve.dash) for curve in curves(runs)}) == 10


def test_a_method_has_its_colour_and_a_setting_its_dash(tmp_path):
    styles = {(c.method, c.facet): (c.colour, c.dash) for c in curves(methods_by_partitions(tmp_path))}
    for method in ("fedavg", "fedntd"):
        assert styles[method, "s=2"][0] == styles[method, "s=5"][0]
    for s in ("s=2", "s=5"):
        assert styles["fedavg", s][1] == styles["fedntd", s][1]
    assert len(set(styles.values())) == 4


def test_the_hardest_setting_has_the_same_methods_as_the_easiest(tmp_path):
    """The best of all groups together would only be those of the easy setting."""
    names = ["fedavg", "fedprox", "fednova", "scaffold", "moon", "fedntd", "fedlc", "fedrs", "fedexp"][
        : MOST_METHODS + 2
    ]
    runs = [
        exact_run(tmp_path / f"{name}{s}", [0.08 * s + 0.01 * i], algorithm=name, partition__s=s)
        for i, name in enumerate(names)
        for s in (2, 5, 10)
    ]
    drawn = curves(runs)
    for facet in ("s=2", "s=5", "s=10"):
        assert {curve.method for curve in drawn if curve.facet == facet} == {*names[2:]}
    assert len(drawn) == 3 * MOST_METHODS
    assert len({curve.colour for curve in drawn}) == MOST_METHODS


@pytest.mark.parametrize("settings", [(2, 5), (2,)])
def test_the_baseline_is_always_shown(tmp_path, settings):
    """It replaces the last of the best groups, however bad it is. If the baseline is several groups, one is enough."""
    runs = [
        exact_run(tmp_path / f"{i}{s}", [0.5 + 0.01 * i], algorithm="fedprox", algorithm__mu=1.0 + i, partition__s=s)
        for i in range(MOST_CURVES + 1)
        for s in settings
    ]
    runs += [exact_run(tmp_path / f"b{s}", [0.1], partition__s=s) for s in settings]
    groups = group(runs)
    shown = best_groups(groups)
    assert "fedavg" not in {g.runs[0].config.algorithm.name for g in shown}
    with_it = best_groups(groups, is_baseline(runs, "fedavg"))
    assert len(with_it) == len(shown)
    assert sum(g.runs[0].config.algorithm.name == "fedavg" for g in with_it) == len(settings)
    assert best_groups(groups, is_baseline(runs, "fedprox")) == shown

    write_report(runs, tmp_path / "page.html", view=View(baseline="fedavg"))
    assert "the baseline always among them" in (tmp_path / "page.html").read_text()
    assert {curve.label for curve in curves(runs, (), with_it)} == {g.label for g in with_it}
