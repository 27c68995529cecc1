"""One HTML page of runs that needs nothing else: styles, script and data are inside."""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from fedntd.config import Choice, flat
from fedntd.errors import FedntdError, require
from fedntd.plan import cohort
from fedntd.record import Run
from fedntd.report import summary
from fedntd.report.summary import HEADINGS, Curve, Group, figure, outcomes, show, thing

EXPLAINED = {
    "final": "accuracy on the test part after the last round",
    "best": "highest accuracy of any round",
    "last10": "mean accuracy of the last ten rounds",
    "ema": "moving average of the accuracy, which keeps 0.6 of the past at each round",
    "forgetting": "forgetting: how far the classes are, on average, below their best earlier accuracy; lower is better",
}


def write_report(runs: Sequence[Run], file: Path, title: str | None = None) -> Path:
    """The page is written aside and moved into place, so that a reader never meets half of it."""
    require(bool(runs), "a report needs at least one run")
    page = render(runs, title)
    aside = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(page, encoding="utf-8")
        os.replace(aside, file)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise FedntdError(f"{file} cannot be written: {error.strerror}") from error
    return file


def render(runs: Sequence[Run], title: str | None) -> str:
    from fedntd import __version__

    def text(name: str) -> str:
        return (files("fedntd.report") / name).read_text(encoding="utf-8")

    curves, groups, labels = summary.curves(runs), summary.group(runs), summary.labels(runs)
    partitions = summary.distinct_partitions(runs)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(text("template.html.jinja")).render(
        title=title or default_title(runs, groups),
        facts=facts(runs),
        runs=[{"label": label, "path": run.path} for label, run in zip(labels, runs, strict=True)],
        curves=curves,
        curve_of={run.path: i for i, curve in enumerate(curves) for run in curve.runs},
        several=any(len(g.runs) > 1 for g in groups),
        cards=cards(groups),
        headings=HEADINGS,
        explained=EXPLAINED,
        summary=[summary_row(g, groups) for g in groups],
        single=[summary_row(Group(label, [run]), []) for label, run in zip(labels, runs, strict=True)],
        reasons=summary.reasons(runs),
        differing=settings(runs, summary.differing(runs)),
        settings=settings(runs, unique(key for run in runs for key in flat(run.config))),
        costs=[cost_row(run) for run in runs],
        environment=environments(runs),
        partitions=[
            {"title": summary.partition_title(run.config), "most": int(run.counts.max())} for run in partitions
        ],
        css=text("report.css"),
        js=text("report.js"),
        data=embedded(
            {
                "curves": [curve_data(curve) for curve in curves],
                "classAccuracy": [
                    {"rows": run.classes, "z": [clean(record.class_accuracy, 4) for record in run.records]}
                    for run in runs
                ],
                "partitions": [{"rows": run.classes, "z": run.counts.tolist()} for run in partitions],
            }
        ),
        version=__version__,
    )


# --- what was run -----------------------------------------------------------------------------------------------


