"""Whether code that a run folder's config names may be imported without asking."""

import importlib.util
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fedntd.config.registry import is_own
from fedntd.errors import INSTALLED, require

OF_RUNS = ("status.json", "records.jsonl", "environment.json", "partition.json", "checkpoint.safetensors")


def is_run_config(file: Path) -> bool:
    """Whether a config file came with a run folder, and not from the user's own hand."""
    return file.name == "config.toml" and any((file.parent / name).exists() for name in OF_RUNS)


def is_sweep_copy(file: Path) -> bool:
    """Whether a sweep's file came with its runs: a sweep's folder has a copy of it beside them."""
    return file.name == "sweep.toml" and any(map(is_run_config, file.parent.glob("*/config.toml")))


def require_trust(table: Mapping[str, Any], file: Path, trust: bool) -> None:
    """A file that came with a run folder may import from fedntd and from the current project. A folder may be a
    stranger's, so that for all else the user has to say that they trust it."""
    asked = [name for name in names_in(table) if is_own(name) and not is_of_project(name, file.parent)]
    told = " and ".join(f"'{name}'" for name in dict.fromkeys(asked))
    require(
        trust or not asked,
        f"{file} would import code that is neither fedntd's nor of the project in the current folder: {told}; "
        f"if you trust it, add --trust (in Python: trust=True)",
    )


def names_in(value: Any, key: str = "") -> Iterator[str]:
    """All that a table calls a name, wherever it stands: lists stand for several runs, and a sweep's keys may be
    written in one, as "algorithm.name"."""
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from names_in(one, inner)
    elif isinstance(value, list):
        for one in value:
            yield from names_in(one, key)
    elif isinstance(value, str) and key.strip().split(".")[-1] == "name":
        yield value


def is_of_project(name: str, folder: Path) -> bool:
    """Whether an import path leads to fedntd itself, or to a module or package of the current project that neither came
    with the run folder nor has it inside; found without importing anything."""
    top = name.partition(":")[0].partition(".")[0]
    if top in ("fedntd", "__main__"):  # the latter is running already: a script of the user's, a notebook
        return True
    here = Path.cwd()
    try:
        # of a top-level module, this imports nothing; what trains looks into the current folder last
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(here)])
    except (ImportError, ValueError):
        return False
    if spec is None:  # there is nothing to import, which is told better when it is tried
        return True
    places = [*(spec.submodule_search_locations or ())]  # of a package; without an __init__.py there may be several
    if spec.has_location and spec.origin:
        places.append(spec.origin)
    return bool(places) and all(is_within(Path(place).resolve(), here, folder.resolve()) for place in places)


def is_within(place: Path, here: Path, folder: Path) -> bool:
    """Whether a module's file, or a package's folder, is one of the project's own."""
    # in a folder of a project, the whole project; it may be installed from there
    marked = [root for root in (here, *here.parents) if any((root / m).exists() for m in ("pyproject.toml", ".git"))]
    library = Path(sysconfig.get_path("stdlib")).resolve()
    foreign = INSTALLED & {*place.parts} or place.is_relative_to(library) or place.is_relative_to(folder)
    return place.is_relative_to((marked or [here])[0]) and not foreign and not folder.is_relative_to(place)
