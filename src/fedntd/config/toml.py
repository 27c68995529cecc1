"""Settings as tables: read from TOML, change single keys, write back, and compare."""

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from fedntd.config.registry import Choice, all_options, typed
from fedntd.config.schema import CHOICES, Config
from fedntd.data.download import SOURCES
from fedntd.errors import KEY, FedntdError, require, require_known, require_one_of

NAMES = tuple(f"{section}.name" for section in CHOICES)


def build(cls: type, table: Mapping[str, Any], path: str = "") -> Any:
    """The dataclass `cls` from a TOML table; an unknown key is an error that names the nearest known one."""
    hints = type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            if suggestion := in_another_section(key):
                message = f"unknown key '{KEY}'; did you mean '{suggestion}'?"
                raise FedntdError(message, f"{path}{key}", value, [suggestion])
            require_known(key, hints, f"unknown key '{KEY}'", f"{path}{key}")
        kind = hints[key]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                first = next(iter(type_hints(kind)))
                raise FedntdError(
                    f"'{path}{key}' is a section, written [{path}{key}], not a single value; one of its keys is "
                    f"{path}{key}.{first}"
                )
            if kind is Choice:
                rest = dict(value)
                default = cls.__dataclass_fields__[key].default
                name = typed(f"{path}{key}.name", rest.pop("name", default.name), str)
                values[key] = Choice(name, rest)
            else:
                values[key] = build(kind, value, f"{path}{key}.")
        else:
            values[key] = typed(f"{path}{key}", value, kind)
    return cls(**values)


def in_another_section(key: str) -> str:
    """The full key that was probably meant, or "". The key may lack its section, be in a wrong one, or be shortened:
    `rounds`, `federation.lr`, `epochs`, `alpha`."""
    last_parts = {known: known.split(".")[-1] for known in flat(Config()) if "." in known}
    keys = (
        [known for known, last in last_parts.items() if last == key]
        or [known for known, last in last_parts.items() if key in last.split("_")]
        or [f"{section}.{key}" for section in CHOICES if key in all_options(section)]
    )
    return keys[0] if keys and key != "name" else ""  # most sections have a name


@cache
def type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


# `protocol` in a table stands for these settings. The table's own settings override them. A Config has no `protocol`.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "released": {"optimiser": {"lr": 0.01}},  # as in the authors' code
    "published": {"optimiser": {"lr": 0.003}},  # comes closest to the printed figures: docs/results.md
}


def from_table(table: Mapping[str, Any]) -> Config:
    """The config that a table of settings stands for; missing keys have their defaults."""
    table = dict(table)
    require(
        "preset" not in table,
        "'preset' is not a key; name a preset in place of a file, as in: fedntd run cifar10-s2 --set seed=1",
    )
    protocol = typed("protocol", table.pop("protocol", "released"), str)
    require_one_of("protocol", protocol, PROTOCOLS)
    for section, values in PROTOCOLS[protocol].items():
        own = table.get(section, {})
        table[section] = {**values, **own} if isinstance(own, Mapping) else own
    return build(Config, table)


def read(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except FileNotFoundError:
        raise FedntdError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FedntdError(f"{path} cannot be read: {error}") from error
    except ValueError as error:  # also raised for integers with thousands of digits
        raise FedntdError(f"{path} is not valid TOML: {error}") from error


def with_settings(table: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The table with each "section.key=value" of `settings` applied. A value is read as TOML, else as a plain string.

    Choosing another partition, model or algorithm drops the options of the previous one; naming the same keeps them.

    >>> with_settings({"seed": 0, "algorithm": {"beta": 0.3}}, ["seed=3", "algorithm.name=fedavg"])
    {'seed': 3, 'algorithm': {'name': 'fedavg'}}
    >>> with_settings({"algorithm": {"beta": 0.3}}, ["algorithm.name=fedntd"])
    {'algorithm': {'beta': 0.3, 'name': 'fedntd'}}
    """
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for setting in sorted(settings, key=lambda s: s.partition("=")[0].strip() not in NAMES):  # names first
        key, equals, text = setting.partition("=")
        require(bool(equals and key.strip()), f"--set takes key=value, such as seed=3, not '{setting}'")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            value = text.strip()
        *sections, last = key.strip().split(".")
        if key.strip() in NAMES and value != name_in(result, sections[0]):
            result[sections[0]] = {}
        node = result
        for section in sections:
            node = node.setdefault(section, {})
            require(isinstance(node, dict), f"--set {setting}: '{section}' is a single value, not a section")
        node[last] = value
    return result


def name_in(table: Mapping[str, Any], section: str) -> Any:
    """The name that the table has in this section, or the default."""
    values = table.get(section, {})
    return values.get("name", getattr(Config, section).name) if isinstance(values, Mapping) else None


# --- writing ----------------------------------------------------------------------------------------------------


def to_table(config: Config) -> dict[str, Any]:
    """The nested table of a config, with all keys."""
    table: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Choice):
            table[f.name] = {"name": value.name, **value.options}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            table[f.name] = dataclasses.asdict(value)
        else:
            table[f.name] = value
    return table


def to_toml(config: Config) -> str:
    """TOML text that reads back as the same config. A key that is None has no TOML form and is left out."""
    table = to_table(config)
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and v is not None}
    sections = {k: v for k, v in table.items() if isinstance(v, dict)}
    blocks = ["\n".join(toml_line(k, v) for k, v in plain.items())]
    for name, section in sections.items():
        blocks.append("\n".join([f"[{name}]", *(toml_line(k, v) for k, v in section.items() if v is not None)]))
    return "\n\n".join(blocks) + "\n"


def toml_line(key: str, value: Any) -> str:
    return f"{key} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """A value in TOML. Values of other types, such as dates, become text, so that the key's own check rejects them.

    >>> toml_value({"shares": [0.5, math.inf], "of": {"cats": True}})
    '{"shares" = [0.5, inf], "of" = {"cats" = true}}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON writes strings, numbers and booleans as TOML does, except for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def flat(config: Config) -> dict[str, Any]:
    """The settings by full key, {"federation.rounds": 200, ...}: for tables and for comparing runs."""
    return {
        f"{key}.{name}" if name else key: value
        for key, section in to_table(config).items()
        for name, value in (section.items() if isinstance(section, dict) else [("", section)])
    }


HOW = ("engine", "device", "workers", "together", "checkpoint_seconds")


def how(settings: Mapping[str, Any]) -> set[str]:
    """The keys that say how and where a run is computed, but not what it computes.

    They include the path of a dataset that is known by name. Any other dataset is identified by its path.
    """
    known = ("", "fashion-mini", *SOURCES)
    return {*HOW, *(f"{section}.path" for section in ("data", "auxiliary") if settings[f"{section}.name"] in known)}


def identity(config: Config) -> str:
    """A hash of what a run computes: the same for configs that differ only in how and where it is computed.

    >>> identity(Config(seed=1)) == identity(Config(seed=1, workers=2)) != identity(Config(seed=2, workers=2))
    True
    """
    settings = flat(config)
    what = {key: settings[key] for key in settings.keys() - how(settings)}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
