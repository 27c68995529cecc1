"""What a name in a config stands for: an entry of a registry, or code of the user's own, with its own parameters.

Reading a config never imports or calls code that it names: whoever looks at a run folder may have it from a stranger.
`resolve` therefore leaves an import path as it is. `resolve_own` and `call` import it, for those who train.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import ModuleType, NoneType, UnionType
from typing import Any, get_args

from torch import nn

from fedntd.algorithms import ALGORITHMS, SERVER_RULES, FedAvg
from fedntd.algorithms.released import NAMES as RELEASED_NAMES
from fedntd.algorithms.released import released_values, without_suffix
from fedntd.algorithms.robust import ROBUST
from fedntd.data.dataset import Dataset
from fedntd.data.datasets import DATASETS
from fedntd.data.partition import PARTITIONS
from fedntd.errors import KEY, FedntdError, did_you_mean, nearest, reason, require, require_known
from fedntd.models import MODELS

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "server": SERVER_RULES,
    "auxiliary": DATASETS,
    "robust": ROBUST,
}
GIVEN = "given:"  # begins the name of a dataset or model that was handed over as a Python object
# parameters that fedntd itself fills in when it calls the chosen thing; all others are config keys
SUPPLIED = {"labels", "clients", "rng", "shape", "classes", "up", "p"}
LARGEST = 1e38  # of real numbers: weights have 32 bits, and what these cannot hold breaks in many places


@dataclass(frozen=True)
class Choice:
    """`name` picks an entry of a registry, or an import path "package.module:Thing"; `options` are its parameters."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def is_own(name: str) -> bool:
    """Whether a name is an import path, which stands for code of the user's own."""
    return ":" in name and not name.startswith(GIVEN)


def resolve(section: str, choice: Choice) -> Choice:
    """Check the options against the parameters of what was chosen, and fill in its defaults; without importing.

    Options of the user's own code are only checked to be plain values, since its parameters are not known yet.
    """
    check_name(section, choice.name)
    if is_own(choice.name):
        return Choice(choice.name, {key: typed(f"{section}.{key}", v, Any) for key, v in choice.options.items()})
    if section == "algorithm" and (method := without_suffix(choice.name)):
        choice = Choice(method, {**released_values(method), **choice.options})
    return fill_in(section, choice, target(section, choice.name))


def resolve_own(section: str, choice: Choice) -> Choice:
    """The same for code of the user's own, which is imported for it."""
    return fill_in(section, choice, target(section, choice.name))


def fill_in(section: str, choice: Choice, function: Callable[..., Any]) -> Choice:
    takes = {n: p for n, p in parameters(function).items() if n not in SUPPLIED}
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return Choice(
            choice.name, {key: typed(f"{section}.{key}", value, Any) for key, value in choice.options.items()}
        )
    options = {}
    for key, value in choice.options.items():
        if key not in takes:
            told, name = f"is not a setting of {section} '{choice.name}'", f"{section}.{key}"
            require(bool(takes), f"{told}; it takes none", name)
            require_known(key, takes, told, name)
        options[key] = typed(f"{section}.{key}", value, takes[key].annotation)
    for key, parameter in takes.items():
        if key not in options and parameter.default is not parameter.empty:
            options[key] = parameter.default
        elif key not in options:
            raise FedntdError(f"{section} '{choice.name}' needs the key {KEY}", f"{section}.{key}")
    return Choice(choice.name, {k: options[k] for k in takes})


def all_options(section: str) -> set[str]:
    """The settings that any of the known things of a section has."""
    return {name for function in REGISTRIES[section].values() for name in parameters(function)} - SUPPLIED


def check_name(section: str, name: str) -> None:
    """Whether it is one of the registry or has the form of an import path."""
    registry = REGISTRIES[section]
    valid = [*registry, *RELEASED_NAMES] if section == "algorithm" else registry
    if name in valid or name.startswith(GIVEN):
        return
    module, colon, attribute = name.partition(":")
    if "" in (module, colon, attribute) or module.startswith("."):
        head, _, last = name.rpartition(".")
        require(
            not (head and all(part.isidentifier() for part in name.split("."))),
            f"= '{name}' is not known; of your own, it is written with a colon: '{head}:{last}'",
            f"{section}.name",
        )
        told = f"= '{name}' is not known; {did_you_mean(name, valid)}; your own is given as 'package.module:Name'"
        raise FedntdError(told, f"{section}.name", name, nearest(name, [*valid]))


