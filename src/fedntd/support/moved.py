"""Modules that have moved. For one release the old names still work, with a warning that names the new ones."""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, tuple[str, ...]] = {
    "fedntd.bench": ("fedntd.simulation.speed",),
    "fedntd.buffers": ("fedntd.engine.buffers",),
    "fedntd.choices": ("fedntd.config.registry",),
    "fedntd.collector": ("fedntd.support.collector",),
    "fedntd.data.auxiliary": ("fedntd.config.unlabelled",),
    "fedntd.data.chosen": ("fedntd.config.build",),
    "fedntd.devices": ("fedntd.engine.devices",),
    "fedntd.engines": ("fedntd.engine.sequential",),
    "fedntd.environment": ("fedntd.support.environment",),
    "fedntd.federation": ("fedntd.simulation.federation", "fedntd.simulation.setup", "fedntd.simulation.checks"),
    "fedntd.files": ("fedntd.support.files",),
    "fedntd.forking": ("fedntd.engine.forking",),
    "fedntd.graphs": ("fedntd.engine.cuda_graphs",),
    "fedntd.grid": ("fedntd.config.grids",),
    "fedntd.interrupts": ("fedntd.support.interrupts",),
    "fedntd.local": ("fedntd.engine.training",),
    "fedntd.metrics": ("fedntd.engine.testing", "fedntd.runs.measures"),
    "fedntd.optim": ("fedntd.engine.optim",),
    "fedntd.paper.ledger": ("fedntd.runs.ledger",),
    "fedntd.plan": ("fedntd.engine.plan", "fedntd.config.cohort"),
    "fedntd.presets": ("fedntd.config.presets",),
    "fedntd.progress": ("fedntd.cli.progress",),
    "fedntd.record": ("fedntd.runs.record",),
    "fedntd.report.wording": ("fedntd.support.wording",),
    "fedntd.rounds": ("fedntd.simulation.federation",),
    "fedntd.steps": ("fedntd.engine.compiler",),
    "fedntd.sweep.estimate": ("fedntd.sweep.cost",),
    "fedntd.sweep.plan": ("fedntd.sweep.jobs",),
    "fedntd.tables": ("fedntd.config.toml",),
    "fedntd.tiles": ("fedntd.kernels.tiles",),
    "fedntd.together": ("fedntd.simulation.together", "fedntd.simulation.sharing"),
    "fedntd.tracing": ("fedntd.engine.tracing",),
    "fedntd.triton_kernels": ("fedntd.kernels.triton_kernels",),
    "fedntd.trust": ("fedntd.config.trust",),
    "fedntd.vectorised": ("fedntd.engine.vectorised",),
}


class OldNames(MetaPathFinder, Loader):
    """Imports a module of `MOVED` by its old name, with the contents of the new modules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warn(module.__name__, " and ".join(new))
        for name in new:
            contents = vars(importlib.import_module(name))
            vars(module).update({key: value for key, value in contents.items() if not key.startswith("__")})


def install() -> None:
    sys.meta_path.append(OldNames())  # last: used only if no other finder knows the module


def names_of(package: str, module: str, renamed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """A `__getattr__` for a package that used to be a module. Its names are in `module` now, some of them `renamed`."""

    def get(name: str) -> Any:
        new = f"{package}.{module}"
        # the import system calls this with the names of submodules, too
        if not name.startswith("__") and importlib.util.find_spec(f"{package}.{name}") is None:
            contents = vars(importlib.import_module(new))
            new_name = (renamed or {}).get(name, name)
            if new_name in contents:
                warn(f"{package}.{name}", f"{new}.{new_name}")
                return contents[new_name]
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return get


def warn(old: str, new: str) -> None:
    warnings.warn(f"{old} has moved to {new}; the old name will go with the next release", DeprecationWarning, 3)
