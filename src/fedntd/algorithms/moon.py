"""MOON: Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.
Without its projection head, as in Lee et al. 2022."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedntd import tree
from fedntd.algorithms.base import Context, Result, Upload
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.losses import cross_entropy, features
from fedntd.errors import require
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class Moon(FedAvg):
    """A client's features are pulled to those of the global model, and away from those of its own last model."""

    mu: float = 1.0  # strength of the contrast
    tau: float = 0.5  # temperature of the contrast: smaller is sharper

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"must be at least 0, not {self.mu}; 0 is FedAvg, the paper uses 1.0", "algorithm.mu")
        require(self.tau > 0, f"must be above 0, not {self.tau}; the paper uses 0.5", "algorithm.tau")

    def init_client(self, w: Weights) -> dict:
        """Before its first round, a client's last model is the initial global one."""
        return {"w_prev": w}

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """l_sup - mu log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))."""
        out = model(w, batch)
        z, z_g = features(out), features(model.frozen(ctx.w_g, batch))
        z_prev = features(model.frozen(ctx.own["w_prev"], batch))
        sims = torch.stack([F.cosine_similarity(z, z_g, dim=-1), F.cosine_similarity(z, z_prev, dim=-1)], dim=-1)
        contrast = -(sims / self.tau).log_softmax(-1)[:, 0]
        return batch.mean(cross_entropy(out.logits, batch.y) + self.mu * contrast)

    def finish(self, result: Result, ctx: Context) -> Upload:
        return Upload(up={"delta": tree.sub(result.w, ctx.w_g)}, own={"w_prev": result.w})
