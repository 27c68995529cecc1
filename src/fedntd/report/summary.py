"""The figures of runs, what the runs differ in, and the table that compares them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedntd.config import Config
from fedntd.errors import did_you_mean, require
from fedntd.metrics import moving_average
from fedntd.record import Run

HEADINGS = {"final": "final", "best": "best", "last10": "last 10", "ema": "EMA 0.6", "forgetting": "F"}
ASIDE = ("workers", "checkpoint_seconds", "device", "measure.local_every")  # they do not change what is trained
# Okabe and Ito's colours, which the colour-blind can tell apart, without those that are faint on white or on black
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
DASHES = ("", "6 3", "2 2")
METHOD = ("algorithm.", "server.", "robust.", "auxiliary.")  # settings that make a method; the rest is where it is run
MOST_FACETS = 6


# --- one run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Accuracies are shares of 1; None where there is no record yet."""

    final: float | None
    best: float | None
    last10: float | None  # mean of the last ten rounds
    ema: float | None  # moving average that keeps 0.6, the authors' table figure
    forgetting: float | None
    rounds: int  # done
    seconds: float
    bytes_up: int
    bytes_down: int
    status: str
    reason: str


def summarise(run: Run) -> Summary:
    columns = run.columns
    accuracy = columns["accuracy"]
    return Summary(
        final=accuracy[-1] if accuracy else None,
        best=max(accuracy) if accuracy else None,
        last10=float(np.mean(accuracy[-10:])) if accuracy else None,
        ema=moving_average(accuracy) if accuracy else None,
        forgetting=columns["forgetting"][-1] if accuracy else None,
        rounds=run.rounds,
        seconds=sum(columns["seconds"]),
        bytes_up=int(sum(columns["bytes_up"])),
        bytes_down=int(sum(columns["bytes_down"])),
        status=run.status,
        reason=run.reason,
    )


# --- what differs -----------------------------------------------------------------------------------------------


def differing(runs: Sequence[Run]) -> list[str]:
    """The config keys whose values are not the same in all runs."""
    tables = [run.settings for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def labels(runs: Sequence[Run]) -> list[str]:
    """Short and unique: the algorithm and what differs, with the seed or the folder only where that is not enough."""
    names = labels_without_seed(runs)
    details: list[Callable[[Run], str]] = [
        lambda run: f"seed={run.config.seed}",
        lambda run: run.name,
        lambda run: str(run.path),
    ]
    for detail in details:
        told = [detail(run) for run in runs]
        among: dict[str, set[str]] = {}
        for name, t in zip(names, told, strict=True):
            among.setdefault(name, set()).add(t)
        names = [f"{name} {t}" if len(among[name]) > 1 else name for name, t in zip(names, told, strict=True)]
    counts, seen = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} #{seen[name]}" if counts[name] > 1 else name
    return names


def labels_without_seed(runs: Sequence[Run]) -> list[str]:
    return [" ".join(filter(None, pair)) for pair in methods_and_rest(runs)]


