"""Summaries of runs, the settings in which runs differ, and groups of runs that differ only in their seed."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedntd.config.toml import how
from fedntd.errors import require_known
from fedntd.runs.measures import moving_average
from fedntd.runs.reader import Run
from fedntd.support.wording import show, thing

HEADINGS = {"final": "final", "best": "best", "last10": "last 10", "ema": "EMA 0.6", "forgetting": "F"}
METHOD = ("algorithm.", "server.", "robust.", "auxiliary.")  # settings that are part of a method
MOST_FACETS = 6  # with more settings than this, groups are listed without facets


# --- one run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The figures of one run. Accuracies are fractions of 1, and None before the first record."""

    final: float | None
    best: float | None
    last10: float | None  # mean of the last ten rounds
    ema: float | None  # moving average with decay 0.6, the figure in the authors' tables
    forgetting: float | None
    rounds: int  # rounds done
    seconds: float
    bytes_up: int
    bytes_down: int
    status: str
    reason: str


def summarise(run: Run) -> Summary:
    """Summarise a run: final, best and last-ten accuracy, moving average, forgetting, and cost."""
    columns = run.columns
    accuracy = columns["accuracy"]
    return Summary(
        final=accuracy[-1] if accuracy else None,
        best=max(accuracy) if accuracy else None,
        last10=float(np.mean(accuracy[-10:])) if accuracy else None,
        ema=moving_average(accuracy) if accuracy else None,
        forgetting=columns["forgetting"][-1] if accuracy else None,
        rounds=run.rounds,
        seconds=sum(columns["seconds"]),
        bytes_up=int(sum(columns["bytes_up"])),
        bytes_down=int(sum(columns["bytes_down"])),
        status=run.status,
        reason=run.reason,
    )


# --- what differs -----------------------------------------------------------------------------------------------


def differing(runs: Sequence[Run]) -> list[str]:
    """The config keys whose values are not the same in all runs."""
    tables = [run.settings for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def telling(runs: Sequence[Run]) -> list[str]:
    """The config keys that tell runs apart: those that differ, except the seed and keys that do not change training."""
    return [key for key in differing(runs) if key != "seed" and is_telling(key, runs)]


def is_telling(key: str, runs: Sequence[Run]) -> bool:
    """Whether the key changes what is trained in any of the runs."""
    return any(key not in aside(run.settings) for run in runs)


def aside(settings: dict[str, Any]) -> set[str]:
    """The keys that do not change what is trained."""
    return {*how(settings), "measure.local_every"}


def labels(runs: Sequence[Run]) -> list[str]:
    """Short, unique labels: the algorithm and the settings that differ, with seed or folder only where needed."""
    names = [joined(pair) for pair in methods_and_rest(runs)]
    details: list[Callable[[Run], str]] = [
        lambda run: f"seed={run.config.seed}",
        lambda run: run.name,
        lambda run: str(run.path),
    ]
    for detail in details:
        texts = [detail(run) for run in runs]
        texts_of: dict[str, set[str]] = {}
        for name, text in zip(names, texts, strict=True):
            texts_of.setdefault(name, set()).add(text)
        pairs = zip(names, texts, strict=True)
        names = [f"{name} {text}" if len(texts_of[name]) > 1 else name for name, text in pairs]
    counts, seen = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} #{seen[name]}" if counts[name] > 1 else name
    return names


