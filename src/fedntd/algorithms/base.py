"""What an algorithm is: FedAvg's answers to a few questions, of which another method changes one or two.

A method never trains, samples or communicates by itself. Engines call it, client by client or for a whole cohort at
once, in simulation or on real machines, so its functions must be pure and must treat tensors as tensors: no `.item()`,
no boolean indexing, no branching on values.
"""

from typing import Any, NamedTuple

from torch import Tensor

from fedntd.tree import Tree, Weights


class Context(NamedTuple):
    """What a client knows in a round, besides its data."""

    w_g: Weights  # the global weights it received
    shared: Tree  # what the server broadcasts besides them, the same for all clients
    own: Tree  # this client's own state, which never leaves it
    lr: float  # this round's learning rate
    momentum: float  # of the client's optimiser


class Result(NamedTuple):
    """What local training gave."""

    w: Weights
    steps: int
    loss: Tensor  # mean of the local objective over the steps


class Upload(NamedTuple):
    up: dict[str, Any]  # sent to the server: a tree; FedAvg's {"delta": w - w_g}
    own: dict[str, Any]  # kept by the client for the next time it is sampled
