"""Tables of results beside the published ones, as HTML, Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from fedntd.paper.item import Cell, Results
from fedntd.paper.published import Published
from fedntd.report.latex import environment, tex


@dataclass(frozen=True)
class Figures:
    """A cell: the values of its finished runs, and the published one."""

    values: Sequence[float] = ()
    seconds: Sequence[float] = ()  # the second number of each run, usually F
    failed: int = 0  # number of failed runs
    wanted: int = 1  # number of runs wanted; 0: a cell of the paper that cannot be made here
    published: Published | None = None

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if len(self.values) else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for fewer than two runs."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def second(self) -> float | None:
        return float(np.mean(self.seconds)) if len(self.seconds) else None

    @property
    def done(self) -> int:
        return len(self.values) + self.failed


@dataclass(frozen=True)
class Table:
    """A table of results. A cell is `Figures` or plain text."""

    name: str  # of its files
    title: str
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[Cell, Figures | str]
    corner: str = "method"  # what the rows are
    digits: int = 2
    second: str = ""  # name of the second number, shown in parentheses; empty: not shown
    published_std: bool = False  # show the paper's standard deviation
    baseline: str = ""  # row (or column) to which arrows compare the others; empty: none
    compare: str = "rows"  # compare "rows" within a column, "columns" within a row, or nothing ("")
    lower_is_better: bool = False

    def cell(self, row: str, column: str) -> Figures | str:
        return self.cells.get((row, column), "")

    @property
    def done(self) -> tuple[int, int]:
        """The number of cells with all of their runs, and of all cells."""
        figures = [cell for cell in self.cells.values() if isinstance(cell, Figures) and cell.wanted]
        return sum(cell.done >= cell.wanted for cell in figures), len(figures)

    @property
    def begun(self) -> int:
        """The number of cells with some of their runs."""
        return sum(isinstance(cell, Figures) and 0 < cell.done < cell.wanted for cell in self.cells.values())

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to show."""
        return not any(isinstance(cell, str) or cell.done for cell in self.cells.values())

    def measured_part(self) -> "Table":
        """The table without rows and columns in which nothing is measured."""

        def has_content(row: str, column: str) -> bool:
            cell = self.cell(row, column)
            return bool(cell.done if isinstance(cell, Figures) else cell)

        rows = [row for row in self.rows if any(has_content(row, column) for column in self.columns)]
        columns = [column for column in self.columns if any(has_content(row, column) for row in self.rows)]
        return replace(self, rows=rows, columns=columns)

    def left_out_of(self, part: "Table") -> str:
        """What `part` of the table leaves out: "Open rows: FedCurv. Open columns: E=1, E=3."."""
        sentences = []
        for kind, names, shown in (("rows", self.rows, part.rows), ("columns", self.columns, part.columns)):
            missing = [name for name in names if name not in shown]
            sentences += [f"Open {kind}: {', '.join(missing)}."] if missing else []
        return " ".join(sentences)

    # --- the parts of a cell, as text ---

    def number(self, value: float | None, digits: int | None = None) -> str:
        return "–" if value is None else f"{value:.{self.digits if digits is None else digits}f}"

    def measured(self, cell: Figures) -> str:
        """Mean and deviation, "52.90 ± 1.02"; only the mean for a single run."""
        if cell.mean is None:
            return "failed" if cell.failed else "open"
        spread = f" ± {self.number(cell.std)}" if cell.std is not None else ""
        return self.number(cell.mean) + spread

    def beside(self, cell: Figures) -> str:
        """The second number, "(0.43)", if there is one."""
        return f"({cell.second:.2f})" if self.second and cell.second is not None else ""

    def printed(self, cell: Figures) -> str:
        """The published value, "52.61 (0.43)"."""
        paper = cell.published
        if paper is None:
            return ""
        if paper.value is None:
            return "failed"
        digits = max(self.digits, 2) if self.digits > 1 else self.digits
        spread = f" ± {paper.std:.2f}" if self.published_std and paper.std is not None else ""
        second = f" ({paper.second:.2f})" if self.second and paper.second is not None else ""
        return f"{paper.value:.{digits}f}{spread}{second}"

    def difference(self, cell: Figures) -> str:
        """Measured minus published, "+0.29"."""
        if cell.mean is None or cell.published is None or cell.published.value is None:
            return ""
        return f"{float(self.number(cell.mean)) - cell.published.value:+.{self.digits}f}".replace("-", "−")

    def notes(self, cell: Figures) -> str:
        """Notes on missing and failed runs."""
        notes = []
        if cell.failed and cell.mean is not None:
            notes.append(f"{cell.failed} failed")
        if 0 < cell.done < cell.wanted:
            notes.append(f"{cell.done} of {cell.wanted} runs")
        return ", ".join(notes)

    def arrow(self, row: str, column: str) -> str:
        cell = self.cell(row, column)
        name = row if self.compare == "rows" else column
        base = self.cell(self.baseline, column) if self.compare == "rows" else self.cell(row, self.baseline)
        if name == self.baseline or not (isinstance(cell, Figures) and isinstance(base, Figures)):
            return ""
        value, other = self.shown(cell), self.shown(base)
        if value is None or other is None or value == other:
            return ""
        return "↑" if value > other else "↓"

    def is_best(self, row: str, column: str) -> bool:
        """Whether a cell is the best of its peers, rounded as shown; False without peers."""
        peers = (
            [self.cell(r, column) for r in self.rows]
            if self.compare == "rows"
            else [self.cell(row, c) for c in self.columns]
        )
        values = [v for peer in peers if isinstance(peer, Figures) and (v := self.shown(peer)) is not None]
        cell = self.cell(row, column)
        if not self.compare or len(values) < 2 or not isinstance(cell, Figures):
            return False
        return self.shown(cell) == (min if self.lower_is_better else max)(values)

    def shown(self, cell: Figures) -> float | None:
        """The mean, rounded as shown."""
        return None if cell.mean is None else float(self.number(cell.mean))


