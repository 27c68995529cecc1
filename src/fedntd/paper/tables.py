"""Tables: what was measured beside what was published."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    name: str
