"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.losses import cross_entropy
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedAvg:
    """Federated averaging, the base class of all methods. A method's fields are its hyper-parameters."""

    # Set by the federation; these are not hyper-parameters.
    auxiliary: ClassVar[Any] = None  # an `ensemble.Auxiliary`, if the federation has auxiliary data
    ratio: ClassVar[float] = 1.0  # share of all clients that take part in a round

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """A copy with other hyper-parameters, unchecked: they are tensors where several runs are trained together."""
        if not values:
            return self
        other = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    @property
    def auxiliary_data(self) -> bool:
        """Whether the server needs data that belongs to no client."""
        return False

    @property
    def heavy_ball(self) -> bool:
        """Whether the method relies on how plain momentum weights the steps (`Result.drift_steps`)."""
        return False

    def init_server(self, w: Weights) -> dict:
        """The server's state before the first round."""
        return {}

    def init_client(self, w: Weights) -> dict:
        """A client's state before it is first sampled."""
        return {}

    def send(self, w_g: Weights, server: Tree) -> Weights:
        """The weights that clients receive and start from: a client's `ctx.w_g`."""
        return w_g

    def broadcast(self, server: Tree) -> dict:
        """What every client of the cohort receives besides the weights."""
        return {}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """The local objective on one batch, a scalar."""
        return batch.mean(cross_entropy(model(w, batch).logits, batch.y))

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        """The gradient of one local step, and the loss. Replaced by methods that need more than one point."""
        return tree.grad_and_value(lambda w: self.loss(model, w, batch, ctx), w)

    @property
    def measure_samples(self) -> int:
        """The number of its samples that a client passes to `measure` after training; 0: `measure` is not called."""
        return 0

    def measure(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> dict:
        """Measure the trained model: a tree of means over one batch. `finish` receives the mean over all batches."""
        return {}

    def finish(self, result: Result, ctx: Context) -> Upload:
        """What a client sends after local training, and what it keeps."""
        return Upload(up={"delta": tree.sub(result.w, ctx.w_g)}, own={})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """The server step: new global weights and state, from uploads stacked [client, ...] and client weights `p`.

        `w_g` are the weights before `send`; `p` sums to 1, and `fraction * p` are shares of the whole federation."""
        return tree.add(w_g, tree.weighted_mean(up["delta"], p)), {}