def methods_and_rest(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Of each run, as far as runs differ, its method and the other settings: ("fedntd beta=1", "sharding s=2")."""
    tables = [run.settings for run in runs]
    keys = [key for key in differing(runs) if key not in ("algorithm.name", "seed", *ASIDE)]
    keys.sort(key=lambda key: not key.startswith("algorithm."))
    endings = [key.split(".")[-1] for key in keys]
    values: dict[tuple[str, Any], set[str]] = {}  # of a key, among the peers of a run

    def peers(key: str, table: dict[str, Any]) -> tuple[str, Any]:
        """Runs of the same algorithm (partition, model), if the key is an option of it."""
        name = f"{key.split('.')[0]}.name"
        return key, None if key == name else table.get(name)

    for table in tables:
        for key in keys:
            values.setdefault(peers(key, table), set()).add(repr(table.get(key)))

    def tells(key: str, table: dict[str, Any]) -> bool:
        return key in table and len(values[peers(key, table)]) > 1

    def part(key: str, ending: str, value: Any) -> str:
        if key in ("server.name", "auxiliary.name"):  # most methods have neither
            return "" if value in ("none", "") else f"{key.split('.')[0]}={thing(value)}"
        return thing(value) if ending == "name" else f"{ending if endings.count(ending) == 1 else key}={show(value)}"

    def both(table: dict[str, Any]) -> tuple[str, str]:
        parts: tuple[list[str], list[str]] = [thing(table["algorithm.name"])], []
        for key, end in zip(keys, endings, strict=True):
            if tells(key, table):
                parts[not key.startswith(METHOD)].append(part(key, end, table[key]))
        return " ".join(filter(None, parts[0])), " ".join(parts[1])

    return [both(table) for table in tables]


def show(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def thing(name: str) -> str:
    """Of an import path "package.module:Thing", the thing."""
    return name.split(":")[-1]


# --- runs of several seeds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. A run that is under way or was interrupted stands by itself."""

    label: str
    runs: list[Run]
    # where several methods were run in several settings: its method, and its settings (else empty)
    method: str = ""
    facet: str = ""

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.status == "failed"]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Of each figure, one value a run that counts: those that finished; if none has, what there is of the others. A
        failed run never counts."""
        whole = self.finished or [run for run in self.runs if run.status != "failed"]
        counted = [summarise(run) for run in whole if run.rounds]
        keys = (*HEADINGS, "rounds", "seconds", "bytes_up", "bytes_down")
        return {key: [getattr(s, key) for s in counted] for key in keys}

    @property
    def count(self) -> str:
        return f"{len(self.runs) - len(self.failed)}/{len(self.runs)}" if self.failed else str(len(self.runs))

    @cached_property
    def means(self) -> dict[str, float]:
        return {key: float(np.mean(values)) for key, values in self.values.items() if values}

    def mean(self, key: str) -> float | None:
        return self.means.get(key)

    def std(self, key: str) -> float | None:
        """Sample standard deviation; None for fewer than two finished runs."""
        return float(np.std(self.values[key], ddof=1)) if len(self.values[key]) > 1 else None


def group(runs: Sequence[Run], by: Sequence[str] = ()) -> list[Group]:
    """Runs that differ only in their seed; or `by` some settings, all runs that have the same values of these."""
    if by:
        return group_by(runs, by)
    groups: dict[str, list[int]] = {}
    taken: set[tuple[str, str, int]] = set()
    for i, run in enumerate(runs):
        key = repr({k: v for k, v in run.settings.items() if k not in ("seed", *ASIDE)})
        again = (key, run.status, run.config.seed) in taken  # one seed run twice is no second sample
        taken.add((key, run.status, run.config.seed))
        if again or run.status not in ("finished", "failed"):
            key = f"{key} {i}"
        groups.setdefault(key, []).append(i)
    own, pairs = labels(runs), methods_and_rest(runs)
    shared = [" ".join(filter(None, pair)) for pair in pairs]
    alike = Counter(shared[members[0]] for members in groups.values())
    names = [shared[m[0]] if alike[shared[m[0]]] == 1 or len(m) > 1 else own[m[0]] for m in groups.values()]
    made = [Group(name, [runs[i] for i in m]) for name, m in zip(names, groups.values(), strict=True)]
    return faceted(made, [pairs[m[0]] for m in groups.values()])


def faceted(groups: list[Group], pairs: list[tuple[str, str]]) -> list[Group]:
    """Several methods in several settings: those of one setting stand together, to be compared with each other."""
    methods, facets = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    is_list = len(set(pairs)) <= max(len(methods), len(facets))
    if is_list or len(methods) < 2 or len(facets) < 2 or len(facets) > MOST_FACETS or "" in facets:
        return groups
    told = [replace(g, method=method, facet=facet) for g, (method, facet) in zip(groups, pairs, strict=True)]
    return sorted(told, key=lambda g: facets.index(g.facet))


def group_by(runs: Sequence[Run], by: Sequence[str]) -> list[Group]:
    known = dict.fromkeys(key for run in runs for key in run.settings)
    for key in by:
        require(key in known, f"--by {key}: no run has such a setting; {did_you_mean(key, known)}")
    endings = [key.split(".")[-1] for key in by]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        parts = []
        for key, ending in zip(by, endings, strict=True):
            value = run.settings.get(key)
            short = ending if endings.count(ending) == 1 else key
            parts += [] if value is None else [thing(value)] if ending == "name" else [f"{short}={show(value)}"]
        groups.setdefault(" ".join(parts) or "other", []).append(run)
    return [Group(label, members) for label, members in groups.items()]


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


MOST_CURVES = 14  # more than that no chart can tell apart


def curves(runs: Sequence[Run], by: Sequence[str] = (), groups: Sequence[Group] | None = None) -> list[Curve]:
    """Of more groups than a chart can show, those with the best final accuracy. `groups`, if they are at hand."""
    told = dict(zip((id(run) for run in runs), labels(runs), strict=True))
    lines: list[tuple[str, list[Run], Group]] = []
    for g in best_groups(groups or group(runs, by)):
        if g.finished:
            lines.append((g.label, g.finished, g))
        if not (by and g.finished):
            lines += [(told[id(run)], [run], g) for run in g.runs if run.status != "finished"]
    lines = lines[:MOST_CURVES]
    methods = list(dict.fromkeys(g.method for *_, g in lines))
    facets = list(dict.fromkeys(g.facet for *_, g in lines))
    drawn = []
    for i, (label, members, g) in enumerate(lines):
        # one style after the other; or a colour for each method, and a dash for each of the settings that it was run in
        colour, turn = (methods.index(g.method), facets.index(g.facet)) if g.facet else (i, i // len(PALETTE))
        style = PALETTE[colour % len(PALETTE)], DASHES[turn % len(DASHES)]
        drawn.append(Curve(label, members, *style, g.method, g.facet))
    return drawn


def best_groups(groups: Sequence[Group]) -> list[Group]:
    """In their own order, but no more than a chart can show."""
    ranked = sorted(groups, key=lambda g: -1.0 if g.mean("final") is None else g.means["final"], reverse=True)
    chosen = {id(g) for g in ranked[:MOST_CURVES]}
    return [g for g in groups if id(g) in chosen]


def is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def partition_title(config: Config) -> str:
    options = ", ".join(f"{key} = {show(value)}" for key, value in config.partition.options.items())
    seed = config.seed if config.partition_seed is None else config.partition_seed
    name = thing(config.partition.name) + (f" ({options})" if options else "")
    return f"{thing(config.data.name)}, {name}, seed {seed}"


def distinct_partitions(runs: Sequence[Run]) -> list[Run]:
    """The first run with each partition."""
    found: dict[tuple[tuple[str, ...], bytes], Run] = {}
    for run in runs:
        if run.counts.size:  # a run that failed before the data was dealt has none
            found.setdefault((tuple(run.classes), run.counts.tobytes()), run)
    return list(found.values())


# --- as a table -------------------------------------------------------------------------------------------------


def figure(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if key == "forgetting" else f"{100 * value:.2f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.2f} {unit}"
    return f"{count:.0f} B"


Best = Mapping[tuple[str, str], float]  # by facet and figure


def best_shown(groups: Sequence[Group]) -> Best:
    """Of each figure the best value among groups with a finished run, as far as the digits shown tell; where several
    methods were run in several settings, the best of each setting."""
    shown: dict[tuple[str, str], list[float]] = {}
    for g in groups:
        for key in HEADINGS:
            if g.finished and g.values[key]:
                shown.setdefault((g.facet, key), []).append(float(figure(key, g.mean(key))))
    return {at: (min if at[1] == "forgetting" else max)(values) for at, values in shown.items() if len(values) > 1}


def is_best(key: str, one: Group, best: Best) -> bool:
    mean = one.mean(key) if one.finished else None
    return mean is not None and float(figure(key, mean)) == best.get((one.facet, key))


def outcomes(one: Group) -> list[str]:
    """What is to be said of runs that did not finish: "failed (round 7)", "interrupted", "3 × failed (round 1)"."""
    told = Counter(
        f"failed (round {run.rounds + 1})" if run.status == "failed" else run.status
        for run in one.runs
        if run.status != "finished"
    )
    return [text if count == 1 else f"{count} × {text}" for text, count in told.items()]


def progress(one: Group) -> str:
    """Rounds done, of how many if they are fewer."""
    done, planned = max(run.rounds for run in one.runs), one.runs[0].config.federation.rounds
    return str(done) if done == planned else f"{done}/{planned}"


def reasons(runs: Sequence[Run]) -> list[str]:
    """Why runs failed; those that failed for one reason are told in one sentence."""
    failed: dict[tuple[int, str], list[str]] = {}
    if all(run.status != "failed" for run in runs):
        return []
    for label, run in zip(labels(runs), runs, strict=True):
        if run.status == "failed":
            failed.setdefault((run.rounds + 1, run.reason or "no reason was recorded"), []).append(label)

    def all_of(names: list[str]) -> str:
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    return [f"{all_of(names)} failed in round {round}: {why}" for (round, why), names in failed.items()]


@dataclass(frozen=True)
class Extra:
    """A further column of the table: its heading, and of each group the text and what a program gets."""

    heading: str
    text: Callable[[Group], str]
    values: Callable[[Group], dict[str, Any]]


def compare_table(runs: Sequence[Run], by: Sequence[str] = (), extras: Sequence[Extra] = ()) -> Table:
    groups = group(runs, by)
    best = best_shown(groups)
    several = any(len(g.runs) > 1 for g in groups)
    over = "runs" if by else "seeds"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, leading=int(several))
    table.title = "Test accuracy in %, forgetting F" + (f", mean ± standard deviation over {over}" if several else "")
    table.title_justify, table.title_style, table.caption_justify, table.caption_style = "left", "dim", "left", ""
    table.add_column("run", overflow="fold")
    shown = {
        key: HEADINGS[key] for key in (("final", "last10", "forgetting") if extras else HEADINGS)
    }  # room is scarce
    for heading in (*(["runs"] if several else []), *shown.values(), "rounds", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for extra in extras:
        table.add_column(extra.heading, justify="right", no_wrap=True)
    for g, before in zip(groups, [None, *groups], strict=False):
        if before and before.facet != g.facet:
            table.add_section()
        told = [Text(text, style="red" if "failed" in text else "yellow") for text in outcomes(g)]
        cells = [Text(g.count)] if several else []
        for key in shown:
            std = g.std(key)
            text = figure(key, g.mean(key)) + (f"\n±{figure(key, std)}" if std is not None else "")
            cells.append(Text(text, style="bold" if is_best(key, g, best) else ""))
        seconds = g.mean("seconds")
        cells += [Text(progress(g)), Text("–" if seconds is None else duration(seconds))]
        table.add_row(Text("\n").join([Text(g.label), *told]), *cells, *(Text(extra.text(g)) for extra in extras))
    why = reasons(runs)
    table.caption = Text("\n".join(["", *why]), style="red") if why else None
    return table


def compare_json(runs: Sequence[Run], by: Sequence[str] = (), extras: Sequence[Extra] = ()) -> list[dict[str, Any]]:
    keys = by or [key for key in differing(runs) if key not in ("seed", *ASIDE)]
    result = []
    for g in group(runs, by):
        row: dict[str, Any] = {"label": g.label, "runs": len(g.runs)}
        row |= {"finished": len(g.finished), "failed": len(g.failed)}
        for key in g.values:
            row |= {key: g.mean(key), f"{key}_std": g.std(key)}
        for extra in extras:
            row |= extra.values(g)
        told = zip(g.runs, map(summarise, g.runs), strict=True)
        row["settings"] = {k: v for k, v in g.runs[0].settings.items() if k in keys}
        row["members"] = [{"path": str(run.path), "seed": run.config.seed, **asdict(s)} for run, s in told]
        result.append(row)
    return result
