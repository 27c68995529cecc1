"""What came of a run in a few figures, what runs differ in, and groups of runs that differ only in their seed."""

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
METHOD = ("algorithm.", "server.", "robust.", "auxiliary.")  # settings that make a method; the rest is where it is run
MOST_FACETS = 6  # methods that were run in more settings than that are only listed


# --- one run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Accuracies are shares of 1; None where there is no record yet."""

    final: float | None
    best: float | None
    last10: float | None  # mean of the last ten rounds
    ema: float | None  # moving average that keeps 0.6, the authors' table figure
    forgetting: float | None
    rounds: int  # done
    seconds: float
    bytes_up: int
    bytes_down: int
    status: str
    reason: str


def summarise(run: Run) -> Summary:
    """The figures that tables show of a run: final, best, last ten rounds, moving average, forgetting."""
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
    """The config keys that tell runs apart: those that differ, but for the seed and what does not change the run."""
    return [key for key in differing(runs) if key != "seed" and is_telling(key, runs)]


def is_telling(key: str, runs: Sequence[Run]) -> bool:
    """Whether it makes another run of one of them."""
    return any(key not in aside(run.settings) for run in runs)


def aside(settings: dict[str, Any]) -> set[str]:
    """The keys that do not change what is trained."""
    return {*how(settings), "measure.local_every"}


def labels(runs: Sequence[Run]) -> list[str]:
    """Short and unique: the algorithm and what differs, with the seed or the folder only where that is not enough."""
    names = [joined(pair) for pair in methods_and_rest(runs)]
    details: list[Callable[[Run], str]] = [
        lambda run: f"seed={run.config.seed}",
        lambda run: run.name,
        lambda run: str(run.path),
    ]
    for detail in details:
        told = [detail(run) for run in runs]
        among: dict[str, set[str]] = {}
        for name, t in zip(names, told, strict=True):
            among.setdefault(name, set()).add(t)
        names = [f"{name} {t}" if len(among[name]) > 1 else name for name, t in zip(names, told, strict=True)]
    counts, seen = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} #{seen[name]}" if counts[name] > 1 else name
    return names


