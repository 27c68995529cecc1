"""Tables, figures and an HTML page from recorded runs."""

from typing import TYPE_CHECKING

from fedntd.support.lazy import lazy

if TYPE_CHECKING:
    from fedntd.report.compare import compare_json, compare_table
    from fedntd.report.export import load, write_rows
    from fedntd.report.figures import (
        class_accuracy,
        consistency_curves,
        forgetting_curves,
        learning_curves,
        local_curves,
        partition_map,
        save_figures,
    )
    from fedntd.report.html import View, write_report
    from fedntd.report.latex import compare_latex
    from fedntd.report.summary import Group, Summary, group, summarise

__all__ = [
    "Group",
    "Summary",
    "View",
    "class_accuracy",
    "compare_json",
    "compare_latex",
    "compare_table",
    "consistency_curves",
    "forgetting_curves",
    "group",
    "learning_curves",
    "load",
    "local_curves",
    "partition_map",
    "save_figures",
    "summarise",
    "write_report",
    "write_rows",
]

__getattr__ = lazy(
    __name__,
    {
        "Group": "summary",
        "Summary": "summary",
        "View": "html",
        "class_accuracy": "figures",
        "compare_json": "compare",
        "compare_latex": "latex",
        "compare_table": "compare",
        "consistency_curves": "figures",
        "forgetting_curves": "figures",
        "group": "summary",
        "learning_curves": "figures",
        "load": "export",
        "local_curves": "figures",
        "partition_map": "figures",
        "save_figures": "figures",
        "summarise": "summary",
        "write_report": "html",
        "write_rows": "export",
    },
)
