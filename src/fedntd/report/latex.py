"""Comparison tables in LaTeX."""

import re
from collections.abc import Sequence

from fedntd.report.compare import Extra, best_shown, headings, outcomes
from fedntd.report.summary import group
from fedntd.runs.reader import Run
from fedntd.support.wording import count

P_OUT = "\ue000"  # stands for p̃, which is two characters
# fmt: off
TEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "→": r"$\to$", "×": r"$\times$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "τ": r"$\tau$", "μ": r"$\mu$", "Λ": r"$\Lambda$",
    "σ": r"$\sigma$", "ρ": r"$\rho$", "Σ": r"$\sum$", "…": r"\dots{}", P_OUT: r"$\tilde{p}$",
    "≥": r"$\ge$", "≤": r"$\le$", "‖": r"$\|$", "∞": r"$\infty$", "✓": r"$\checkmark$", "✗": r"$\times$",
})
# fmt: on


def tex(text: str) -> str:
    """Escape text for LaTeX.

    >>> tex("50% of α=0.1 & s_2")
    '50\\\\% of $\\\\alpha$=0.1 \\\\& s\\\\_2'
    """
    return text.replace("p\u0303", P_OUT).translate(TEX)


def environment(name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table environment from cells in LaTeX; needs the packages booktabs, amssymb and graphicx."""
    lines = [
        "% needs \\usepackage{booktabs,amssymb,graphicx}",
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{name}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",  # scaled down if too wide
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def compare_latex(runs: Sequence[Run], by: Sequence[str] = (), extras: Sequence[Extra] = ()) -> str:
    """The comparison table in LaTeX. Several methods in several settings become a table of methods by settings."""
    from fedntd.report.html import pivot, summary_row, unique  # html imports jinja2, which is slow

    groups = group(runs, by)
    best, facets = best_shown(groups), unique(g.facet for g in groups if g.facet)
    if facets and not extras:
        what, head = "Final test accuracy in percent", ["method", *facets]
        rows = [(method, cells) for method, _, cells in pivot(groups, best)]
    else:
        shown = headings(extras)
        what, head = "Test accuracy in percent, forgetting F", ["run", *shown.values(), *(e.heading for e in extras)]
        rows = []
        for g in groups:
            cells = summary_row(g, best, extras, shown)["cells"]
            name = g.label if g.finished else f"{g.label} ({', '.join(outcomes(g))})"
            rows.append((name, cells[: len(shown)] + cells[len(shown) + 2 :]))  # without rounds and time
    several, failed = any(len(g.runs) > 1 for g in groups), sum(run.status == "failed" for run in runs)
    over = f", mean ± standard deviation over {'runs' if by else 'seeds'}" if several else ""
    without = f" Without {count(failed, 'run')} of {len(runs)} that failed." if failed else ""

    def text(cell: dict[str, str]) -> str:
        number = tex(re.sub("^-", "−", cell["text"]))
        number = rf"\textbf{{{number}}}" if cell["best"] else number
        return number + (rf" {{\scriptsize {tex(cell['spread'])}}}" if cell["spread"] else "")

    body = [[tex(name), *map(text, cells)] for name, cells in rows]
    return environment("runs", tex(f"{what}{over}.{without}"), [tex(name) for name in head], body)
