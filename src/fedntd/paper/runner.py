"""Make an item: find its missing runs, train them, and measure what the records do not hold."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedntd.config.schema import Config
from fedntd.config.toml import flat, from_table, how, identity
from fedntd.errors import FedntdError, require
from fedntd.paper.item import Cell, Item, Results, Setting
from fedntd.runs.ledger import Store, compact, distinct, file_name
from fedntd.runs.record import Record
from fedntd.simulation.together import federate_together
from fedntd.support.files import put, read_json
from fedntd.support.wording import show, thing
from fedntd.sweep.jobs import by_shape


@dataclass(frozen=True)
class Wanted:
    """A run that an item needs."""

    cell: Cell
    seed: int
    config: Config


def wanted(item: Item, setting: Setting, cells: Sequence[str] = ()) -> list[Wanted]:
    """All runs of an item, or those of some `cells`: a row, a column, or "row/column"."""
    chosen = choose(item, cells)
    seeds = range(item.wanted_seeds(setting))
    # The first seed of all cells comes before the second of any.
    return [Wanted(cell, seed, item.config(cell, seed, setting)) for seed in seeds for cell in chosen]


def choose(item: Item, names: Sequence[str]) -> list[Cell]:
    """The cells of an item with these names; raises if a name fits none."""
    if not names:
        return list(item.runs)
    chosen: set[Cell] = set()
    for name in names:
        fit = fitting(item, name)
        rows, columns = (list(dict.fromkeys(cell[i] for cell in item.runs)) for i in (0, 1))
        require(
            bool(fit),
            f"{item.name} has no cell '{name}'; its rows are {', '.join(rows)}; its columns are {', '.join(columns)}",
        )
        chosen |= fit
    return [cell for cell in item.runs if cell in chosen]


def groups(configs: Iterable[Config]) -> list[list[Config]]:
    """Group runs of one shape: on a GPU each group is trained in one step, which is compiled once."""
    return by_shape(configs, lambda config: config)


def describe(config: Config, among: Sequence[Config]) -> str:
    """Describe a run: "fedntd beta=0.3 on cifar10, lda alpha=0.1, lr=0.003, seed 1".

    Includes hyper-parameters that are not the method's defaults or that differ between its runs in `among`, and other
    settings that distinguish runs which would otherwise look the same.
    """

    def differs(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
        return len({repr(table.get(key)) for table in tables}) > 1

    method, partition = config.algorithm, config.partition
    same_method = [peer for peer in among if peer.algorithm.name == method.name]
    defaults = from_table({"algorithm": {"name": method.name}}).algorithm.options
    tuned = {
        key: value
        for key, value in method.options.items()
        if value != defaults.get(key) or any(peer.algorithm.options.get(key) != value for peer in same_method)
    }
    split = {k: v for k, v in partition.options.items() if k != "min_size"}
    same_data = (config.data.name, partition)
    peers = [flat(peer) for peer in same_method if (peer.data.name, peer.partition) == same_data]
    left_out = ("seed", "data.name", "measure.local_every", *how(flat(config)))
    others = {
        key.split(".")[-1] if key != "model.name" else "model": thing(value) if isinstance(value, str) else value
        for key, value in flat(config).items()
        if not key.startswith(("algorithm.", "partition.")) and key not in left_out and differs(key, peers)
    }

    def words(name: str, options: Mapping[str, Any]) -> str:
        return " ".join([thing(name), *(f"{key}={show(value)}" for key, value in options.items())])

    where = ", ".join(
        [thing(config.data.name), words(partition.name, split), *(f"{k}={show(v)}" for k, v in others.items())]
    )
    return f"{words(method.name, tuned)} on {where}, seed {config.seed}"


def fitting(item: Item, name: str) -> set[Cell]:
    """The cells that a row, a column or "row/column" names."""
    return {cell for cell in item.runs if name in (*cell, "/".join(cell))}


class Workshop:
    """The folder in which items are made: runs/, measured/, and a folder of tables and figures for each item."""

    def __init__(self, out: Path, store: Store, ledger: Path | None) -> None:
        self.out, self.store, self.ledger = out, store, ledger

    # --- training ---

    def missing(self, item: Item, setting: Setting, cells: Sequence[str] = ()) -> list[Config]:
        """The runs of an item that must be trained: unknown ones, and ones whose weights are needed for measuring."""
        measured = set(self.read_measured(item, setting).get("of", []))
        configs = []
        for run in wanted(item, setting, cells):
            result = self.store.find(run.config)
            has_weights = result is not None and (result.folder is not None or result.status == "failed")
            if result is None or (item.measure and not has_weights and identity(result.config) not in measured):
                configs.append(run.config)
        return configs

    def train(self, configs: Sequence[Config]) -> Generator[tuple[Config, Record | FedntdError]]:
        """Train runs of one shape together, one shape after the other, and resume unfinished ones."""
        for group in groups(distinct(configs)):
            outs = [self.out / "runs" / file_name(config) for config in group]
            # No item needs client state, which would fill the disk for many runs.
            with closing(federate_together(group, outs, resume=True, keep_clients=False)) as events:
                for i, event in events:
                    yield group[i], event

    # --- results ---

    def results(self, item: Item, setting: Setting) -> Results:
        runs: dict[Cell, list] = {}
        for run in wanted(item, setting):
            result = self.store.find(run.config) or self.store.find(replace(run.config, precision="auto"))
            if result is not None:
                runs.setdefault(run.cell, []).append(result)
        return Results(item, setting, runs, self.read_measured(item, setting).get("data", {}))

    # --- measuring ---

    def measure(self, item: Item, setting: Setting) -> bool:
        """Measure an item's new runs. Returns whether there was anything to measure."""
        if item.measure is None:
            return False
        results = self.results(item, setting)
        present = {identity(r.config) for runs in results.values() for r in runs if r.folder and r.status == "finished"}
        earlier = self.read_measured(item, setting)
        if earlier and present <= set(earlier["of"]):
            return False
        if item.runs and not present:
            return False
        data = {**results.measured, **plain(item.measure(results))}
        of = sorted(present | set(earlier.get("of", [])))
        entry = {"item": item.name, "protocol": setting.protocol, "small": setting.small, "of": of, "data": data}
        put(self.out / "measured" / measured_name(item, setting), compact(entry) + "\n")
        return True

    def read_measured(self, item: Item, setting: Setting) -> dict[str, Any]:
        """The stored measurement of an item, from this folder or else from the ledger; {} if there is none."""
        places = [self.out / "measured", *([self.ledger / "measured"] if self.ledger else [])]
        files = [place / measured_name(item, setting) for place in places]
        entries = [read_json(file) for file in files if file.exists()]
        entries = [entry for entry in entries if entry["small"] == setting.small]
        return entries[0] if entries else {}


def measured_name(item: Item, setting: Setting) -> str:
    return f"{item.name}.{setting.protocol}.json"


def plain(value: Any) -> Any:
    """Convert to JSON values: arrays to lists, numbers to six significant digits, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
