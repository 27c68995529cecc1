"""Which runs can be trained in one step, and how each keeps its own hyper-parameters.

Runs of one `shape` share an engine, whose method is that of the first run. Hyper-parameters in which the runs differ
are passed as tensors: `set_varying` finds them, a round sends them to the device (`Agenda.values`), each client gets
those of its run (`Context.values`), and the engine computes with `algorithm.with_values(ctx.values)` alone. Runs that
differ in settings that cannot be tensors, such as a number of samples or a switch, have different shapes. The server
step is always done by the run's own method.
"""

import json

from fedntd.config.schema import Config, share_of_cohort
from fedntd.config.toml import flat
from fedntd.simulation.federation import Federation

# Settings in which runs of one shape may differ, besides the partition and the method's real-valued hyper-parameters.
FREE = {
    *("seed", "partition_seed", "workers", "checkpoint_seconds", "optimiser.lr", "optimiser.decay"),
    *(f"federation.{key}" for key in ("clients", "ratio", "rounds", "local_epochs", "aggregation")),
}


def shape(config: Config) -> str:
    """A key that is equal for runs that can be trained in one step."""
    fixed = {
        key: value
        for key, value in flat(config).items()
        if key not in FREE
        and not key.startswith("partition.")
        and not (key.startswith("algorithm.") and isinstance(value, float))
    }
    return json.dumps(fixed, sort_keys=True)


def set_varying(runs: list[Federation]) -> None:
    """Set each run's `varying`: its values of the hyper-parameters in which the runs differ."""
    # a method also knows the share of clients in a cohort
    options = [{**run.config.algorithm.options, "ratio": share_of_cohort(run.config)} for run in runs]
    for run, own in zip(runs, options, strict=True):
        run.varying = {key: value for key, value in own.items() if any(other[key] != value for other in options)}
