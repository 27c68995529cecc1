"""What the charts show, shared by `figures.py` and the HTML page: curves with their styles, and partitions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedntd.config.schema import Config
from fedntd.report.summary import Group, group, labels
from fedntd.runs.reader import Run
from fedntd.support.wording import SIZES, TIMES, axis_unit, show, thing

# The colour-blind safe palette of Okabe and Ito, without the colours that are faint on white or on black
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
DASHES = ("", "6 3", "2 2")
MOST_CURVES = 14  # more could not be told apart in one chart
MOST_METHODS = len(PALETTE)  # in charts of several settings: a colour per method, a dash pattern per setting


@dataclass(frozen=True)
class Curve:
    """A line with the same style in all charts: the mean of a group's finished runs, or a single unfinished run."""

    label: str
    runs: list[Run]
    colour: str
    dash: str  # SVG dash pattern: lengths of line and gap
    method: str = ""  # of its group
    facet: str = ""

    def values(self, name: str) -> tuple[list[int], np.ndarray, np.ndarray | None]:
        """Rounds in which all runs measured `name`, its mean, and its standard deviation (None for a single run)."""
        tables = [{r.round: getattr(r, name) for r in run.records if is_number(getattr(r, name))} for run in self.runs]
        rounds = [round for round in tables[0] if all(round in table for table in tables)]
        rows = np.array([[table[round] for round in rounds] for table in tables], dtype=float)
        return rounds, rows.mean(0), rows.std(0, ddof=1) if len(rows) > 1 else None


def curves(runs: Sequence[Run], by: Sequence[str] = (), groups: Sequence[Group] | None = None) -> list[Curve]:
    """The curves to draw. If there are too many groups for a chart, those with the best final accuracy.

    Pass `groups` if they are computed already.
    """
    label_of = dict(zip((id(run) for run in runs), labels(runs), strict=True))
    lines: list[tuple[str, list[Run], Group]] = []
    chosen = best_groups(groups or group(runs, by))
    for g in chosen:
        if g.finished:
            lines.append((g.label, g.finished, g))
        if not (by and g.finished):
            lines += [(label_of[id(run)], [run], g) for run in g.runs if run.status != "finished"]
    lines = [line for line in lines if line[1][0].rounds] or lines  # runs that failed in round 1 have nothing to draw
    finished_first = sorted(range(len(lines)), key=lambda i: lines[i][1][0].status != "finished")
    lines = [lines[i] for i in sorted(finished_first[: max(MOST_CURVES, len(chosen))])]
    methods = list(dict.fromkeys(g.method for *_, g in lines))
    facets = list(dict.fromkeys(g.facet for *_, g in lines))
    drawn = []
    for i, (label, members, g) in enumerate(lines):
        # With facets, a colour per method and a dash pattern per setting; otherwise all styles in turn.
        colour, turn = (methods.index(g.method), facets.index(g.facet)) if g.facet else (i, i // len(PALETTE))
        style = PALETTE[colour % len(PALETTE)], DASHES[turn % len(DASHES)]
        drawn.append(Curve(label, members, *style, g.method, g.facet))
    return drawn


def best_groups(groups: Sequence[Group], baseline: Callable[[Run], bool] = lambda _: False) -> list[Group]:
    """The groups with the best final accuracy, as many as charts can show, in their original order.

    With facets, whole methods are chosen by their mean over the settings, so that a hard setting still has groups to
    compare. The best method of the baseline is always included.
    """
    scores: dict[str | int, list[float]] = {}
    for g in groups:
        scores.setdefault(g.method or id(g), []).append(-1.0 if g.mean("final") is None else g.means["final"])
    ranked = sorted(scores, key=lambda name: sum(scores[name]) / len(scores[name]), reverse=True)
    chosen = ranked[: MOST_METHODS if any(g.facet for g in groups) else MOST_CURVES]
    baselines = {g.method or id(g) for g in groups if all(map(baseline, g.runs))}
    if baselines.isdisjoint(chosen):
        chosen[-1:] = [name for name in ranked if name in baselines][:1] or chosen[-1:]
    return [g for g in groups if (g.method or id(g)) in chosen]


@dataclass(frozen=True)
class Costs:
    """Units of the cost axes: traffic in both directions, and time of a run."""

    traffic: tuple[str, float]  # name of the unit, bytes in it
    time: tuple[str, float]  # name of the unit, seconds in it

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
    first: dict[tuple[tuple[str, ...], bytes], Run] = {}
    for run in runs:
        if run.counts.size:  # empty if the run failed before the data was partitioned
            first.setdefault((tuple(run.classes), run.counts.tobytes()), run)
    return list(first.values())
