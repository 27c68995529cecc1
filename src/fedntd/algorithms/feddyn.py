"""FedDyn: Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama,
Federated Learning Based on Dynamic Regularization, ICLR 2021."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Each client's objective is corrected by its earlier movements, so that all clients converge to one point."""

    alpha: float = 0.1  # strength of the regulariser; a smaller value lets a round go further
    uniform: bool = False  # h is the plain mean of all g_k, as in the released code; false: by the clients' weights

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"must be above 0, not {self.alpha}; 0.1 and 0.01 are usual", "algorithm.alpha")

    def init_server(self, w: Weights) -> dict:
        return {"h": tree.zeros_like(w)}

    def init_client(self, w: Weights) -> dict:
        return {"g": tree.zeros_like(w)}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_k(w) - <g_k, w> + alpha/2 |w - w_g|^2, with g_k the gradient where the client's last training ended."""
        spring = self.alpha / 2 * tree.sqnorm(tree.sub(w, ctx.w_g))
        return super().loss(model, w, batch, ctx) - tree.dot(ctx.own["g"], w) + spring

    def finish(self, result: Result, ctx: Context) -> Upload:
        """g_k <- g_k - alpha (w - w_g)."""
        delta = tree.sub(result.w, ctx.w_g)
        return Upload(up={"delta": delta}, own={"g": tree.sub(ctx.own["g"], tree.scale(self.alpha, delta))})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """h: the mean of g_k over all clients, sampled or not; w = mean of the local w - h / alpha."""
        step = tree.weighted_mean(up["delta"], p)
        if self.uniform:
            part = tree.map(lambda leaf: self.ratio * leaf.mean(0), up["delta"])
        else:
            part = tree.scale(fraction, step)
        h = tree.sub(server["h"], tree.scale(self.alpha, part))
        return tree.map(lambda w, d, h: w + d - h / self.alpha, w_g, step, h), {"h": h}
