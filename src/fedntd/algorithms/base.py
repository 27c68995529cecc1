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
    lr: Tensor  # this round's learning rate, a scalar
    momentum: float  # of the client's optimiser
    counts: Tensor | None = None  # how many training samples of each class it owns, [class]
    values: dict[str, Tensor] = {}  # noqa: RUF012 (never changed): hyper-parameters of its run, where runs differ in them

    def class_counts(self) -> Tensor:
        """`counts`, for methods that cannot do without."""
        assert self.counts is not None, "this engine does not tell clients their class counts"
        return self.counts


class Result(NamedTuple):
    """What local training gave."""

    w: Weights
    steps: int | Tensor  # how many were made; a scalar tensor where clients are vectorised
    loss: Tensor  # mean of the local objective over the steps
    measured: dict[str, Any] = {}  # noqa: RUF012 (never changed): what `measure` gave, a mean over samples

    def drift_steps(self, momentum: float) -> Tensor:
        """The sum of the weights with which gradients enter w_g - w: (t - rho (1 - rho^t) / (1 - rho)) / (1 - rho).

        FedNova's |a|_1. It is the number of steps without momentum; with momentum, w_g - w of a client whose gradient
        stays g is lr * |a|_1 * g.
        """
        t = self.loss.new_zeros(()) + self.steps  # a tensor of the weights' type, whoever counted
        return (t - momentum * (1 - momentum**t) / (1 - momentum)) / (1 - momentum)


class Upload(NamedTuple):
    """What a client makes of its training: what it sends, and what it keeps."""

    up: dict[str, Any]  # sent to the server: a tree; FedAvg's {"delta": w - w_g}
    own: dict[str, Any]  # kept by the client for the next time it is sampled
