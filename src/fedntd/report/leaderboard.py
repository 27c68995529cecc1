"""A table of methods under one protocol, as Markdown, and where it is written."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedntd.errors import FedntdError, require
from fedntd.report.summary import Group, methods_and_rest
from fedntd.report.wording import thing
from fedntd.runs import Run

MEASURE = "last10"


def leaderboard(runs: Sequence[Run]) -> str:
    """Accuracies in Markdown: one row a method, one column for each of the other settings that runs differ in.

    They are means of the last ten rounds, since where clients are unlike, one round can be twenty points from the next.
    In a column, methods are compared on the seeds that all of them have: a seed is a partition, and some are harder.
    """
    finished = [run for run in runs if run.status == "finished"]
    require(bool(finished), "there is no finished run to make a leaderboard of")
    columns: dict[str, dict[str, dict[int, Run]]] = {}  # by method and seed
    for run, (method, where) in zip(runs, methods_and_rest(runs), strict=True):
        # a column says nothing of methods, whose settings may have the same name as a partition's
        column = columns.setdefault(where.replace("partition.", "") or thing(run.config.data.name), {})
        if run.status in ("finished", "failed"):
            column.setdefault(method, {}).setdefault(run.config.seed, run)
    scores: dict[str, dict[str, Group]] = {}
    for column, methods in columns.items():
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in methods.values())))
        for method, by_seed in methods.items():
            scores.setdefault(method, {})[column] = Group(method, [by_seed[seed] for seed in seeds])

    def mean(method: str, column: str) -> float | None:
        one = scores[method].get(column)
        return one.mean(MEASURE) if one and one.finished else None

    def rank(method: str) -> float:
        """Mean place over the columns; where a method has no result, it is last."""
        places = []
        for column in columns:
            ranked = sorted((mean(other, column) or -1.0 for other in scores), reverse=True)
            places.append(1 + ranked.index(mean(method, column) or -1.0))
        return float(np.mean(places))

    def cell(method: str, column: str) -> str:
        one = scores[method].get(column)
        value = mean(method, column)
        if one is None or value is None:
            return "failed" if one and one.failed else "–"
        std = one.std(MEASURE)
        text = f"{100 * value:.2f}" + (f" ± {100 * std:.2f}" if std is not None else "")
        best = max(found for other in scores if (found := mean(other, column)) is not None)
        lost = f" ({one.count})" if one.failed else ""
        return (f"**{text}**" if value == best else text) + lost

    lines = ["| method | " + " | ".join(columns) + " | mean place |", "|---" * (len(columns) + 2) + "|"]
    for method in sorted(scores, key=rank):
        lines.append(f"| {method} | " + " | ".join(cell(method, c) for c in columns) + f" | {rank(method):.1f} |")
    return "\n".join(lines) + "\n"


def written_between(text: str, mark: str, new: str) -> str:
    """A page with what stands between <!-- mark --> and <!-- /mark --> replaced.

    >>> written_between("a <!-- x --> old <!-- /x --> b", "x", "new")
    'a <!-- x -->new<!-- /x --> b'
    """
    before, start, rest = text.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    require(bool(start and end), f"the page has no <!-- {mark} --> ... <!-- /{mark} --> to write between")
    return f"{before}{start}{new}{end}{after}"


def made_of(runs: Sequence[Run]) -> str:
    """When, with what and of how many runs a table was made."""
    finished = [run for run in runs if run.status == "finished"]
    days = sorted(run.environment["started"][:10] for run in finished)
    devices = " and ".join(dict.fromkeys(run.environment["device"] for run in finished))
    versions = " and ".join(dict.fromkeys(run.environment["torch"] for run in finished))
    seeds = len({run.config.seed for run in finished})
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return (
        f"{len(finished)} of {len(runs)} runs finished, {seeds} seed{'s' if seeds > 1 else ''}, {when}, {devices}, "
        f"torch {versions}. Test accuracy in percent, the mean of the last ten rounds, ± standard deviation over "
        "seeds; the best of each column is bold. Only seeds that all methods of a column have are counted; a figure "
        "without ± is of one."
    )


def put_into(page: Path, mark: str, new: str) -> None:
    try:
        page.write_text(written_between(page.read_text(encoding="utf-8"), mark, new), encoding="utf-8")
    except OSError as error:
        raise FedntdError(f"{page} cannot be written: {error.strerror}") from error
