"""LaTeX tables have the same content as the other tables."""

import re

from make_runs import exact_run, methods_by_partitions

from fedntd.report.latex import compare_latex
from fedntd.report.statistics import extras


def rows_of(text: str) -> list[list[str]]:
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0].replace("\\midrule\n", "")
    return [re.split(" & ", line.removesuffix(r" \\")) for line in body.strip().splitlines()]


def test_runs_and_their_figures(tmp_path):
    runs = [exact_run(tmp_path / f"a{i}", [a], seed=i) for i, a in enumerate((0.4, 0.6))]
    runs.append(exact_run(tmp_path / "b", [0.7], algorithm="fedntd", algorithm__beta=0.5))
    runs.append(exact_run(tmp_path / "c", [-0.1], status="interrupted", algorithm="fedprox"))
    runs.append(exact_run(tmp_path / "d", [0.9], status="failed", algorithm="moon"))
    text = compare_latex(runs)
    head, *rows = rows_of(text)
    assert head == ["run", "final", "best", "last 10", "EMA 0.6", "F"]
    assert rows[0][0::5] == ["fedavg", r"\textbf{0.250} {\scriptsize $\pm$ 0.071}"]
    assert rows[0][1] == r"50.00 {\scriptsize $\pm$ 14.14}"
    assert rows[1][:2] == ["fedntd", r"\textbf{70.00}"]
    assert rows[2][:2] == ["fedprox (interrupted)", "$-$10.00"]
    assert rows[3][:2] == ["moon (failed (round 2))", "--"]
    assert r"mean $\pm$ standard deviation over seeds. Without 1 run of 5 that failed.}" in text
    assert text.count("&") == 5 * len([head, *rows])
    assert text.isascii()


def test_methods_by_settings(tmp_path):
    runs = methods_by_partitions(tmp_path)
    assert rows_of(compare_latex(runs)) == [
        ["method", "s=2", "s=5"],
        ["fedntd", r"\textbf{50.00}", "70.00"],
        ["fedavg", "30.00", r"\textbf{80.00}"],
    ]
    columns = extras(runs, "fedavg", 0.75)
    head, *rows = rows_of(compare_latex(runs, extras=columns))  # which need a row for each
    assert head == ["run", "final", "last 10", "F", "vs fedavg", r"to 75 \%"]
    assert [(row[0], row[4]) for row in rows][3] == ("fedntd s=5", r"$-$10.00 {\scriptsize n=1}")
