"""docs/results.md: what the ledger holds, its tables beside the published ones, and the verdicts on the claims."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedntd.paper.claims import CLAIMS, Evidence
from fedntd.paper.item import RULES, Plot, Results, Setting
from fedntd.paper.items import ITEMS, find
from fedntd.paper.ledger import Result, Store, put, read_results
from fedntd.paper.render import draw, progress
from fedntd.paper.runner import Workshop
from fedntd.paper.tables import Table, to_markdown
from fedntd.report.figures import save_figure
from fedntd.report.summary import HEADINGS

HEAD = """# Results on the real data

What has been measured with this software, beside what the paper prints. The page is made by `fedntd paper page` from
the files in [results/ledger](results/ledger), one a run; [paper.md](paper.md) says how to add to them.
"""


def write_results_page(ledger: Path, out: Path) -> Path:
    """The page, and the figures that it shows in results/figures beside it."""
    text, plots = results_page(ledger)
    folder = out.parent / "results" / "figures"
    for name, plot in plots.items():
        save_figure(plot.figure, folder / f"{name}.png")
    put(out, text)
    return out


def results_page(ledger: Path) -> tuple[str, dict[str, Plot]]:
    """The Markdown text, and the plots by the names under which it shows them."""
    recorded = read_results(ledger)
    shop = Workshop(ledger, Store(recorded), ledger)
    parts, plots = [HEAD, what_there_is(recorded)], {}
    for protocol in RULES:
        results = {name: shop.results(find(name), Setting(protocol=protocol)) for name in ITEMS}
        if not any(any(of.values()) or of.measured for of in results.values()):
            continue
        text, drawn = protocol_part(protocol, results)
        parts.append(text)
        plots |= drawn
    return "\n".join(parts), plots


def what_there_is(recorded: list[Result]) -> str:
    devices = sorted({f"{r.environment['device']}, torch {r.environment['torch']}" for r in recorded})
    dates = sorted({r.environment["date"] for r in recorded})
    precisions = sorted({r.config.precision for r in recorded})
    if not recorded:
        return "Nothing has been recorded yet.\n"
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    hours = sum(r.seconds for r in recorded) / 3600
    return (
        f"{len(recorded)} runs, {hours:.1f} hours of training if made one by one; {when}; {' and '.join(devices)}; "
        f"precision {', '.join(precisions)}.\n"
    )


def protocol_part(protocol: str, results: Mapping[str, Results]) -> tuple[str, dict[str, Plot]]:
    rule = HEADINGS[RULES[protocol]]
    evidence = Evidence(cache(lambda name: results[name]), RULES[protocol])
    lines = [f"## Protocol `{protocol}`", "", f"Accuracies in tables are: {rule}.", "", "### The paper's claims", ""]
    lines += ["| the paper says | where | our data | numbers |", "|---|---|---|---|"]
    for claim in CLAIMS:
        verdict = claim.check(evidence)
        words = f"**{verdict.words}**" if verdict.holds is False else verdict.words
        numbers = re.sub(r"(?<!\w)-(?=\d)", "−", verdict.numbers)
        lines.append(f"| {claim.text} | {claim.where} | {words} | {numbers} |")

    lines += ["", "### How much is done", "", "| item | in the paper | runs |", "|---|---|---|"]
    for name, of in results.items():
        done, wanted = progress(of)
        without = ("measured" if of.measured else "not measured yet") if of.item.measure else "needs none"
        told = f"{done} of {wanted}" if wanted else without
        lines.append(f"| `{name}`: {of.item.title} | {of.item.paper} | {told} |")

    plots: dict[str, Plot] = {}
    for of in results.values():
        shown = [thing for thing in draw(of) if isinstance(thing, Plot) or not thing.is_open]
        if not shown:
            continue
        lines += ["", f"### {of.item.title}", "", f"{of.item.paper}. {of.item.about}"]
        for thing in shown:
            if isinstance(thing, Plot):
                plots[f"{thing.name}-{protocol}"] = thing
                lines += ["", f"![{thing.caption}](results/figures/{thing.name}-{protocol}.png)", "", thing.caption]
            else:
                lines += ["", *table_lines(thing)]
    return "\n".join(lines) + "\n", plots


def table_lines(table: Table) -> list[str]:
    done, cells = table.done
    return [f"**{table.title}** ({done} of {cells} cells). {table.caption}", "", to_markdown(table).rstrip()]
