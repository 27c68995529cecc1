"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh,
SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020. With option II for the variates."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Control variates: a client replaces its own mean gradient c_i by that of all clients, c."""

    adaptive: bool = True  # divide by steps corrected for momentum, as in the released code; false: by plain steps
    uniform: bool = False  # c is the plain mean of all c_i, as in the released code; false: by the clients' weights
    eta_g: float = 1.0  # the server's step size

    def __post_init__(self) -> None:
        require(self.eta_g > 0, f"must be above 0, not {self.eta_g}; 1 is plain averaging", "algorithm.eta_g")

    @property
    def heavy_ball(self) -> bool:
        return self.adaptive

    def init_server(self, w: Weights) -> dict:
        return {"c": tree.zeros_like(w)}

    def init_client(self, w: Weights) -> dict:
        return {"c_i": tree.zeros_like(w)}

    def broadcast(self, server: Tree) -> dict:
        return {"c": server["c"]}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """F_i(w) + <c - c_i, w>: its gradient is g_i(w) - c_i + c."""
        return super().loss(model, w, batch, ctx) + tree.dot(tree.sub(ctx.shared["c"], ctx.own["c_i"]), w)

    def finish(self, result: Result, ctx: Context) -> Upload:
        """c_i+ = c_i - c + (w_g - w) / (K lr)."""
        delta = tree.sub(result.w, ctx.w_g)
        steps = result.drift_steps(ctx.momentum if self.adaptive else 0.0)
        delta_c = tree.map(lambda d, c: -d / (steps * ctx.lr) - c, delta, ctx.shared["c"])
        return Upload(up={"delta": delta, "delta_c": delta_c}, own={"c_i": tree.add(ctx.own["c_i"], delta_c)})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        """The server step, and c: the mean of c_i over all clients, sampled or not."""
        step = tree.scale(self.eta_g, tree.weighted_mean(up["delta"], p))
        if self.uniform:
            step_c = tree.map(lambda leaf: self.ratio * leaf.mean(0), up["delta_c"])
        else:
            step_c = tree.scale(fraction, tree.weighted_mean(up["delta_c"], p))
        return tree.add(w_g, step), {"c": tree.add(server["c"], step_c)}
