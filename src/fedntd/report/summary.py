"""The figures of runs, what the runs differ in, and the table that compares them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedntd.config import Config, flat
from fedntd.metrics import moving_average
from fedntd.record import Run

HEADINGS = {"final": "final", "best": "best", "last10": "last 10", "ema": "EMA 0.6", "forgetting": "F"}
ASIDE = ("workers", "checkpoint_seconds", "device", "measure.local_every")  # they do not change what is trained
# Okabe and Ito's colours, which the colour-blind can tell apart, without those that are faint on white or on black
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
DASHES = ("", "6 3", "2 2")


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
    records = run.records
    accuracy = [record.accuracy for record in records]
    return Summary(
        final=accuracy[-1] if records else None,
        best=max(accuracy) if records else None,
        last10=float(np.mean(accuracy[-10:])) if records else None,
        ema=moving_average(accuracy) if records else None,
        forgetting=records[-1].forgetting if records else None,
        rounds=len(records),
        seconds=sum(record.seconds for record in records),
        bytes_up=sum(record.bytes_up for record in records),
        bytes_down=sum(record.bytes_down for record in records),
        status=run.status,
        reason=run.reason,
    )


# --- what differs -----------------------------------------------------------------------------------------------


def differing(runs: Sequence[Run]) -> list[str]:
    """The config keys whose values are not the same in all runs."""
    tables = [flat(run.config) for run in runs]
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
        among = {name: {t for n, t in zip(names, told, strict=True) if n == name} for name in names}
        names = [f"{name} {t}" if len(among[name]) > 1 else name for name, t in zip(names, told, strict=True)]
    return [f"{name} #{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def labels_without_seed(runs: Sequence[Run]) -> list[str]:
    tables = [flat(run.config) for run in runs]
    keys = [key for key in differing(runs) if key not in ("algorithm.name", "seed", *ASIDE)]
    keys.sort(key=lambda key: not key.startswith("algorithm."))
    endings = [key.split(".")[-1] for key in keys]

    def tells(key: str, table: dict[str, Any]) -> bool:
        """An option of an algorithm (or partition, model) is told where two runs of that algorithm differ in it."""
        name = f"{key.split('.')[0]}.name"
        peers = tables if key == name else [t for t in tables if t.get(name) == table.get(name)]
        return key in table and any(t.get(key) != table[key] for t in peers)

    def part(key: str, ending: str, value: Any) -> str:
        return thing(value) if ending == "name" else f"{ending if endings.count(ending) == 1 else key}={show(value)}"

    return [
        " ".join(
            [thing(table["algorithm.name"])]
            + [part(key, ending, table[key]) for key, ending in zip(keys, endings, strict=True) if tells(key, table)]
        )
        for table in tables
    ]


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

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.status == "failed"]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Of each figure, one value a run that counts: a failed run never does."""
        counted = [asdict(summarise(run)) for run in self.runs if run.status != "failed" and run.records]
        return {key: [s[key] for s in counted] for key in (*HEADINGS, "rounds", "seconds", "bytes_up", "bytes_down")}

    @property
    def count(self) -> str:
        return f"{len(self.runs) - len(self.failed)}/{len(self.runs)}" if self.failed else str(len(self.runs))

    def mean(self, key: str) -> float | None:
        return float(np.mean(self.values[key])) if self.values[key] else None

    def std(self, key: str) -> float | None:
        """Sample standard deviation; None for fewer than two finished runs."""
        return float(np.std(self.values[key], ddof=1)) if len(self.values[key]) > 1 else None


def group(runs: Sequence[Run]) -> list[Group]:
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        key = repr({k: v for k, v in flat(run.config).items() if k not in ("seed", *ASIDE)})
        same = [runs[j] for j in groups.get(key, []) if runs[j].status == run.status]
        again = any(other.config.seed == run.config.seed for other in same)  # one seed run twice is no second sample
        if again or run.status not in ("finished", "failed"):
            key = f"{key} {i}"
        groups.setdefault(key, []).append(i)
    own, shared = labels(runs), labels_without_seed(runs)
    names = [shared[m[0]] if len(m) > 1 or shared.count(shared[m[0]]) == 1 else own[m[0]] for m in groups.values()]
    return [Group(name, [runs[i] for i in m]) for name, m in zip(names, groups.values(), strict=True)]


