"""FedSOL: Lee, Jeong, Kim, Oh, Yun,
FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning, CVPR 2024."""

from dataclasses import dataclass

from torch import Tensor
from torch.func import grad
from torch.nn import functional as F

from fedntd import tree
from fedntd.algorithms.base import Context
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import distillation
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedSOL(FedAvg):
    """The local gradient is taken at weights perturbed against the global model's view.

    Steps along it hardly change that view. As in the authors' code.
    """

    rho: float = 1.0  # size of the perturbation
    tau: float = 3.0  # temperature of the distillation loss, whose gradient is the direction of the perturbation
    adaptive: bool = True  # scale each weight's perturbation by its distance from the global one; false: all alike

    def __post_init__(self) -> None:
        require(self.rho >= 0, f"must be at least 0, not {self.rho}; 0 is FedAvg", "algorithm.rho")
        require(self.tau > 0, f"must be above 0, not {self.tau}; the authors use 3", "algorithm.tau")

    def gradient(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> tuple[Weights, Tensor]:
        """grad F and F at w + rho Lambda * g_p / |g_p|, with g_p the gradient of L_KD(q, q_g).

        Lambda: |w - w_g|, normalised along the first axis of each parameter.
        """
        z_g = model.frozen(ctx.w_g, batch).logits
        g_p = grad(lambda w: batch.mean(distillation(model(w, batch).logits, z_g, self.tau)))(w)
        step = self.rho / (tree.sqnorm(g_p).sqrt() + 1e-12)

        def perturb(leaf: Tensor, start: Tensor, g: Tensor) -> Tensor:
            return leaf + step * g * (F.normalize((leaf - start).abs(), dim=0) if self.adaptive else 1)

        return super().gradient(model, tree.map(perturb, w, ctx.w_g, g_p), batch, ctx)