def methods_and_rest(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Of each run, as far as runs differ, its method and the other settings: ("fedntd beta=1", "sharding s=2")."""
    keys = [key for key in telling(runs) if key != "algorithm.name"]
    keys.sort(key=lambda key: not key.startswith("algorithm."))
    names = short_names(keys)
    wording = {key: words(key, runs) for key in ("algorithm.name", *keys)}
    values: dict[tuple[str, Any], set[str]] = {}  # of a key, among the peers of a run
    for run in runs:
        for key in keys:
            values.setdefault(peers(key, run.settings), set()).add(repr(run.settings.get(key)))

    def told(key: str, settings: dict[str, Any]) -> str:
        if key not in settings or len(values[peers(key, settings)]) == 1:
            return ""
        word = wording[key][repr(settings[key])]
        if key in ("server.name", "robust.name", "auxiliary.name"):  # most runs have none of them
            return "" if word in ("none", "") else f"{key.split('.')[0]}={word}"
        return setting(names[key], word)

    def both(settings: dict[str, Any]) -> tuple[str, str]:
        method = [told(key, settings) for key in keys if key.startswith(METHOD)]
        rest = [told(key, settings) for key in keys if not key.startswith(METHOD)]
        return joined([wording["algorithm.name"][repr(settings["algorithm.name"])], *method]), joined(rest)

    return [both(run.settings) for run in runs]


def peers(key: str, settings: dict[str, Any]) -> tuple[str, Any]:
    """The same for runs of the same algorithm (partition, model), if the key is an option of it. Auxiliary data is one
    of the algorithm's: some need it."""
    name = f"{key.split('.')[0]}.name".replace("auxiliary.", "algorithm.")
    return key, None if key == name else settings.get(name)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Of each key its last part, where no other key ends alike.

    >>> short_names(["optimiser.lr", "optimiser.decay", "algorithm.decay"])
    {'optimiser.lr': 'lr', 'optimiser.decay': 'optimiser.decay', 'algorithm.decay': 'algorithm.decay'}
    """
    endings = Counter(key.split(".")[-1] for key in keys)
    return {key: end if endings[end := key.split(".")[-1]] == 1 else key for key in keys}


def words(key: str, runs: Sequence[Run]) -> dict[str, str]:
    """How people are told the values of a setting, by their repr: in short, unless two would then be told alike, such
    as "mine:Method" and "theirs:Method"."""
    values = {repr(value := run.settings[key]): value for run in runs if key in run.settings}
    short = {of: thing(str(value)) if key.endswith(".name") else show(value) for of, value in values.items()}
    if len({*short.values()}) == len(values):
        return short
    return {of: of if isinstance(value, float) else show(value) for of, value in values.items()}


def setting(name: str, word: str) -> str:
    """As labels tell it: "lr=0.1"; of what was chosen by its name, the name alone."""
    return word if name.split(".")[-1] == "name" else f"{name}={word}"


def joined(parts: Iterable[str]) -> str:
    return " ".join(filter(None, parts))


# --- runs of several seeds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. A run that is under way or was interrupted stands by itself."""

    label: str
    runs: list[Run]
    # where several methods were run in several settings: its method, and its settings (else empty)
    method: str = ""
    facet: str = ""

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.status == "finished"]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.status == "failed"]

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Of each figure, one value a run that counts: those that finished; if none has, what there is of the others. A
        failed run never counts."""
        whole = self.finished or [run for run in self.runs if run.status != "failed"]
        counted = [summarise(run) for run in whole if run.rounds]
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
    """Runs that differ only in their seed; or `by` some settings, all runs that have the same values of these."""
    if by:
        return group_by(runs, by)
    groups: dict[str, list[int]] = {}
    taken: set[tuple[str, str, int]] = set()
    for i, run in enumerate(runs):
        key = repr({k: v for k, v in run.settings.items() if k not in ("seed", *aside(run.settings))})
        again = (key, run.status, run.config.seed) in taken  # one seed run twice is no second sample
        taken.add((key, run.status, run.config.seed))
        if again or run.status not in ("finished", "failed"):
            key = f"{key} {i}"
        groups.setdefault(key, []).append(i)
    pairs = methods_and_rest(runs)
    own, shared = labels(runs), [joined(pair) for pair in pairs]
    members = list(groups.values())
    alike = Counter(shared[first] for first, *_ in members)
    made = []
    for first, *others in members:
        label = shared[first] if others or alike[shared[first]] == 1 else own[first]
        made.append(Group(label, [runs[i] for i in (first, *others)]))
    return faceted(made, [pairs[first] for first, *_ in members])


def faceted(groups: list[Group], pairs: list[tuple[str, str]]) -> list[Group]:
    """Several methods in several settings: those of one setting stand together, to be compared with each other."""
    methods, facets = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    is_list = len(set(pairs)) <= max(len(methods), len(facets))
    if is_list or len(methods) < 2 or len(facets) < 2 or len(facets) > MOST_FACETS or "" in facets:
        return groups
    told = [replace(g, method=method, facet=facet) for g, (method, facet) in zip(groups, pairs, strict=True)]
    return sorted(told, key=lambda g: facets.index(g.facet))


def group_by(runs: Sequence[Run], by: Sequence[str]) -> list[Group]:
    known = dict.fromkeys(key for run in runs for key in run.settings)
    for key in by:
        require_known(key, known, f"--by {key}: no run has such a setting")
    names, wording = short_names(by), {key: words(key, runs) for key in by}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        had = [(key, value) for key in by if (value := run.settings.get(key)) is not None]
        parts = [setting(names[key], wording[key][repr(value)]) for key, value in had]
        groups.setdefault(joined(parts) or "other", []).append(run)
    return [Group(label, members) for label, members in groups.items()]
