"""Write an item's results as files for papers, and one HTML page of all items in a folder."""

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from fedntd.paper.item import Plot, Results
from fedntd.paper.items import ITEMS, find
from fedntd.paper.runner import wanted
from fedntd.paper.tables import Table, to_csv, to_html, to_latex, to_markdown
from fedntd.report.style import save_figure, styled
from fedntd.runs.ledger import distinct
from fedntd.support.files import put

FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
CSS = """
main { max-width: 1320px; }
thead th { text-align: right; }
thead th:first-child { text-align: left; }
.paper { color: var(--muted); font-size: 0.78rem; white-space: nowrap; }
.paper i { font-style: normal; color: var(--ink); }
.note { color: var(--muted); font-size: 0.72rem; }
.open { color: var(--muted); }
.bad, .down { color: var(--bad); }
.up { color: #2e7d32; }
td b { font-weight: 700; }
section p.about { max-width: 74ch; margin: 0 0 14px; }
section h3 { margin-top: 28px; }
figure.plot { margin: 20px 0 0; }
figure.plot img { display: block; max-width: 100%; background: #fff; border-radius: 6px; padding: 6px; }
.contents { columns: 2; margin: 28px 0 0; padding: 0 0 0 1.1em; font-size: 0.92rem; }
.contents a { color: inherit; }
.contents span { color: var(--muted); }
.files a { color: var(--muted); margin-right: 8px; }
"""


def draw(results: Results) -> Sequence[Table | Plot]:
    """The item's tables and plots, in the style of the reports."""
    with styled():
        return results.item.render(results)


def write_item(results: Results, out: Path) -> list[Path]:
    """Write each table as Markdown, LaTeX and CSV, each plot as PNG and PDF, and the item's section of the page."""
    item, folder = results.item, out / results.item.name
    drawn = draw(results)
    written: list[Path] = []
    parts: list[str] = []
    for thing in drawn:
        if isinstance(thing, Plot):
            paths = [folder / f"{thing.name}.{ending}" for ending in ("png", "pdf")]
            save_figure(thing.figure, *paths)
            parts.append(plot_html(thing, paths[0].read_bytes()))
        else:
            paths = [folder / f"{thing.name}.{ending}" for ending in FORMATS]
            for path, write in zip(paths, FORMATS.values(), strict=True):
                put(path, write(thing))
            parts.append(table_html(thing, item.title))
        written += paths
        links = "".join(f'<a href="{item.name}/{escape(path.name)}">{path.suffix[1:].upper()}</a>' for path in paths)
        parts.append(f'<p class="caption files">{links}</p>')
    if not drawn:
        parts.append('<p class="caption open">Nothing has been measured yet.</p>')
    put(folder / "section.html", section_html(results, parts))
    return [*written, folder / "section.html"]


def section_html(results: Results, parts: Sequence[str]) -> str:
    item = results.item
    done, total = progress(results)
    facts = [item.paper, f"protocol {results.setting.protocol}", f"{done} of {total} runs" if total else ""]
    reasons = []
    for (row, column), runs in results.items():
        failed = [run for run in runs if run.status == "failed"]
        if failed:
            reasons.append(escape(f"{row}, {column}: {len(failed)} of {len(runs)} runs failed: {failed[0].reason}"))
    return "\n".join(
        [
            f'<section id="{item.name}">',
            f"<h2>{escape(item.title)}</h2>",
            f'<p class="caption">{escape(" · ".join(filter(None, facts)))} · <code>fedntd paper {item.name}</code></p>',
            f'<p class="about">{escape(item.about)}</p>',
            *parts,
            *([f'<p class="notice bad">{"<br>".join(reasons)}</p>'] if reasons else []),
            "</section>",
        ]
    )


def progress(results: Results) -> tuple[int, int]:
    """The number of runs that finished or failed, and of all runs. A run that serves several cells counts once."""
    done = {id(result) for cell in results.values() for result in cell}
    return len(done), len(distinct([run.config for run in wanted(results.item, results.setting)]))


def table_html(table: Table, above: str) -> str:
    title = "" if table.title == above else f"<h3>{escape(table.title)}</h3>\n"
    return f'{title}{to_html(table)}\n<p class="caption">{escape(table.caption)}</p>'


def plot_html(plot: Plot, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    width = round(105 * plot.figure.get_figwidth())
    image = f'<img alt="{escape(plot.caption)}" style="width: {width}px" src="data:image/png;base64,{data}">'
    return f'<figure class="plot">{image}<figcaption>{escape(plot.caption)}</figcaption></figure>'


def write_page(out: Path, small: bool) -> Path:
    """Write one page of all items that have been drawn in `out`."""
    from fedntd import __version__

    css = (files("fedntd.report") / "report.css").read_text(encoding="utf-8") + CSS
    drawn = [name for name in ITEMS if (out / name / "section.html").exists()]
    contents = "\n".join(f'<li><a href="#{name}">{escape(find(name).title)}</a></li>' for name in drawn)
    sections = "\n".join((out / name / "section.html").read_text(encoding="utf-8") for name in drawn)
    rehearsal = (
        '<p class="notice bad">A rehearsal: few clients and rounds on the packaged images. '
        "Its numbers cannot be compared with the paper's.</p>"
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>The paper's tables and figures</title>
<style>
{css}
</style>
</head>
<body>
<main>
<header>
<p class="eyebrow">Preservation of the global knowledge by not-true distillation in federated learning</p>
<h1>The paper's tables and figures</h1>
<p class="caption">In each cell, our result is above, and the paper's below with the difference.
Best values are bold; arrows compare with FedAvg.</p>
{rehearsal if small else ""}
<ol class="contents">
{contents}
</ol>
</header>
{sections}
<footer>fedntd {__version__}</footer>
</main>
</body>
</html>
"""
    put(out / "index.html", page)
    return out / "index.html"