def methods_and_rest(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """For each run, its method and its other settings, as far as runs differ: ("fedntd beta=1", "sharding s=2")."""
    keys = [key for key in telling(runs) if key != "algorithm.name"]
    keys.sort(key=lambda key: not key.startswith("algorithm."))
    names = short_names(keys)
    wording = {key: words(key, runs) for key in ("algorithm.name", *keys)}
    values: dict[tuple[str, Any], set[str]] = {}  # values of a key among comparable runs (`peers`)
    for run in runs:
        for key in keys:
            values.setdefault(peers(key, run.settings), set()).add(repr(run.settings.get(key)))

    def text(key: str, settings: dict[str, Any]) -> str:
        if key not in settings or len(values[peers(key, settings)]) == 1:
            return ""
        word = wording[key][repr(settings[key])]
        if key in ("server.name", "robust.name", "auxiliary.name"):  # most runs have none
            return "" if word in ("none", "") else f"{key.split('.')[0]}={word}"
        return setting(names[key], word)

    def both(settings: dict[str, Any]) -> tuple[str, str]:
        method = [text(key, settings) for key in keys if key.startswith(METHOD)]
        rest = [text(key, settings) for key in keys if not key.startswith(METHOD)]
        return joined([wording["algorithm.name"][repr(settings["algorithm.name"])], *method]), joined(rest)

    return [both(run.settings) for run in runs]


def peers(key: str, settings: dict[str, Any]) -> tuple[str, Any]:
    """The key together with the algorithm (partition, model, ...) that it is an option of.

    Equal for runs whose values of the key are comparable. Auxiliary data counts as an option of the algorithm, since
    only some algorithms need it.
    """
    name = f"{key.split('.')[0]}.name".replace("auxiliary.", "algorithm.")
    return key, None if key == name else settings.get(name)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, where it is unique.

    >>> short_names(["optimiser.lr", "optimiser.decay", "algorithm.decay"])
    {'optimiser.lr': 'lr', 'optimiser.decay': 'optimiser.decay', 'algorithm.decay': 'algorithm.decay'}
    """
    endings = Counter(key.split(".")[-1] for key in keys)
    return {key: end if endings[end := key.split(".")[-1]] == 1 else key for key in keys}


def words(key: str, runs: Sequence[Run]) -> dict[str, str]:
    """Short texts for the values of a setting, by their repr. In full if two would be the same, such as "mine:Method"
    and "theirs:Method"."""
    values = {repr(value := run.settings[key]): value for run in runs if key in run.settings}
    short = {
        key_repr: thing(str(value)) if key.endswith(".name") else show(value) for key_repr, value in values.items()
    }
    if len({*short.values()}) == len(values):
        return short
    return {key_repr: key_repr if isinstance(value, float) else show(value) for key_repr, value in values.items()}


def setting(name: str, word: str) -> str:
    """A setting in a label: "lr=0.1", or for a `name` key the name alone."""
    return word if name.split(".")[-1] == "name" else f"{name}={word}"


def joined(parts: Iterable[str]) -> str:
    return " ".join(filter(None, parts))


# --- runs of several seeds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. An unfinished run is a group by itself."""

    label: str
    runs: list[Run]
    # Set if several methods were run in several settings; otherwise empty.
    method: str = ""
    facet: str = ""  # the other settings, as text

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.status == "failed"]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """The values of each figure, one per finished run; if none has finished, one per unfinished run. Failed
        runs are left out."""
        runs = self.finished or [run for run in self.runs if run.status != "failed"]
        counted = [summarise(run) for run in runs if run.rounds]
        keys = (*HEADINGS, "rounds", "seconds", "bytes_up", "bytes_down")
        return {key: [getattr(s, key) for s in counted] for key in keys}

    @property
    def count(self) -> str:
        return f"{len(self.runs) - len(self.failed)}/{len(self.runs)}" if self.failed else str(len(self.runs))

    @cached_property
    def means(self) -> dict[str, float]:
        return {key: float(np.mean(values)) for key, values in self.values.items() if values}

    def mean(self, key: str) -> float | None:
        return self.means.get(key)

    def std(self, key: str) -> float | None:
        """Sample standard deviation; None for fewer than two finished runs."""
        return float(np.std(self.values[key], ddof=1)) if len(self.values[key]) > 1 else None


def group(runs: Sequence[Run], by: Sequence[str] = ()) -> list[Group]:
    """Group runs that differ only in their seed, or with `by` all runs with the same values of these settings."""
    if by:
        return group_by(runs, by)
    groups: dict[str, list[int]] = {}
    seen: set[tuple[str, str, int]] = set()
    for i, run in enumerate(runs):
        key = repr({k: v for k, v in run.settings.items() if k not in ("seed", *aside(run.settings))})
        repeated = (key, run.status, run.config.seed) in seen  # the same seed twice is not a second sample
        seen.add((key, run.status, run.config.seed))
        if repeated or run.status not in ("finished", "failed"):
            key = f"{key} {i}"
        groups.setdefault(key, []).append(i)
    pairs = methods_and_rest(runs)
    own, shared = labels(runs), [joined(pair) for pair in pairs]
    members = list(groups.values())
    counts = Counter(shared[first] for first, *_ in members)
    grouped = []
    for first, *others in members:
        label = shared[first] if others or counts[shared[first]] == 1 else own[first]
        grouped.append(Group(label, [runs[i] for i in (first, *others)]))
    return faceted(grouped, [pairs[first] for first, *_ in members])


def faceted(groups: list[Group], pairs: list[tuple[str, str]]) -> list[Group]:
    """If several methods were run in several settings, put the groups of each setting next to each other."""
    methods, facets = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    is_list = len(set(pairs)) <= max(len(methods), len(facets))
    if is_list or len(methods) < 2 or len(facets) < 2 or len(facets) > MOST_FACETS or "" in facets:
        return groups
    placed = [replace(g, method=method, facet=facet) for g, (method, facet) in zip(groups, pairs, strict=True)]
    return sorted(placed, key=lambda g: facets.index(g.facet))


def group_by(runs: Sequence[Run], by: Sequence[str]) -> list[Group]:
    known = dict.fromkeys(key for run in runs for key in run.settings)
    for key in by:
        require_known(key, known, f"--by {key}: no run has such a setting")
    names, wording = short_names(by), {key: words(key, runs) for key in by}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        present = [(key, value) for key in by if (value := run.settings.get(key)) is not None]
        parts = [setting(names[key], wording[key][repr(value)]) for key, value in present]
        groups.setdefault(joined(parts) or "other", []).append(run)
    return [Group(label, members) for label, members in groups.items()]
