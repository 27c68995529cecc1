"""FedNova as the released code of Lee et al. 2022 (FedNTD) runs it, with its 'cross-client variance reduction'.

To FedNova (Wang et al. 2020) it adds a control variate weighted_d - d_i, but never updates weighted_d, which stays 0:
a client that takes part again is pushed away from its last direction d_i.
"""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fednova import normalised_average
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedNovaReleased(FedAvg):
    """FedNova in which every client subtracts its own last mean gradient."""

    @property
    def heavy_ball(self) -> bool:
        return True

    def init_client(self, w: Weights) -> dict:
        return {"d": tree.zeros_like(w)}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """F_i(w) - <d_i, w>."""
        return super().loss(model, w, batch, ctx) - tree.dot(ctx.own["d"], w)

    def finish(self, result: Result, ctx: Context) -> Upload:
        """d_i = (w_g - w) / (lr a_i)."""
        delta, a = tree.sub(result.w, ctx.w_g), result.drift_steps(ctx.momentum)
        return Upload(up={"delta": delta, "a": a}, own={"d": tree.scale(-1 / (ctx.lr * a), delta)})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        return normalised_average(w_g, up, p), {}
