"""FedNova: Wang, Liu, Liang, Joshi, Poor,
Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020."""

from dataclasses import dataclass

from torch import Tensor

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.tree import Tree, Weights


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Each update is divided by the client's own number of steps, so that clients with more steps do not pull harder.

    Where all clients make the same number of steps, as with sharding, this is FedAvg. FedNova's rows in the paper of
    FedNTD can therefore only come from the variant in its released code, 'fednova-released'.
    """

    @property
    def heavy_ball(self) -> bool:
        return True

    def finish(self, result: Result, ctx: Context) -> Upload:
        """a: the number of steps, corrected for momentum."""
        delta = tree.sub(result.w, ctx.w_g)
        return Upload(up={"delta": delta, "a": result.drift_steps(ctx.momentum)}, own={})

    def aggregate(self, w_g: Weights, server: Tree, up: Tree, p: Tensor, fraction: float) -> tuple[Weights, dict]:
        return normalised_average(w_g, up, p), {}


def normalised_average(w_g: Weights, up: Tree, p: Tensor) -> Weights:
    """w_g + tau_eff sum_i p_i delta_i / a_i, with tau_eff = sum_i p_i a_i."""
    p = p.to(up["a"].dtype)
    return tree.add(w_g, tree.weighted_mean(up["delta"], (p * up["a"]).sum() * p / up["a"]))
