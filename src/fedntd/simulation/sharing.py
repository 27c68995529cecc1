"""Which runs can be trained in one step, and what keeps them from seeing each other's hyper-parameters.

Runs of one `shape` share an engine, whose method is that of the first of them. In what they differ, each has values of
its own: `set_varying` finds those hyper-parameters, a round sends them to the device (`Agenda.values`), each client
gets those of its run (`Context.values`), and an engine computes with `algorithm.with_values(ctx.values)` alone. What
cannot be a tensor, such as a number of samples or a switch, makes another shape. What the server does is always done by
the run's own method.
"""

import json

from fedntd.config.schema import Config, share_of_cohort
from fedntd.config.toml import flat
from fedntd.simulation.federation import Federation

# in what runs of one shape may differ, besides their partitions and the real numbers among a method's hyper-parameters
FREE = {
    *("seed", "partition_seed", "workers", "checkpoint_seconds", "optimiser.lr", "optimiser.decay"),
    *(f"federation.{key}" for key in ("clients", "ratio", "rounds", "local_epochs", "aggregation")),
}


def shape(config: Config) -> str:
    """The same for runs that can be trained in one step."""
    fixed = {
        key: value
        for key, value in flat(config).items()
        if key not in FREE
        and not key.startswith("partition.")
        and not (key.startswith("algorithm.") and isinstance(value, float))
    }
    return json.dumps(fixed, sort_keys=True)


def set_varying(runs: list[Federation]) -> None:
    """Tell the runs in which hyper-parameters they differ."""
    # methods know which share of the clients takes part, too
    options = [{**run.config.algorithm.options, "ratio": share_of_cohort(run.config)} for run in runs]
    for run, mine in zip(runs, options, strict=True):
        run.varying = {key: value for key, value in mine.items() if any(other[key] != value for other in options)}
