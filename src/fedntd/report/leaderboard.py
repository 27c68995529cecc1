"""The leaderboard: a Markdown table of methods under one protocol, written into a page."""

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
    """A Markdown table of accuracies: one row per method, one column per combination of the other settings.

    Accuracies are means of the last ten rounds, since with heterogeneous clients two consecutive rounds can differ by
    twenty points. A method is ranked if it was run in all columns with all seeds: a seed is also a partition, and some
    partitions are harder. Other methods come below, without a rank.
    """
    require(any(run.status == "finished" for run in runs), "there is no finished run to make a leaderboard of")
    seeds = {run.config.seed for run in runs}
    scores: dict[str, dict[str, Group]] = {}
    # The prefix "partition." is only needed to tell a partition's setting from a method's, which columns do not name.
    positions = [
        (in_a_cell(m), in_a_cell(where.replace("partition.", "") or thing(runs[0].config.data.name)))
        for m, where in methods_and_rest(runs)
    ]
    columns = list(dict.fromkeys(column for _, column in positions))
    # Finished runs come first, so that a failed run counts only if no other run of its seed has finished.
    for run, (method, column) in sorted(zip(runs, positions, strict=True), key=lambda pair: pair[0].status == "failed"):
        if run.status in ("finished", "failed"):
            group = scores.setdefault(method, {}).setdefault(column, Group(method, []))
            if run.config.seed not in seeds_of(group):
                group.runs.append(run)

    def mean(method: str, column: str) -> float:
        """The mean accuracy, or -1 without one, which is below all others."""
        group = scores[method].get(column)
        return group.means.get(MEASURE, -1.0) if group else -1.0

    ranked = [m for m in scores if all(c in scores[m] and seeds_of(scores[m][c]) == seeds for c in columns)]
    best = {column: max((mean(method, column) for method in ranked), default=None) for column in columns}

    def place(method: str) -> float:
        """The mean rank over the columns."""
        return float(np.mean([1 + sum(mean(other, c) > mean(method, c) for other in ranked) for c in columns]))

    def cell(method: str, column: str) -> str:
        group = scores[method].get(column)
        if group is None or not group.finished:
            return "failed" if group else "–"
        value, std = mean(method, column), group.std(MEASURE)
        text = f"{100 * value:.2f}" + (f" ± {100 * std:.2f}" if std is not None else "")
        missing = f" ({len(group.finished)} of {len(seeds)})" if len(group.finished) < len(seeds) else ""
        return (f"**{text}**" if value == best[column] else text) + missing

    lines = ["| method | " + " | ".join(columns) + " | mean place |", "|---" * (len(columns) + 2) + "|"]
    for method in sorted(scores, key=lambda method: (method not in ranked, place(method))):
        mean_place = f"{place(method):.1f}" if method in ranked else "–"
        lines.append(f"| {method} | " + " | ".join(cell(method, c) for c in columns) + f" | {mean_place} |")
    return "\n".join(lines) + "\n"


def in_a_cell(text: str) -> str:
    """Escape the bars in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def seeds_of(group: Group) -> set[int]:
    return {run.config.seed for run in group.runs}


def written_between(text: str, mark: str, new: str, page: str = "the page") -> str:
    """Replace the text of a page between <!-- mark --> and <!-- /mark -->.

    >>> written_between("a <!-- x --> old <!-- /x --> b", "x", "new")
    'a <!-- x -->new<!-- /x --> b'
    """
    before, start, rest = text.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    require(bool(start and end), f"{page} has no <!-- {mark} --> ... <!-- /{mark} --> to write between")
    return f"{before}{start}{new}{end}{after}"


def made_of(runs: Sequence[Run], planned: int) -> str:
    """A sentence on the runs behind a table: how many, when, and on which device."""
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
    """Write `new` between the marks of a page; create the page if it does not exist."""
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else f"<!-- {mark} --><!-- /{mark} -->\n"
    except (OSError, UnicodeDecodeError) as error:
        raise FedntdError(f"{page} cannot be read: {error}") from error
    text = written_between(text, mark, new, str(page))
    with whole(page) as aside:
        aside.write_text(text, encoding="utf-8")