def target(section: str, name: str) -> Callable[..., Any]:
    """The function or class that `name` stands for in `section`; code of the user's own is imported."""
    if name in REGISTRIES[section]:
        return REGISTRIES[section][name]
    if name.startswith(GIVEN):
        return partial(not_given_again, section, name)
    check_name(section, name)
    return imported(section, name)


def imported(section: str, name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append("")  # last, so that no file in the current folder takes the place of an installed package
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
            # what a module has imported is not its own, and whoever named it was not asked about that
            require(not isinstance(found, ModuleType), f"{section}.name = '{name}' leads through the module '{part}'")
    except FedntdError:
        raise
    except (ImportError, AttributeError) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]
        where = "; it must be a file in the folder you are in, or installed" if absent else ""
        raise FedntdError(f"= '{name}' cannot be imported: {error}{where}", f"{section}.name", name) from error
    except Exception as error:  # whatever a module of the user's own does when it is imported
        raise FedntdError(f"= '{name}' cannot be imported: {reason(error)}", f"{section}.name", name) from error
    check_kind(section, name, found)
    return found


def check_kind(section: str, name: str, found: Any) -> None:
    """Before anything is called: whether it is of a kind that this section can use, by its class or its signature."""
    told = f"{section}.name = '{name}'"
    require(callable(found), f"{told} is not a function or class")
    if section in ("algorithm", "server"):
        fits = isinstance(found, type) and issubclass(found, FedAvg)
        require(fits, f"{told} is no method: it must be a class derived from FedAvg")
        return
    try:
        signature = inspect.signature(found, eval_str=True)
    except Exception as error:  # some that are written in C have none; an annotation may name what is not there
        raise FedntdError(f"{told} cannot be used: {reason(error)}") from error
    if section in ("partition", "robust"):
        needed = ("labels", "clients") if section == "partition" else ("up", "p")
        what = "way to deal out samples" if section == "partition" else "rule for uploads"
        fits = {*needed} <= signature.parameters.keys()
        require(fits, f"{told} is no {what}: it must be a function of {' and '.join(needed)}")
        return
    kind, noun, written = (nn.Module, "model", "nn.Module") if section == "model" else (Dataset, "dataset", "Dataset")
    returned = found if isinstance(found, type) else signature.return_annotation
    require(
        isinstance(returned, type) and issubclass(returned, kind),
        f"{told} is no {noun}: it must be a class derived from {written}, or a function that says that it returns one, "
        f"as in: def {name.rpartition(':')[2]}(...) -> {written}",
    )


def not_given_again(section: str, name: str, **_: Any) -> None:
    raise FedntdError(
        f"this run's {section} '{name.removeprefix(GIVEN)}' was an object in Python, which no file can hold; "
        f"hand it to federate() again"
    )


def call(section: str, choice: Choice, **supplied: Any) -> Any:
    """Call the chosen thing with its options and with those of `supplied` that it takes."""
    function = target(section, choice.name)
    takes = parameters(function)
    return function(**{k: v for k, v in supplied.items() if k in takes}, **choice.options)


@lru_cache(1000)  # a sweep has thousands of configs
def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function, eval_str=True).parameters


def typed(key: str, value: Any, wanted: Any) -> Any:
    """`value` if it is of the wanted type (an int will do for a float) and not too large, else one sentence."""
    kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    will_do = float in kinds and isinstance(value, int) and not isinstance(value, bool)
    if will_do or isinstance(value, float):
        require(abs(value) <= LARGEST, f"must be a finite number of at most 1e38, not {value}", key)
    if will_do:
        return float(value)
    simple = tuple(kind for kind in kinds if kind in (int, float, bool, str, NoneType))
    if not simple or (isinstance(value, simple) and not (isinstance(value, bool) and bool not in simple)):
        return value
    if simple == (bool,):
        raise FedntdError(f"must be true or false, not {value!r}", key, value)  # as TOML writes them: True is a string
    names = " or ".join(kind.__name__ for kind in simple if kind is not NoneType)
    raise FedntdError(f"must be of type {names}, not {value!r}", key, value)
