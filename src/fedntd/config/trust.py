"""Whether code that a run folder's config names may be imported without asking."""

import importlib.util
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedntd.config.registry import is_own
from fedntd.config.schema import CHOICES
from fedntd.errors import INSTALLED, require


def is_run_config(file: Path) -> bool:
    """Whether a config file came with a run folder, and not from the user's own hand."""
    return file.name == "config.toml" and any(
        (file.parent / name).exists() for name in ("status.json", "records.jsonl")
    )


def require_trust(table: Mapping[str, Any], folder: Path, trust: bool) -> None:
    """A config that came with a run folder may import from fedntd and from the current project. A folder may be a
    stranger's, so that for all else the user has to say that they trust it."""
    names = (table[s].get("name") for s in ("data", "auxiliary", *CHOICES) if isinstance(table.get(s), Mapping))
    asked = [name for name in names if isinstance(name, str) and is_own(name) and not is_of_project(name, folder)]
    told = " and ".join(f"'{name}'" for name in asked)
    require(
        trust or not asked,
        f"{folder / 'config.toml'} would import code that is neither fedntd's nor in the current folder: {told}; "
        f"if you trust it, add --trust (in Python: trust=True)",
    )


def is_of_project(name: str, folder: Path) -> bool:
    """Whether an import path leads to fedntd itself, or to a file below the current folder that did not come with the
    run folder and is not part of an installed package; found without importing anything."""
    top = name.partition(":")[0].partition(".")[0]
    if top == "fedntd":
        return True
    here = Path.cwd()
    try:
        spec = importlib.util.find_spec(top)  # of a top-level module, this imports nothing
    except (ImportError, ValueError):
        return False
    if spec is None:  # what trains looks into the current folder last
        file = here / top
    elif spec.has_location and spec.origin:
        file = Path(spec.origin)
    else:  # built in, or a package of several folders
        return False
    file = file.resolve()
    foreign = (folder.resolve(), Path(sysconfig.get_path("stdlib")).resolve())
    below = file.is_relative_to(here) and not INSTALLED & {*file.parts}
    return below and not any(file.is_relative_to(one) for one in foreign)