def accuracy_cells(
    results: Results,
    published: Mapping[Cell, Published],
    cells: Sequence[Cell] | None = None,
    rule: str = "",
) -> dict[Cell, Figures]:
    """Accuracy in percent and F of all cells of an item, or of some `cells`.

    `rule` says which accuracy: final, ema, ... (by default that of the protocol).
    """
    wanted, rule = results.item.wanted_seeds(results.setting), rule or results.setting.rule
    return {
        cell: Figures(
            values=[100 * result.accuracies[rule] for result in results.finished(*cell)],
            seconds=[result.forgetting for result in results.finished(*cell)],
            failed=sum(result.status == "failed" for result in results[cell]),
            wanted=wanted,
            published=published.get(cell),
        )
        for cell in (results if cells is None else cells)
    }


# --- as text ----------------------------------------------------------------------------------------------------


def to_markdown(table: Table) -> str:
    def text(row: str, column: str) -> str:
        cell = table.cell(row, column)
        if isinstance(cell, str):
            return cell.replace("|", r"\|")
        measured = table.measured(cell)
        first = " ".join(
            filter(None, [bold(measured, table, row, column), table.beside(cell), table.arrow(row, column)])
        )
        return "<br>".join(filter(None, [first, aside(table, cell), table.notes(cell)]))

    def bold(measured: str, table: Table, row: str, column: str) -> str:
        return f"**{measured}**" if table.is_best(row, column) else measured

    lines = [
        f"| {table.corner} | " + " | ".join(table.columns) + " |",
        "|---" * (1 + len(table.columns)) + "|",
        *(f"| {row} | " + " | ".join(text(row, column) for column in table.columns) + " |" for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def aside(table: Table, cell: Figures) -> str:
    """The published value and the difference: "paper 52.61 (0.43), +0.29"."""
    printed, difference = table.printed(cell), table.difference(cell)
    return ", ".join(filter(None, [f"paper {printed}" if printed else "", difference]))


def to_html(table: Table) -> str:
    def text(row: str, column: str) -> str:
        cell = table.cell(row, column)
        if isinstance(cell, str):
            return f"<td>{escape(cell)}</td>"
        measured, arrow = table.measured(cell), table.arrow(row, column)
        number, _, spread = measured.partition(" ± ")
        kind = "open" if measured == "open" else "bad" if measured == "failed" else ""
        parts = [f"<b>{number}</b>" if table.is_best(row, column) else f"<span class='{kind}'>{number}</span>"]
        parts += [f"<small>± {spread}</small>"] if spread else []
        parts += [f"<small>{table.beside(cell)}</small>"] if table.beside(cell) else []
        parts += [f"<span class='{'up' if arrow == '↑' else 'down'}'>{arrow}</span>"] if arrow else []
        printed, difference = table.printed(cell), table.difference(cell)
        paper = f"<div class='paper'>{escape(printed)}{f' <i>{difference}</i>' if difference else ''}</div>"
        notes = f"<div class='note'>{table.notes(cell)}</div>" if table.notes(cell) else ""
        return f"<td class='n'>{' '.join(parts)}{paper if printed else ''}{notes}</td>"

    head = "".join(f"<th scope='col'>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(
        f"<tr><th scope='row'>{escape(row)}</th>{''.join(text(row, column) for column in table.columns)}</tr>"
        for row in table.rows
    )
    top = f"<thead><tr><th scope='col'>{escape(table.corner)}</th>{head}</tr></thead>"
    return f"<div class='scroll'><table>{top}\n<tbody>\n{body}\n</tbody></table></div>"


def to_latex(table: Table) -> str:
    """A table environment; needs the packages booktabs, amssymb and graphicx."""

    def text(row: str, column: str) -> str:
        cell = table.cell(row, column)
        if isinstance(cell, str):
            return tex(cell)
        number, _, spread = table.measured(cell).partition(" ± ")
        number = rf"\textbf{{{number}}}" if table.is_best(row, column) else number
        first = number + (rf"{{\scriptsize $\pm${spread}}}" if spread else "")
        first = " ".join(filter(None, [first, table.beside(cell), tex(table.arrow(row, column))]))
        below = [rf"{{\scriptsize {tex(line)}}}" for line in (aside(table, cell), table.notes(cell)) if line]
        lines = r" \\ ".join([first, *below])
        return rf"\shortstack{{{lines}}}" if below else first

    rows = [[tex(row), *(text(row, column) for column in table.columns)] for row in table.rows]
    head = [tex(name) for name in (table.corner, *table.columns)]
    return environment(table.name, tex(f"{table.title}. {table.caption}"), head, rows)


def to_csv(table: Table) -> str:
    """One line per cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    heading = ("row", "column", "runs", "wanted", "failed", "mean", "std", table.second or "second")
    writer.writerow([*heading, "paper", "paper std", f"paper {table.second or 'second'}", "difference", "text"])
    for row in table.rows:
        for column in table.columns:
            cell = table.cell(row, column)
            if isinstance(cell, str):
                writer.writerow([row, column, *[""] * 10, cell])
                continue
            paper = cell.published or Published(None)
            gap = None if cell.mean is None or paper.value is None else cell.mean - paper.value
            numbers: list[Any] = [cell.mean, cell.std, cell.second, paper.value, paper.std, paper.second, gap]
            plain = ["" if number is None else f"{number:.6g}" for number in numbers]
            status = "failed" if cell.failed and cell.mean is None else "" if cell.done else "open"
            writer.writerow([row, column, len(cell.values), cell.wanted, cell.failed, *plain, status])
    return file.getvalue()
