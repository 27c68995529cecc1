import io
import json
import re

import pytest
from make_runs import exact_run, methods_by_partitions
from rich.console import Console

from fedntd.report.compare import compare_json, compare_table, progress
from fedntd.report.summary import group
from fedntd.runs.reader import Run


def printed(runs: list[Run], width: int = 80, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None).print(
        compare_table(runs)
    )
    return out.getvalue()


def test_numbers_are_whole_at_80_columns(tmp_path):
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


def test_best_values_are_bold(tmp_path):
    runs = [exact_run(tmp_path / "a", [0.4]), exact_run(tmp_path / "b", [0.6], algorithm="fedntd")]
    runs.append(exact_run(tmp_path / "c", [0.9], status="interrupted", rounds=2))  # no rival: it is not done
    text = printed(runs, colour=True)
    bold = re.findall(r"\x1b\[1m\s*([\d.]+)", text)
    assert bold.count("60.00") == 4
    assert "0.200" in bold  # the lower F
    assert not {"40.00", "90.00", "0.300"} & set(bold)


def test_a_single_run_has_no_best(tmp_path):
    assert not re.search(r"\x1b\[1m\s*\d", printed([exact_run(tmp_path / "a", [0.4])], colour=True))


def test_failed_runs_tell_where_and_why(tmp_path):
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


def test_names_are_not_read_as_markup(tmp_path):
    runs = [exact_run(tmp_path / "[red]a", [0.4]), exact_run(tmp_path / "[red]b", [0.5])]
    assert "[red]a" in printed(runs)


def test_each_setting_has_its_best(tmp_path):
    bold = re.findall(r"\x1b\[1m\s*([\d.]+)", printed(methods_by_partitions(tmp_path), colour=True))
    assert set(bold) == {"50.00", "80.00", "0.150", "0.350"}  # of each, the lower F too


def test_json(tmp_path):
    runs = [exact_run(tmp_path / str(i), [0.2 * (i + 1)], seed=i) for i in (0, 1)]
    runs += [exact_run(tmp_path / "f", [], algorithm="fedntd", status="failed", reason="why")]
    seeds, failed = json.loads(json.dumps(compare_json(runs), allow_nan=False))
    assert seeds["final"] == pytest.approx(0.3)
    assert seeds["final_std"] == pytest.approx(0.02**0.5)
    assert (seeds["runs"], seeds["finished"], seeds["settings"]) == (2, 2, {"algorithm.name": "fedavg"})
    assert [member["seed"] for member in seeds["members"]] == [0, 1]
    assert (failed["final"], failed["failed"], failed["members"][0]["reason"]) == (None, 1, "why")


def test_rounds_of_runs_that_have_unlike_many(tmp_path):
    runs = [exact_run(tmp_path / str(rounds), [0.5] * rounds, rounds=rounds) for rounds in (1, 2)]
    (together,) = group(runs, ["algorithm.name"])
    assert progress(together) == "2"
