"""docs/results.md: the runs in the ledger, verdicts on the paper's claims, and tables beside the published ones."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedntd.config.toml import identity
from fedntd.paper.claims import CLAIMS
from fedntd.paper.evidence import Evidence
from fedntd.paper.item import RULES, Item, Plot, Results, Setting
from fedntd.paper.items import ITEMS, find
from fedntd.paper.render import draw, progress
from fedntd.paper.runner import Workshop
from fedntd.paper.tables import Table, to_markdown
from fedntd.report.style import save_figure
from fedntd.runs.ledger import RunResult, Store, read_results
from fedntd.support.files import put

HEAD = """# Results on the real data

What has been measured with this software, beside what the paper prints. The page is made by `fedntd paper page` from
the files in [results/ledger](results/ledger), one a run; [paper.md](paper.md) says how to add to them.

In a cell of a table, the paper's figure stands below ours, with ours minus the paper's. The best of what was measured
is bold. What is open is left out, and named above the table.
"""
WORDS = ("holds", "holds so far", "does not hold", "undecided", "not measured yet")
REPORTED = {"final": "the last round's", "ema": "the moving average (0.6) over the rounds"}
Drawn = Mapping[str, tuple[Results, Sequence[Table | Plot]]]  # item -> its results, and its tables and plots


def write_results_page(ledger: Path, out: Path) -> Path:
    """Write the page, and its figures to results/figures beside it."""
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
    parts, plots = [HEAD, ledger_summary(recorded)], {}
    either = [name for name in ITEMS if same_under_all_protocols(find(name))]
    for protocol, rule in RULES.items():
        results = {name: shop.results(find(name), Setting(protocol=protocol)) for name in ITEMS}
        own = {name: result for name, result in results.items() if name not in either}
        if any(any(result.values()) or result.measured for result in own.values()):
            heading = [f"## Protocol `{protocol}`", "", f"An accuracy in a table is {REPORTED[rule]}.", ""]
            text, shown = items_part(own, protocol)
            parts.append("\n".join([*heading, *claims_part(Evidence(results.__getitem__, rule)), *text]))
            plots |= shown
    if recorded:
        text, shown = items_part({name: shop.results(find(name), Setting()) for name in either})
        parts.append("\n".join(["## Under either protocol", "", "Items whose learning rate is their own.", "", *text]))
        plots |= shown
    return "\n".join(parts), plots


def same_under_all_protocols(item: Item) -> bool:
    """Whether an item has the same runs under all protocols, and measures nothing beyond them."""

    def runs(protocol: str) -> set[str]:
        return {identity(item.config(cell, 0, Setting(protocol=protocol))) for cell in item.runs}

    return item.measure is None and len({frozenset(runs(protocol)) for protocol in RULES}) == 1


def ledger_summary(recorded: list[RunResult]) -> str:
    if not recorded:
        return "Nothing has been recorded yet.\n"
    devices = sorted({f"{r.environment['device']}, torch {r.environment['torch']}" for r in recorded})
    dates = sorted({r.environment["date"] for r in recorded})
    precisions = sorted({r.config.precision for r in recorded})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    hours = sum(r.seconds for r in recorded) / 3600
    failed = sum(r.status == "failed" for r in recorded)
    runs = f"{len(recorded)} runs" + (f", {failed} of which failed" if failed else "")
    made_on = f"{' and '.join(devices)}; precision {', '.join(precisions)}"
    return f"{runs}; {hours:.1f} hours of training; {when}; {made_on}.\n"


# --- the claims -------------------------------------------------------------------------------------------------


def claims_part(evidence: Evidence) -> list[str]:
    verdicts = {name: claim.verdict(evidence) for name, claim in CLAIMS.items()}
    counted = Counter(verdict.words for verdict in verdicts.values())
    tally = ", ".join(f"{words}: {count}" for words in WORDS if (count := counted[words]))
    lines = ["### The paper's claims", "", f"Of {len(CLAIMS)} claims: {tally}.", ""]
    lines += ["| the paper says | our data | numbers |", "|---|---|---|"]
    for name, claim in CLAIMS.items():
        verdict = verdicts[name]
        if verdict.measured:
            words = ": ".join(filter(None, [f"**{verdict.words}**", verdict.tally]))
            numbers = re.sub(r"(?<!\w)-(?=\d)", "−", verdict.numbers)
            lines.append(f"| {claim.text} ({claim.where}) | {words} | {numbers} |")
    waiting = [claim for name, claim in CLAIMS.items() if not verdicts[name].measured]
    if waiting:
        lines += ["", "Not measured yet:", "", *(f"- {claim.text} ({claim.where})" for claim in waiting)]
    return [*lines, ""]


# --- tables and figures -----------------------------------------------------------------------------------------


def items_part(results: Mapping[str, Results], ending: str = "") -> tuple[list[str], dict[str, Plot]]:
    """Tables and plots of the items, and how much is done. `ending` keeps the figure names of protocols apart."""
    lines: list[str] = []
    plots: dict[str, Plot] = {}
    seen: set[str] = set()
    drawn: Drawn = {name: (result, draw(result)) for name, result in results.items()}
    for result, things in drawn.values():
        shown = [thing for thing in things if isinstance(thing, Plot) or not thing.is_open]
        runs = {identity(run.config) for cell in result.values() for run in cell}
        # Skip an item whose tables only repeat the runs of the items above.
        repeats = bool(runs) and runs <= seen and not any(isinstance(thing, Plot) for thing in shown)
        seen |= runs
        if not shown or repeats:
            continue
        lines += [f"### {result.item.title}", "", f"{result.item.paper}. {result.item.about}", ""]
        for thing in shown:
            if isinstance(thing, Plot):
                name = "-".join(filter(None, [thing.name, ending]))
                plots[name] = thing
                lines += [f"![{thing.caption}](results/figures/{name}.png)", "", thing.caption, ""]
            else:
                lines += [*table_lines(thing, result.item.title), ""]
    return lines + progress_part(drawn), plots


def table_lines(table: Table, above: str) -> list[str]:
    part, (done, cells) = table.measured_part(), table.done
    title = "" if table.title == above else f"**{table.title}.**"
    begun = f", {table.begun} more in part" if table.begun else ""
    counted = f"{done} of {cells} cells are measured{begun}." if cells else ""
    text = " ".join(filter(None, [title, table.caption, counted, table.left_out_of(part)]))
    return [text, "", to_markdown(part).rstrip()]


# --- how much is done -------------------------------------------------------------------------------------------


def progress_part(drawn: Drawn) -> list[str]:
    lines = ["### How much is done", "", "| item | in the paper | runs | cells of its tables |", "|---|---|---|---|"]
    for name, (result, things) in drawn.items():
        done, wanted = progress(result)
        status = [f"{done} of {wanted}"] if wanted else []
        status += ["measured" if result.measured else "not measured yet"] if result.item.measure else []
        counts = [thing.done for thing in things if isinstance(thing, Table)]
        cells, total = (sum(count[i] for count in counts) for i in (0, 1))
        shown = f"{cells} of {total}" if total else ""
        runs = ", ".join(status) or "needs none"
        lines.append(f"| `{name}`: {result.item.title} | {result.item.paper} | {runs} | {shown} |")
    return [*lines, ""]
