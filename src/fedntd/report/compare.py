"""The table that compares runs, for people and for programs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedntd.report.summary import HEADINGS, Group, group, labels, summarise, telling
from fedntd.runs.reader import Run
from fedntd.support.wording import duration, figure


@dataclass(frozen=True)
class Extra:
    """A further column of the table: its heading, and of each group the text and what a program gets."""

    heading: str
    text: Callable[[Group], str]
    values: Callable[[Group], dict[str, Any]]


def compare_table(runs: Sequence[Run], by: Sequence[str] = (), extras: Sequence[Extra] = ()) -> Table:
    """A table of runs for the terminal; runs that differ only in seed are one row, mean and standard deviation."""
    groups = group(runs, by)
    best = best_shown(groups)
    several = any(len(g.runs) > 1 for g in groups)
    over = "runs" if by else "seeds"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, leading=int(several))
    table.title = "Test accuracy in %, forgetting F" + (f", mean ± standard deviation over {over}" if several else "")
    table.title_justify, table.title_style, table.caption_justify, table.caption_style = "left", "dim", "left", ""
    table.add_column("run", overflow="fold")
    shown = headings(extras)
    for heading in (*(["runs"] if several else []), *shown.values(), "rounds", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for extra in extras:
        table.add_column(Text(extra.heading), justify="right", no_wrap=True)
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
    """The rows of `compare_table` as plain values, for scripts."""
    keys = by or telling(runs)
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


def headings(extras: Sequence[Extra]) -> dict[str, str]:
    """Of the figures: further columns take the room of some."""
    return {key: HEADINGS[key] for key in (("final", "last10", "forgetting") if extras else HEADINGS)}


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
    """Rounds done, of how many if they are fewer; with `--by`, runs of one group may have unlike many."""
    done, planned = max(run.rounds for run in one.runs), max(run.config.federation.rounds for run in one.runs)
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
