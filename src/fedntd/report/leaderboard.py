"""A table of methods under one protocol, as Markdown, and where it is written."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedntd.errors import FedntdError, require
from fedntd.report.summary import Group, methods_and_rest
from fedntd.runs.reader import Run
from fedntd.support.files import whole
from fedntd.support.wording import thing

MEASURE = "last10"


def leaderboard(runs: Sequence[Run]) -> str:
    """Accuracies in Markdown: one row a method, one column for each of the other settings that runs differ in.

    They are means of the last ten rounds, since where clients are unlike, one round can be twenty points from the next.
    A method has a place if it was run in all columns with all seeds: a seed is a partition, and some are harder. Others
    come below.
    """
    require(any(run.status == "finished" for run in runs), "there is no finished run to make a leaderboard of")
    seeds = {run.config.seed for run in runs}
    scores: dict[str, dict[str, Group]] = {}
    # a column says nothing of methods, whose settings may have the same name as a partition's
    told = [
        (in_a_cell(m), in_a_cell(where.replace("partition.", "") or thing(runs[0].config.data.name)))
        for m, where in methods_and_rest(runs)
    ]
    columns = list(dict.fromkeys(column for _, column in told))
    # a run that failed counts if no other of its seed has finished
    for run, (method, column) in sorted(zip(runs, told, strict=True), key=lambda one: one[0].status == "failed"):
        if run.status in ("finished", "failed"):
            group = scores.setdefault(method, {}).setdefault(column, Group(method, []))
            if run.config.seed not in seeds_of(group):
                group.runs.append(run)

    def mean(method: str, column: str) -> float:
        """-1 where there is none, to be below all others."""
        one = scores[method].get(column)
        return one.means.get(MEASURE, -1.0) if one else -1.0

    whole = [m for m in scores if all(c in scores[m] and seeds_of(scores[m][c]) == seeds for c in columns)]
    best = {column: max((mean(method, column) for method in whole), default=None) for column in columns}

    def place(method: str) -> float:
        """The mean over the columns."""
        return float(np.mean([1 + sum(mean(other, c) > mean(method, c) for other in whole) for c in columns]))

    def cell(method: str, column: str) -> str:
        one = scores[method].get(column)
        if one is None or not one.finished:
            return "failed" if one else "–"
        value, std = mean(method, column), one.std(MEASURE)
        text = f"{100 * value:.2f}" + (f" ± {100 * std:.2f}" if std is not None else "")
        lacking = f" ({len(one.finished)} of {len(seeds)})" if len(one.finished) < len(seeds) else ""
        return (f"**{text}**" if value == best[column] else text) + lacking

    lines = ["| method | " + " | ".join(columns) + " | mean place |", "|---" * (len(columns) + 2) + "|"]
    for method in sorted(scores, key=lambda method: (method not in whole, place(method))):
        last = f"{place(method):.1f}" if method in whole else "–"
        lines.append(f"| {method} | " + " | ".join(cell(method, c) for c in columns) + f" | {last} |")
    return "\n".join(lines) + "\n"


def in_a_cell(text: str) -> str:
    """Of a table in Markdown, where a bar would begin the next one."""
    return text.replace("|", r"\|")


def seeds_of(group: Group) -> set[int]:
    return {run.config.seed for run in group.runs}


def written_between(text: str, mark: str, new: str, page: str = "the page") -> str:
    """The text of a page with what stands between <!-- mark --> and <!-- /mark --> replaced.

    >>> written_between("a <!-- x --> old <!-- /x --> b", "x", "new")
    'a <!-- x -->new<!-- /x --> b'
    """
    before, start, rest = text.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    require(bool(start and end), f"{page} has no <!-- {mark} --> ... <!-- /{mark} --> to write between")
    return f"{before}{start}{new}{end}{after}"


def made_of(runs: Sequence[Run], planned: int) -> str:
    """When, with what and of how many runs a table was made."""
    finished = [run for run in runs if run.status == "finished"]
    days = sorted(run.environment["started"][:10] for run in finished)
    devices = " and ".join(dict.fromkeys(run.environment["device"] for run in finished))
    versions = " and ".join(dict.fromkeys(run.environment["torch"] for run in finished))
    seeds = len({run.config.seed for run in finished})
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return (
        f"{len(finished)} of {planned} runs finished, {seeds} seed{'s' if seeds > 1 else ''}, {when}, {devices}, "
        f"torch {versions}. Test accuracy in percent, the mean of the last ten rounds, ± standard deviation over "
        "seeds. A method has a place if it was run everywhere with every seed; the best of those is bold."
    )


def put_into(page: Path, mark: str, new: str) -> None:
    """Between the marks of a page; one that is not there yet is made."""
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else f"<!-- {mark} --><!-- /{mark} -->\n"
    except (OSError, UnicodeDecodeError) as error:
        raise FedntdError(f"{page} cannot be read: {error}") from error
    text = written_between(text, mark, new, str(page))
    with whole(page) as aside:
        aside.write_text(text, encoding="utf-8")
