"""How settings and measured values are written for people."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any


def show(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def thing(name: str) -> str:
    """Of an import path "package.module:Thing", the thing."""
    return name.split(":")[-1]


def figure(key: str, value: float | None) -> str:
    """
    >>> figure("forgetting", -0.0001), figure("final", 0.5)
    ('0.000', '50.00')
    """
    if value is None:
        return "–"
    return f"{value:z.3f}" if key == "forgetting" else f"{100 * value:.2f}"


def count(number: int, what: str) -> str:
    """
    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.025, 5, 75, 5400)]
    ['25 ms', '5.0 s', '1.2 min', '1.5 h']
    """
    if 0 < seconds < 1:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
TIMES = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def size(count: float) -> str:
    unit, least = axis_unit(count, SIZES)
    return f"{count:.0f} B" if unit == "B" else f"{count / least:.2f} {unit}"


def axis_unit(largest: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The unit of an axis that goes up to `largest`, so that its numbers are neither tiny nor huge, and its size.

    >>> axis_unit(3e7, SIZES), axis_unit(0.5, TIMES)
    (('MB', 1000000.0), ('seconds', 1.0))
    """
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def write_in_any_locale() -> None:
    """Not every one has a ± or a –: a question mark in its place is better than no answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
