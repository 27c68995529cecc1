"""Several runs from one table of settings: a list of values stands for one run with each of them."""

import itertools
from collections.abc import Mapping
from typing import Any

from fedntd.config.toml import NAMES, name_in
from fedntd.errors import require


def expand(table: Mapping[str, Any], before: Mapping[str, Any] = {}) -> list[tuple[str, dict[str, Any]]]:
    """All combinations of the listed values: for each, a name made of these values, and the table of that run.

    `seeds` is another word for `seed`. The name is empty if the table has no lists. `before` is the table that settings
    were applied to: a run whose listed name is the one that `before` already has keeps the options from there.

    >>> [name for name, _ in expand({"seeds": [0, 1], "algorithm": {"name": "fedntd", "beta": [0.5, 1.0]}})]
    ['seed=0,algorithm.beta=0.5', 'seed=0,algorithm.beta=1.0', 'seed=1,algorithm.beta=0.5', 'seed=1,algorithm.beta=1.0']
    >>> expand({"algorithm": {"name": ["fedavg", "fedntd"]}}, before={"algorithm": {"beta": 0.3}})[1]
    ('algorithm.name=fedntd', {'algorithm': {'beta': 0.3, 'name': 'fedntd'}})
    """
    table = {"seed" if key == "seeds" else key: value for key, value in table.items()}
    listed = {
        path: value
        for key, section in table.items()
        for path, value in (
            {(key, name): v for name, v in section.items()} if isinstance(section, Mapping) else {(key,): section}
        ).items()
        if isinstance(value, list)
    }
    for path, values in listed.items():
        require(bool(values), f"the list of '{'.'.join(path)}' is empty")
    runs = []
    for values in itertools.product(*listed.values()):
        chosen = dict(zip(listed, values, strict=True))
        run = {key: dict(section) if isinstance(section, Mapping) else section for key, section in table.items()}
        for (*section, key), value in chosen.items():
            (run[section[0]] if section else run)[key] = value
            if f"{'.'.join(section)}.{key}" in NAMES and value == name_in(before, section[0]):
                run[section[0]] = {**before.get(section[0], {}), **run[section[0]]}
        runs.append((",".join(f"{'.'.join(path)}={value}" for path, value in chosen.items()), run))
    return runs
