"""One self-contained HTML page about runs: styles, script and data are inside."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from fedntd.config.cohort import cohort
from fedntd.config.registry import Choice
from fedntd.errors import require
from fedntd.report import charts, compare, statistics, summary
from fedntd.report.charts import Costs, Curve
from fedntd.report.compare import Best, Extra, outcomes
from fedntd.report.statistics import HeatMap
from fedntd.report.summary import HEADINGS, Group
from fedntd.runs.reader import Run
from fedntd.support.files import put
from fedntd.support.wording import duration, figure, show, size, thing

EXPLAINED = {
    "final": "accuracy on the test part after the last round",
    "best": "highest accuracy of any round",
    "last10": "mean accuracy of the last ten rounds",
    "ema": "moving average of the accuracy, which keeps 0.6 of the past at each round",
    "forgetting": "forgetting: how far the classes are, on average, below their best earlier accuracy; lower is better",
}


MANY = 12  # with more runs, per-run details are shortened or folded away


@dataclass(frozen=True)
class View:
    """Options of the report: settings to group by, a baseline, a target accuracy, and extra pictures."""

    by: Sequence[str] = ()
    baseline: str | None = None
    target: float | None = None
    pictures: Sequence[tuple[str, str, str]] = ()  # heading, PNG as base64, caption


def write_report(runs: Sequence[Run], file: Path, title: str | None = None, view: View | None = None) -> Path:
    """Write one self-contained HTML page about these runs, and return its path."""
    require(bool(runs), "a report needs at least one run")
    page = render(runs, title, view or View())
    put(file, page)
    return file


def render(runs: Sequence[Run], title: str | None, view: View) -> str:
    from fedntd import __version__

    def text(name: str) -> str:
        return (files("fedntd.report") / name).read_text(encoding="utf-8")

    groups, labels = summary.group(runs, view.by), summary.labels(runs)
    chosen = charts.best_groups(groups, statistics.is_baseline(runs, view.baseline))
    curves = charts.curves(runs, view.by, chosen)
    partitions = charts.distinct_partitions(runs)
    many = len(runs) > MANY
    best, costs = compare.best_shown(groups), Costs.of(groups)
    extras = statistics.extras(runs, view.baseline, view.target)
    headings = compare.headings(extras)
    label_of = dict(zip((id(run) for run in runs), labels, strict=True))
    curve_of = {run.path: i for i, curve in enumerate(curves) for run in curve.runs}
    panels = [curve.runs[0] for curve in curves] if many else [run for run in runs if run.path in curve_of]
    differing = summary.differing(runs)
    keys = unique(key for run in runs for key in run.settings)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(text("template.html.jinja")).render(
        title=title or default_title(runs, groups),
        facts=facts(runs),
        runs=[{"label": label, "path": run.path} for label, run in zip(labels, runs, strict=True)],
        panels=[{"label": label_of[id(run)], "path": run.path} for run in panels],
        curves=curves,
        curve_of=curve_of,
        local_measured=any(curve.values("in_local")[0] for curve in curves),
        left_out=len(groups) - len(chosen),
        many=many,
        several=any(len(g.runs) > 1 for g in groups),
        by=view.by,
        facets=unique(g.facet for g in groups if g.facet),
        pivot=pivot(groups, best),
        cards=cards(chosen),
        headings=headings,
        all_headings=HEADINGS,
        explained=EXPLAINED,
        extras=[extra.heading for extra in extras],
        summary=[summary_row(g, best, extras, headings) for g in groups],
        baseline=view.baseline,
        target=view.target,
        single=[summary_row(Group(label, [run]), {}) for label, run in zip(labels, runs, strict=True)],
        reasons=compare.reasons(runs),
        heat=heat_table(statistics.heat_map(runs, view.by)),
        pictures=view.pictures,
        differing=settings(runs, differing),
        settings=settings(runs[:1], [k for k in keys if k not in differing]) if many else settings(runs, keys),
        costs=[cost_row(run) for run in runs],
        axes=costs,
        environment=environments(runs, many),
        partitions=[
            {"title": charts.partition_title(run.config), "most": int(run.counts.max())}
            for run in partitions[: charts.MOST_CURVES]
        ],
        css=text("report.css"),
        js=text("report.js"),
        data=embedded(
            {
                "curves": [curve_data(curve, costs) for curve in curves],
                "points": points(groups, curves, costs),
                "classAccuracy": [
                    {"rows": run.classes, "z": [clean(record.class_accuracy, 4) for record in run.records]}
                    for run in panels
                ],
                "partitions": [
                    {"rows": run.classes, "z": run.counts.tolist()} for run in partitions[: charts.MOST_CURVES]
                ],
            }
        ),
        version=__version__,
    )


# --- what was run -----------------------------------------------------------------------------------------------


def default_title(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    what = " and ".join(g.label for g in groups) if len(groups) <= 2 else f"{len(runs)} runs"
    return f"{what} on {' and '.join(unique(thing(run.config.data.name) for run in runs))}"


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The main settings; where runs differ, up to five of their values."""

    def text(choice: Choice) -> str:
        return " ".join([thing(choice.name), *(f"{key}={show(value)}" for key, value in choice.options.items())])

    def facts_of(run: Run) -> dict[str, str]:
        config, federation = run.config, run.config.federation
        sampled = len(cohort(config.seed, 1, federation.clients, federation.ratio))
        return {
            "Dataset": thing(config.data.name),
            "Partition": text(config.partition),
            "Clients": f"{federation.clients}, {sampled} a round",
            "Rounds": str(federation.rounds),
            "Local epochs": str(federation.local_epochs),
            "Batch size": str(federation.batch_size),
            "Learning rate": show(config.optimiser.lr),
            "Model": text(config.model),
        }

    tables = [facts_of(run) for run in runs]
    values = {name: unique(table[name] for table in tables) for name in tables[0]}
    more = {name: f" and {len(texts) - 4} more" if len(texts) > 5 else "" for name, texts in values.items()}
    return [(name, " / ".join(texts[: 4 if more[name] else 5]) + more[name]) for name, texts in values.items()]


def unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


# --- tables -----------------------------------------------------------------------------------------------------


def cards(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The headline: one card per group, or for a single group one card per figure."""

    def card(g: Group, key: str, name: str, note: str, path: Path | None = None) -> dict[str, Any]:
        mean, std = g.mean(key), g.std(key)
        notes = [note] if std is None else [f"± {figure(key, std)}", note]
        unit = "" if mean is None or key == "forgetting" else "%"
        ends = outcomes(g) if key == "final" else []
        return {"name": name, "value": figure(key, mean), "unit": unit, "notes": notes, "path": path, "outcomes": ends}

    if len(groups) == 1:
        notes = {"final": "test accuracy", "best": "of all rounds", "last10": "mean", "ema": "moving average"}
        return [card(groups[0], key, name, notes.get(key, "forgetting")) for key, name in HEADINGS.items()]
    F = "forgetting"
    return [card(g, "final", g.label, f"F {figure(F, g.mean(F))}", (g.finished or g.runs)[0].path) for g in groups]


def cell(text: str, sort: float | None, spread: str = "", best: bool = False) -> dict[str, Any]:
    return {"text": text, "sort": "" if sort is None else sort, "spread": spread, "best": best}


def summary_row(
    g: Group, best: Best, extras: Sequence[Extra] = (), headings: Iterable[str] = HEADINGS
) -> dict[str, Any]:
    cells = []
    for key in headings:
        mean, std = g.mean(key), g.std(key)
        spread = "" if std is None else f"± {figure(key, std)}"
        cells.append(cell(figure(key, mean), mean, spread, compare.is_best(key, g, best)))
    counted = g.finished or g.runs
    seconds = sum(sum(run.columns["seconds"]) for run in counted) / len(counted)
    cells += [cell(compare.progress(g), counted[0].rounds), cell(duration(seconds) if seconds else "–", seconds)]
    for extra in extras:
        first, _, rest = extra.text(g).partition("\n")
        value = next((v for v in extra.values(g).values() if isinstance(v, float)), None)
        cells.append(cell(first, value, rest.replace("\n", " ")))
    return {
        "label": g.label,
        "path": counted[0].path,
        "count": g.count,
        "cells": cells,
        "outcomes": outcomes(g),
        "facet": g.facet,
    }


def pivot(groups: Sequence[Group], best: Best) -> list[tuple[str, Path, list[dict[str, Any]]]]:
    """Methods by settings, best method first: (method, path of one of its runs, cells). Empty without facets."""
    table: dict[str, dict[str, Group]] = {}
    facets = unique(g.facet for g in groups if g.facet)
    for g in groups if facets else ():
        row = table.setdefault(g.method, {})
        if g.finished or g.facet not in row:
            row[g.facet] = g

    def entry(g: Group | None) -> dict[str, Any]:
        if g is None or not g.finished:
            return cell(", ".join(outcomes(g)) if g else "–", None)
        mean, std = g.mean("final"), g.std("final")
        spread = "" if std is None else f"± {figure('final', std)}"
        return cell(figure("final", mean), mean, spread, compare.is_best("final", g, best))

    def score(method: str) -> float:
        return sum(g.mean("final") or 0.0 for g in table[method].values() if g.finished) / len(facets)

    return [
        (method, (first.finished or first.runs)[0].path, [entry(table[method].get(facet)) for facet in facets])
        for method in sorted(table, key=score, reverse=True)
        for first in [next(iter(table[method].values()))]
    ]


def cost_row(run: Run) -> list[dict[str, Any]]:
    s = summary.summarise(run)
    rounds = max(1, s.rounds)
    traffic = [cell(size(count), count) for count in (s.bytes_down, s.bytes_up, (s.bytes_down + s.bytes_up) / rounds)]
    seconds = run.columns["seconds"]
    first = seconds[0] if seconds else None
    median = float(np.median(seconds[1:])) if seconds[1:] else None  # a resumed run compiles in a later round, too
    times = [cell("–" if time is None else duration(time), time) for time in (s.seconds, first, median)]
    return traffic + times


def settings(runs: Sequence[Run], keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    tables = [run.settings for run in runs]
    return [(key, [show(table[key]) if table.get(key) is not None else "–" for table in tables]) for key in keys]


def environments(runs: Sequence[Run], many: bool) -> list[tuple[str, list[str]]]:
    """Rows of the environment table; for many runs, one column with the distinct values."""

    def text(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)

    keys = unique(key for run in runs for key in run.environment)
    rows = [(key, [text(run.environment.get(key)) for run in runs]) for key in keys]
    if many:
        distinct = [(key, unique(values)) for key, values in rows]
        return [(key, [" / ".join(v) if len(v) <= 3 else f"{v[0]} … {v[-1]}"]) for key, v in distinct]
    return [("folder", [run.name for run in runs]), *rows]


def heat_table(heat: HeatMap | None) -> dict[str, Any] | None:
    """The cells of a heat map: text, number of runs, and position between the lowest and the highest value (0 to 1)."""
    if heat is None:
        return None
    low, high = float(np.nanmin(heat.values)), float(np.nanmax(heat.values))

    def entry(value: float, count: int) -> dict[str, Any]:
        if np.isnan(value):
            return {"text": "–", "count": 0, "share": None}
        return {"text": figure("final", value), "count": int(count), "share": (value - low) / ((high - low) or 1)}

    cells = [
        [entry(value, count) for value, count in zip(values, counts, strict=True)]
        for values, counts in zip(heat.values, heat.counts, strict=True)
    ]
    return {
        "rows": heat.rows,
        "columns": heat.columns,
        "column_values": heat.column_values,
        "cells": list(zip(heat.row_values, cells, strict=True)),
        "low": figure("final", low),
        "high": figure("final", high),
    }


# --- data for the charts ----------------------------------------------------------------------------------------


def curve_data(curve: Curve, costs: Costs) -> dict[str, Any]:
    """Each measure as [x, means, standard deviations], where it was measured."""
    data: dict[str, Any] = {
        "label": curve.label,
        "colour": curve.colour,
        "dash": curve.dash,
        "method": curve.method,
        "facet": curve.facet,
        "status": curve.runs[0].status,
    }
    around = [f"global_{side}_{when}" for side in ("in", "out") for when in ("before", "after")]
    for name in ("accuracy", "forgetting", "similarity", *around):
        rounds, mean, std = curve.values(name)
        data[name] = [rounds, clean(mean), None if std is None else clean(std)]
    for name in ("in_local", "out_local"):  # their deviation is over clients
        rounds, mean, _ = curve.values(name)
        data[name] = [rounds, clean(mean), clean(curve.values(f"{name}_std")[1])]
    traffic = curve.values("bytes_down")[1] + curve.values("bytes_up")[1]
    data["traffic"] = [clean(np.cumsum(traffic) / costs.traffic[1]), *data["accuracy"][1:]]
    data["time"] = [clean(np.cumsum(curve.values("seconds")[1]) / costs.time[1]), *data["accuracy"][1:]]
    return data


def points(groups: Sequence[Group], curves: Sequence[Curve], costs: Costs) -> list[dict[str, Any]]:
    """Cost and final accuracy of each group, for the charts of accuracy against cost."""
    colours = {id(run): curve.colour for curve in curves for run in curve.runs}
    return [
        {
            "label": g.label,
            "colour": colours.get(id(g.finished[0]), "#8A8A8A"),
            "hollow": g.facet != groups[0].facet,
            "accuracy": g.means["final"],
            "spread": g.std("final"),
            "time": g.means["seconds"] / costs.time[1],
            "traffic": (g.means["bytes_up"] + g.means["bytes_down"]) / costs.traffic[1],
        }
        for g in groups
        if g.finished and g.values["final"]
    ]


def clean(values: Iterable[float], digits: int = 7) -> list[float | None]:
    """Round to the digits that a chart can show; NaN becomes None, as JSON has no NaN."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def embedded(value: Any) -> str:
    """JSON for a script element. Escapes "<", so that no text in it can close the element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
