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
    """An additional column: its heading, its text for a group, and its JSON values for a group."""

    heading: str
    text: Callable[[Group], str]
    values: Callable[[Group], dict[str, Any]]


def compare_table(runs: Sequence[Run], by: Sequence[str] = (), extras: Sequence[Extra] = ()) -> Table:
    """A table for the terminal. Runs that differ only in their seed form one row: mean and standard deviation."""
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
        notes = [Text(text, style="red" if "failed" in text else "yellow") for text in outcomes(g)]
        cells = [Text(g.count)] if several else []
        for key in shown:
            std = g.std(key)
            text = figure(key, g.mean(key)) + (f"\n±{figure(key, std)}" if std is not None else "")
            cells.append(Text(text, style="bold" if is_best(key, g, best) else ""))
        seconds = g.mean("seconds")
        cells += [Text(progress(g)), Text("–" if seconds is None else duration(seconds))]
        table.add_row(Text("\n").join([Text(g.label), *notes]), *cells, *(Text(extra.text(g)) for extra in extras))
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
        members = zip(g.runs, map(summarise, g.runs), strict=True)
        row["settings"] = {k: v for k, v in g.runs[0].settings.items() if k in keys}
        row["members"] = [{"path": str(run.path), "seed": run.config.seed, **asdict(s)} for run, s in members]
        result.append(row)
    return result


def headings(extras: Sequence[Extra]) -> dict[str, str]:
    """Columns of the table by figure; fewer of them where extras need the room."""
    return {key: HEADINGS[key] for key in (("final", "last10", "forgetting") if extras else HEADINGS)}


Best = Mapping[tuple[str, str], float]  # (facet, figure) -> best value


def best_shown(groups: Sequence[Group]) -> Best:
    """The best value of each figure in each facet, rounded as shown, among groups with a finished run.

    Figures with a single value have no best.
    """
    shown: dict[tuple[str, str], list[float]] = {}
    for g in groups:
        for key in HEADINGS:
            if g.finished and g.values[key]:
                shown.setdefault((g.facet, key), []).append(float(figure(key, g.mean(key))))
    return {key: (min if key[1] == "forgetting" else max)(values) for key, values in shown.items() if len(values) > 1}


def is_best(key: str, g: Group, best: Best) -> bool:
    mean = g.mean(key) if g.finished else None
    return mean is not None and float(figure(key, mean)) == best.get((g.facet, key))


def outcomes(g: Group) -> list[str]:
    """Notes on runs that did not finish: "failed (round 7)", "interrupted", "3 × failed (round 1)"."""
    notes = Counter(
        f"failed (round {run.rounds + 1})" if run.status == "failed" else run.status
        for run in g.runs
        if run.status != "finished"
    )
    return [text if count == 1 else f"{count} × {text}" for text, count in notes.items()]


def progress(g: Group) -> str:
    """Rounds done, such as "12", or "7/12" if more are planned; the most of any run, as `--by` groups may mix them."""
    done, planned = max(run.rounds for run in g.runs), max(run.config.federation.rounds for run in g.runs)
    return str(done) if done == planned else f"{done}/{planned}"


def reasons(runs: Sequence[Run]) -> list[str]:
    """Why runs failed, one sentence per reason and round."""
    failed: dict[tuple[int, str], list[str]] = {}
    if all(run.status != "failed" for run in runs):
        return []
    for label, run in zip(labels(runs), runs, strict=True):
        if run.status == "failed":
            failed.setdefault((run.rounds + 1, run.reason or "no reason was recorded"), []).append(label)

    def all_of(names: list[str]) -> str:
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    return [f"{all_of(names)} failed in round {round}: {why}" for (round, why), names in failed.items()]
