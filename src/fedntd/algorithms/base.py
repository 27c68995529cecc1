"""The types that algorithms exchange with engines. An algorithm is FedAvg with one or two of its functions replaced.

A method never trains, samples or communicates by itself. Engines call it, client by client or for a whole cohort at
once, in simulation or on real machines. Its functions must therefore be pure and keep tensors as tensors: no
`.item()`, no boolean indexing, no branching on values.
"""

from typing import Any, NamedTuple

from torch import Tensor

from fedntd.tree import Tree, Weights


class Context(NamedTuple):
    """What a client knows in a round, besides its data."""

    w_g: Weights  # the global weights it received
    shared: Tree  # what the server broadcasts besides the weights, the same for all clients
    own: Tree  # this client's own state, which never leaves it
    lr: Tensor  # this round's learning rate, a scalar
    momentum: float  # of the client's optimiser
    counts: Tensor | None = None  # how many training samples of each class it owns, [class]
    values: dict[str, Tensor] = {}  # noqa: RUF012 (never changed): hyper-parameters that differ between runs

    def class_counts(self) -> Tensor:
        """`counts`, for methods that need them."""
        assert self.counts is not None, "this engine does not tell clients their class counts"
        return self.counts


class Result(NamedTuple):
    """The outcome of local training."""

    w: Weights
    steps: int | Tensor  # number of steps; a scalar tensor where clients are vectorised
    loss: Tensor  # mean of the local objective over the steps
    measured: dict[str, Any] = {}  # noqa: RUF012 (never changed): the result of `measure`, a mean over samples

    def drift_steps(self, momentum: float) -> Tensor:
        """The sum of the weights with which gradients enter w_g - w: (t - rho (1 - rho^t) / (1 - rho)) / (1 - rho).

        This is FedNova's |a|_1. Without momentum it is the number of steps. With momentum, a client whose gradient
        is always g moves by w_g - w = lr * |a|_1 * g.
        """
        t = self.loss.new_zeros(()) + self.steps  # a tensor of the loss's dtype, even if `steps` is an int
        return (t - momentum * (1 - momentum**t) / (1 - momentum)) / (1 - momentum)


class Upload(NamedTuple):
    """What a client sends after its training, and what it keeps."""

    up: dict[str, Any]  # sent to the server: a tree; FedAvg sends {"delta": w - w_g}
    own: dict[str, Any]  # kept by the client until it is sampled again
