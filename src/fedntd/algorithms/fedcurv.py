"""FedCurv: Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak,
Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (arXiv 1910.07796)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy
from fedntd.errors import FedntdError, require
from fedntd.models.functional import Batch, Model
from fedntd.models.squared import mean_squared_gradient
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedCurv(FedAvg):
    """Elastic weight consolidation: weights that matter to other clients' models are held near their values there."""

    lam: float = 1.0  # lambda, strength of the consolidation
    s: int = 500  # samples with which a client measures how much each weight matters
    per_sample: bool = True  # the true diagonal; false: squared minibatch gradients, as in the released code

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"must be at least 0, not {self.lam}; 0 is FedAvg, the paper uses 1.0", "algorithm.lam")
        require(self.s >= 1, f"must be at least 1, not {self.s}; the paper uses 500", "algorithm.s")

    def init_server(self, w: Weights) -> dict:
        return {"U": tree.zeros_like(w), "V": tree.zeros_like(w)}

    def init_client(self, w: Weights) -> dict:
        return {"u": tree.zeros_like(w), "v": tree.zeros_like(w)}

    def broadcast(self, server: Tree) -> dict:
        return dict(server)

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_k(w) + lambda sum_{j != k} (w - w_j)^T diag(I_j) (w - w_j), minus the value of the sum at w_g.

        The sum is <P, w^2> - 2 <Q, w> plus a constant, with P and Q the sums of the other clients' u and v.
        """
        P, Q = tree.sub(ctx.shared["U"], ctx.own["u"]), tree.sub(ctx.shared["V"], ctx.own["v"])
        slope = tree.map(lambda p, q, w, w_g: p * (w + w_g) - 2 * q, P, Q, w, ctx.w_g)
        return super().loss(model, w, batch, ctx) + self.lam * tree.dot(slope, tree.sub(w, ctx.w_g))

    @property
    def measure_samples(self) -> int:
        return self.s

    def measure(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> dict:
        """The diagonal of the Fisher information: the mean of squared gradients of log p(y | x)."""

        def log_loss(w: Weights, batch: Batch) -> Tensor:
            return batch.mean(cross_entropy(model.frozen(w, batch).logits, batch.y))

        if not self.per_sample:
            return {"fisher": tree.map(Tensor.square, grad(log_loss)(w, batch))}
        try:
            return {"fisher": mean_squared_gradient(log_loss, w, batch)}
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # for example, from recurrent layers
            raise FedntdError(
                "fedcurv cannot take this network's gradients sample by sample, since torch.vmap cannot run it; "
                "use algorithm.per_sample = false"
            ) from error

    def finish(self, result: Result, ctx: Context) -> Upload:
        """u = diag(I_k), v = diag(I_k) w_k. The client sends their change since it last took part."""
        own = {"u": result.measured["fisher"], "v": tree.map(Tensor.mul, result.measured["fisher"], result.w)}
        return Upload(up={"delta": tree.sub(result.w, ctx.w_g), "change": tree.sub(own, ctx.own)}, own=own)

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """FedAvg, and U and V: the sums of the latest u and v of all clients that ever took part."""
        change = tree.map(lambda leaf: leaf.sum(0), up["change"])
        U, V = tree.add(server["U"], change["u"]), tree.add(server["V"], change["v"])
        return tree.add(w_g, tree.weighted_mean(up["delta"], p)), {"U": U, "V": V}
