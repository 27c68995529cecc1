"""Search."""

from pathlib import Path


def search_pictures(folder: Path) -> list[tuple[str, str, str]]:
    return []
