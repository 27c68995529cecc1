"""What charts show, whoever draws them (`figures.py`, the page): curves and their styles, and partitions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedntd.config.schema import Config
from fedntd.report.summary import Group, group, labels
from fedntd.runs.reader import Run
from fedntd.support.wording import SIZES, TIMES, axis_unit, show, thing

# Okabe and Ito's colours, which the colour-blind can tell apart, without those that are faint on white or on black
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
DASHES = ("", "6 3", "2 2")
MOST_CURVES = 14  # more than that no chart can tell apart
MOST_METHODS = len(PALETTE)  # in charts of several settings, where a method has its colour and a setting its dash


@dataclass(frozen=True)
class Curve:
    """A line of a chart, drawn alike in all of them: the mean of a group's finished runs, or one other run."""

    label: str
    runs: list[Run]
    colour: str
    dash: str  # as in SVG: lengths of line and gap
    method: str = ""  # as in its group
    facet: str = ""

    def values(self, name: str) -> tuple[list[int], np.ndarray, np.ndarray | None]:
        """The rounds in which `name` was measured in all runs; its mean there, and standard deviation if of several."""
        tables = [{r.round: getattr(r, name) for r in run.records if is_number(getattr(r, name))} for run in self.runs]
        rounds = [round for round in tables[0] if all(round in table for table in tables)]
        rows = np.array([[table[round] for round in rounds] for table in tables], dtype=float)
        return rounds, rows.mean(0), rows.std(0, ddof=1) if len(rows) > 1 else None


def curves(runs: Sequence[Run], by: Sequence[str] = (), groups: Sequence[Group] | None = None) -> list[Curve]:
    """Of more groups than a chart can show, those with the best final accuracy. `groups`, if they are at hand."""
    told = dict(zip((id(run) for run in runs), labels(runs), strict=True))
    lines: list[tuple[str, list[Run], Group]] = []
    chosen = best_groups(groups or group(runs, by))
    for g in chosen:
        if g.finished:
            lines.append((g.label, g.finished, g))
        if not (by and g.finished):
            lines += [(told[id(run)], [run], g) for run in g.runs if run.status != "finished"]
    lines = [line for line in lines if line[1][0].rounds] or lines  # what failed at once has nothing to draw
    finished_first = sorted(range(len(lines)), key=lambda i: lines[i][1][0].status != "finished")
    lines = [lines[i] for i in sorted(finished_first[: max(MOST_CURVES, len(chosen))])]
    methods = list(dict.fromkeys(g.method for *_, g in lines))
    facets = list(dict.fromkeys(g.facet for *_, g in lines))
    drawn = []
    for i, (label, members, g) in enumerate(lines):
        # one style after the other; or a colour for each method, and a dash for each of the settings that it was run in
        colour, turn = (methods.index(g.method), facets.index(g.facet)) if g.facet else (i, i // len(PALETTE))
        style = PALETTE[colour % len(PALETTE)], DASHES[turn % len(DASHES)]
        drawn.append(Curve(label, members, *style, g.method, g.facet))
    return drawn


def best_groups(groups: Sequence[Group], baseline: Callable[[Run], bool] = lambda _: False) -> list[Group]:
    """In their own order, but no more than charts can show; of methods in several settings, each that is chosen in all
    of its settings: the hardest of them would have none of the best groups, and nothing to be compared with. The best
    of the baseline's is among them."""
    found: dict[str | int, list[float]] = {}
    for g in groups:
        found.setdefault(g.method or id(g), []).append(-1.0 if g.mean("final") is None else g.means["final"])
    ranked = sorted(found, key=lambda name: sum(found[name]) / len(found[name]), reverse=True)
    chosen = ranked[: MOST_METHODS if any(g.facet for g in groups) else MOST_CURVES]
    named = {g.method or id(g) for g in groups if all(map(baseline, g.runs))}
    if named.isdisjoint(chosen):
        chosen[-1:] = [name for name in ranked if name in named][:1] or chosen[-1:]
    return [g for g in groups if (g.method or id(g)) in chosen]


@dataclass(frozen=True)
class Costs:
    """The axes of charts of cost: a unit for what was sent in both directions, and one for the time of a run."""

    traffic: tuple[str, float]  # its name, and how many bytes it has
    time: tuple[str, float]  # and how many seconds

    @staticmethod
    def of(groups: Sequence[Group]) -> "Costs":
        sent = [g.means["bytes_up"] + g.means["bytes_down"] for g in groups if g.means]
        seconds = [g.means["seconds"] for g in groups if g.means]
        return Costs(axis_unit(max(sent, default=0), SIZES), axis_unit(max(seconds, default=0), TIMES))


def is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def partition_title(config: Config) -> str:
    options = ", ".join(f"{key} = {show(value)}" for key, value in config.partition.options.items())
    name = thing(config.partition.name) + (f" ({options})" if options else "")
    return f"{thing(config.data.name)}, {name}, seed {config.dealing_seed}"


def distinct_partitions(runs: Sequence[Run]) -> list[Run]:
    """The first run with each partition."""
    found: dict[tuple[tuple[str, ...], bytes], Run] = {}
    for run in runs:
        if run.counts.size:  # a run that failed before the data was dealt has none
            found.setdefault((tuple(run.classes), run.counts.tobytes()), run)
    return list(found.values())
