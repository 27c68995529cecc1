"""Figures of a search for the report: the value of each trial, over trials and over each setting."""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedntd.errors import FedntdError, reason
from fedntd.report.export import need
from fedntd.support.wording import show


def storage_of(folder: Path) -> str:
    return f"sqlite:///{folder.resolve()}/search.db"


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn any error of Optuna or its database into one sentence about the damaged file."""
    try:
        yield
    except Exception as error:
        raise FedntdError(
            f"{file} cannot be read ({reason(error)}); put a copy back, or delete it to begin the search anew: runs "
            f"that are there are not trained again"
        ) from error


def search_pictures(folder: Path) -> list[tuple[str, str, str]]:
    """Draw the study in a sweep's folder: (heading, PNG as base64, caption) of each figure; empty without a study."""
    if not (folder / "search.db").exists():
        return []
    optuna = need("optuna", "sweep", "the report of a search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from matplotlib.figure import Figure  # slow to import
    from matplotlib.ticker import LogLocator, MaxNLocator

    from fedntd.report.style import GREY, plain, styled

    with readable(folder / "search.db"):
        studies = {study.study_name for study in optuna.get_all_study_summaries(storage_of(folder))}
        if "search" not in studies:  # interrupted before the study was created
            return []
        study = optuna.load_study(study_name="search", storage=storage_of(folder))
    done = [t for t in study.trials if t.state.name == "COMPLETE" and t.value is not None]
    if not done:
        return []
    values = [100 * t.value for t in done]
    with styled():
        history = Figure(figsize=(6.8, 2.8), layout="constrained")
        ax = history.subplots()
        ax.plot([t.number for t in done], values, "o", color="#0072B2", markersize=4, label="a trial")
        best = [
            *np.maximum.accumulate(values),
            max(values),
        ]  # extended to the last trial, even if that failed or was pruned
        numbers = [*(t.number for t in done), max(t.number for t in study.trials if t.state.is_finished())]
        ax.step(numbers, best, where="post", color="#D55E00", label="best so far")
        for i, t in enumerate(t for t in study.trials if t.state.name == "PRUNED" and t.intermediate_values):
            last = 100 * t.intermediate_values[max(t.intermediate_values)]
            ax.plot(t.number, last, "x", color=GREY, markersize=4, label="" if i else "pruned, when it was stopped")
        ax.set(xlabel="trial", ylabel="accuracy (%)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        history.legend(loc="outside upper left", ncols=3)  # outside: points may be anywhere inside the axes

        keys = list(dict.fromkeys(key for t in done for key in t.params))
        slices = Figure(figsize=(max(3.4, 2.3 * len(keys)), 2.5), layout="constrained")
        for key, ax in zip(keys, slices.subplots(1, len(keys), sharey=True, squeeze=False).flat, strict=True):
            x = [t.params.get(key) for t in done]
            plottable = all(isinstance(v, int | float) and not isinstance(v, bool) for v in x)
            shown = [v if plottable else plain(show(v)) for v in x]
            ax.scatter(shown, values, c=[t.number for t in done], cmap="Blues", vmin=-len(done), s=16)
            # Few tick labels, so that they do not overlap.
            by_log = any(getattr(t.distributions.get(key), "log", False) for t in done)
            span = max(x) / min(x) if plottable and min(x) > 0 else 1
            if span > (4 if by_log else 20):
                ax.set_xscale("log")
                ax.xaxis.set_major_locator(LogLocator(subs=(1, 3) if span < 300 else (1,), numticks=5))
                ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                ax.xaxis.set_minor_formatter("")
            elif plottable:
                ax.locator_params(axis="x", nbins=4, integer=all(type(v) is int for v in x))
            ax.set(xlabel=key)
        slices.axes[0].set_ylabel("accuracy (%)")
    return [
        ("Trials", as_png(history), "Each trial's value, and the best so far."),
        ("Each setting by itself", as_png(slices), "One point a trial; later trials are darker."),
    ]


def as_png(figure: Any) -> str:
    from fedntd.report.style import styled

    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="png", dpi=150)
    return base64.b64encode(buffer.getvalue()).decode()