def default_title(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    what = " and ".join(g.label for g in groups) if len(groups) <= 2 else f"{len(runs)} runs"
    return f"{what} on {' and '.join(unique(thing(run.config.data.name) for run in runs))}"


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The settings people ask for first; where runs differ, all values."""

    def choice(made: Choice) -> str:
        return " ".join([thing(made.name), *(f"{key}={show(value)}" for key, value in made.options.items())])

    def of(run: Run) -> dict[str, str]:
        config, federation = run.config, run.config.federation
        sampled = len(cohort(config.seed, 1, federation.clients, federation.ratio))
        return {
            "Dataset": thing(config.data.name),
            "Partition": choice(config.partition),
            "Clients": f"{federation.clients}, {sampled} a round",
            "Rounds": str(federation.rounds),
            "Local epochs": str(federation.local_epochs),
            "Batch size": str(federation.batch_size),
            "Learning rate": show(config.optimiser.lr),
            "Model": choice(config.model),
        }

    tables = [of(run) for run in runs]
    return [(name, " / ".join(unique(table[name] for table in tables))) for name in tables[0]]


def unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


# --- tables -----------------------------------------------------------------------------------------------------


def cards(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The headline: of several runs one card each; of a single one, a card for each of its figures."""

    def card(g: Group, key: str, name: str, note: str, path: Path | None = None) -> dict[str, Any]:
        mean, std = g.mean(key), g.std(key)
        notes = [note] if std is None else [f"± {figure(key, std)}", note]
        unit = "" if mean is None or key == "forgetting" else "%"
        told = outcomes(g) if key == "final" else []
        return {"name": name, "value": figure(key, mean), "unit": unit, "notes": notes, "path": path, "outcomes": told}

    if len(groups) == 1:
        notes = {"final": "test accuracy", "best": "of all rounds", "last10": "mean", "ema": "moving average"}
        return [card(groups[0], key, name, notes.get(key, "forgetting")) for key, name in HEADINGS.items()]
    F = "forgetting"
    return [card(g, "final", g.label, f"F {figure(F, g.mean(F))}", (g.finished or g.runs)[0].path) for g in groups]


def cell(text: str, sort: float | None, spread: str = "", best: bool = False) -> dict[str, Any]:
    return {"text": text, "sort": "" if sort is None else sort, "spread": spread, "best": best}


def summary_row(g: Group, groups: Sequence[Group]) -> dict[str, Any]:
    cells = []
    for key in HEADINGS:
        mean, std = g.mean(key), g.std(key)
        spread = "" if std is None else f"± {figure(key, std)}"
        cells.append(cell(figure(key, mean), mean, spread, summary.is_best(key, g, groups)))
    counted = g.finished or g.runs
    seconds = float(np.mean([summary.summarise(run).seconds for run in counted]))
    cells += [cell(summary.progress(g), len(counted[0].records)), cell(summary.duration(seconds), seconds)]
    return {"label": g.label, "path": counted[0].path, "count": g.count, "cells": cells, "outcomes": outcomes(g)}


def cost_row(run: Run) -> list[dict[str, Any]]:
    s = summary.summarise(run)
    rounds = max(1, s.rounds)
    traffic = [cell(size(count), count) for count in (s.bytes_down, s.bytes_up, (s.bytes_down + s.bytes_up) / rounds)]
    return traffic + [cell(summary.duration(seconds), seconds) for seconds in (s.seconds, s.seconds / rounds)]


def size(count: float) -> str:
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.2f} {unit}"
    return f"{count:.0f} B"


def settings(runs: Sequence[Run], keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    tables = [flat(run.config) for run in runs]
    return [(key, [show(table[key]) if table.get(key) is not None else "–" for table in tables]) for key in keys]


def environments(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    def told(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)

    keys = unique(key for run in runs for key in run.environment)
    return [("folder", [run.name for run in runs])] + [
        (key, [told(run.environment.get(key)) for run in runs]) for key in keys
    ]


# --- data for the charts ----------------------------------------------------------------------------------------


def curve_data(curve: Curve) -> dict[str, Any]:
    """Each measure as [places, means, standard deviations], for the places where it was measured."""
    data: dict[str, Any] = {
        "label": curve.label,
        "colour": curve.colour,
        "dash": curve.dash,
        "status": curve.runs[0].status,
    }
    around = [f"global_{side}_{when}" for side in ("in", "out") for when in ("before", "after")]
    for name in ("accuracy", "forgetting", "similarity", *around):
        rounds, mean, std = curve.values(name)
        data[name] = [rounds, clean(mean), None if std is None else clean(std)]
    for name in ("in_local", "out_local"):  # their spread is that over clients
        rounds, mean, _ = curve.values(name)
        data[name] = [rounds, clean(mean), clean(curve.values(f"{name}_std")[1])]
    traffic = curve.values("bytes_down")[1] + curve.values("bytes_up")[1]
    data["traffic"] = [clean(np.cumsum(traffic) / 1e9), *data["accuracy"][1:]]
    data["time"] = [clean(np.cumsum(curve.values("seconds")[1]) / 60), *data["accuracy"][1:]]
    return data


def clean(values: Iterable[float], digits: int = 7) -> list[float | None]:
    """No more digits than a chart can tell apart; JSON has no NaN."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def embedded(value: Any) -> str:
    """JSON that no text in it can end early: in a script element, only "<" means something to the browser."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
