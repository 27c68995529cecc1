"""Public names of a package that are imported when they are first used: most need torch or matplotlib, which take long
to import."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for the package: `modules` says in which module of it each public name is."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get