@dataclass(frozen=True)
class Curve:
    """A line of a chart, drawn alike in all of them: the mean of a group's finished runs, or one other run."""

    label: str
    runs: list[Run]
    colour: str
    dash: str  # as in SVG: lengths of line and gap

    def values(self, name: str) -> tuple[list[int], np.ndarray, np.ndarray | None]:
        """The rounds in which `name` was measured in all runs; its mean there, and standard deviation if of several."""
        tables = [{r.round: getattr(r, name) for r in run.records if is_number(getattr(r, name))} for run in self.runs]
        rounds = [round for round in tables[0] if all(round in table for table in tables)]
        rows = np.array([[table[round] for round in rounds] for table in tables], dtype=float)
        return rounds, rows.mean(0), rows.std(0, ddof=1) if len(rows) > 1 else None


def curves(runs: Sequence[Run]) -> list[Curve]:
    told = dict(zip((id(run) for run in runs), labels(runs), strict=True))
    lines: list[tuple[str, list[Run]]] = []
    for g in group(runs):
        if g.finished:
            lines.append((g.label, g.finished))
        lines += [(told[id(run)], [run]) for run in g.runs if run.status != "finished"]
    styles = ((colour, dash) for dash in cycle(DASHES) for colour in PALETTE)
    return [Curve(label, members, *style) for (label, members), style in zip(lines, styles, strict=False)]


def is_number(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))


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


def is_best(key: str, one: Group, groups: Sequence[Group]) -> bool:
    """As far as the digits shown tell; among groups with a finished run, if there is something to compare."""
    shown = [float(figure(key, g.mean(key))) for g in groups if g.finished and g.values[key]]
    if len(shown) < 2 or not (one.finished and one.values[key]):
        return False
    return float(figure(key, one.mean(key))) == (min if key == "forgetting" else max)(shown)


def outcomes(one: Group) -> list[str]:
    """What is to be said of runs that did not finish: "failed (round 7)", "interrupted"."""
    return [
        f"failed (round {len(run.records) + 1})" if run.status == "failed" else run.status
        for run in one.runs
        if run.status != "finished"
    ]


def progress(one: Group) -> str:
    """Rounds done, of how many if they are fewer."""
    done, planned = max(len(run.records) for run in one.runs), one.runs[0].config.federation.rounds
    return str(done) if done == planned else f"{done}/{planned}"


def reasons(runs: Sequence[Run]) -> list[str]:
    return [
        f"{label} failed in round {len(run.records) + 1}: {run.reason or 'no reason was recorded'}"
        for label, run in zip(labels(runs), runs, strict=True)
        if run.status == "failed"
    ]


def compare_table(runs: Sequence[Run]) -> Table:
    groups = group(runs)
    several = any(len(g.runs) > 1 for g in groups)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, leading=int(several))
    table.title = "Test accuracy in %, forgetting F" + (", mean ± standard deviation over seeds" if several else "")
    table.title_justify, table.title_style, table.caption_justify, table.caption_style = "left", "dim", "left", ""
    table.add_column("run", overflow="fold")
    for heading in (*(["runs"] if several else []), *HEADINGS.values(), "rounds", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for g in groups:
        told = [Text(text, style="red" if "failed" in text else "yellow") for text in outcomes(g)]
        cells = [Text(g.count)] if several else []
        for key in HEADINGS:
            std = g.std(key)
            text = figure(key, g.mean(key)) + (f"\n±{figure(key, std)}" if std is not None else "")
            cells.append(Text(text, style="bold" if is_best(key, g, groups) else ""))
        seconds = g.mean("seconds")
        table.add_row(
            Text("\n").join([Text(g.label), *told]), *cells, progress(g), "–" if seconds is None else duration(seconds)
        )
    table.caption = Text("\n".join(["", *reasons(runs)]), style="red") if reasons(runs) else None
    return table


def compare_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    keys = differing(runs)
    result = []
    for g in group(runs):
        row: dict[str, Any] = {"label": g.label, "runs": len(g.runs)}
        row |= {"finished": len(g.finished), "failed": len(g.failed)}
        for key in g.values:
            row |= {key: g.mean(key), f"{key}_std": g.std(key)}
        told = zip(g.runs, map(summarise, g.runs), strict=True)
        row["settings"] = {k: v for k, v in flat(g.runs[0].config).items() if k in keys and k not in ("seed", *ASIDE)}
        row["members"] = [{"path": str(run.path), "seed": run.config.seed, **asdict(s)} for run, s in told]
        result.append(row)
    return result
