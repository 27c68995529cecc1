"""Formatting of settings and measured values for readers."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any


def show(value: Any) -> str:
    """A setting as in a config file, with numbers in short form."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def thing(name: str) -> str:
    """The last part of an import path: Thing of "package.module:Thing"."""
    return name.split(":")[-1]


def figure(key: str, value: float | None) -> str:
    """A measured value as in tables: forgetting with three decimals, all else in percent.

    >>> figure("forgetting", -0.0001), figure("final", 0.5)
    ('0.000', '50.00')
    """
    if value is None:
        return "–"
    return f"{value:z.3f}" if key == "forgetting" else f"{100 * value:.2f}"


def count(number: int, what: str) -> str:
    """A number with a noun, in the singular or plural.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """A time in a suitable unit.

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
    """A number of bytes in a suitable unit."""
    unit, least = axis_unit(count, SIZES)
    return f"{count:.0f} B" if unit == "B" else f"{count / least:.2f} {unit}"


def axis_unit(largest: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit that is at most `largest`, with its size; the smallest unit if there is none.

    >>> axis_unit(3e7, SIZES), axis_unit(0.5, TIMES)
    (('MB', 1000000.0), ('seconds', 1.0))
    """
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def write_in_any_locale() -> None:
    """Print a question mark for characters that the locale lacks, such as ± or –, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
