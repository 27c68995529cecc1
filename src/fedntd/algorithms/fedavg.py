"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from dataclasses import dataclass

from torch import Tensor
from torch.func import grad_and_value

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.losses import cross_entropy
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedAvg:
    """The fields of an algorithm's dataclass are its hyper-parameters; FedAvg has none."""

    def init_server(self, w: Weights) -> dict:
        """State of the server before the first round."""
        return {}

    def init_client(self, w: Weights) -> dict:
        """State of a client before it is first sampled."""
        return {}

    def broadcast(self, server: Tree) -> dict:
        """What every client of the cohort receives besides the global weights."""
        return {}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """The local objective on one batch, a scalar."""
        return batch.mean(cross_entropy(model(w, batch).logits, batch.y))

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        """The direction of one local step, and the loss; for methods that look at more than one point."""
        return grad_and_value(lambda w: self.loss(model, w, batch, ctx))(w)

    def finish(self, result: Result, ctx: Context) -> Upload:
        """What a client sends after local training, and what it keeps."""
        return Upload(up={"delta": tree.sub(result.w, ctx.w_g)}, own={})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """New global weights and server state, from the uploads stacked [client, ...] and the clients' weights `p`.

        `fraction` is the share of all clients that took part.
        """
        return tree.add(w_g, tree.weighted_mean(up["delta"], p)), {}
