"""FedLMD: Lu, Li, Bao, Wang, Qian, Ge, Federated Learning with Label-Masking Distillation, ACM Multimedia 2023."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedntd.algorithms.base import Context
from fedntd.algorithms.fedntd import FedNTD
from fedntd.algorithms.losses import cross_entropy, kl, not_true
from fedntd.models.functional import Batch, Model
from fedntd.tree import Weights


@dataclass(frozen=True)
class FedLMD(FedNTD):
    """FedNTD with a teacher for the client's minority classes only: the others are learnt from the data."""

    def loss(self, model: Model, w: Weights, batch: Batch, ctx: Context) -> Tensor:
        """L_CE + beta tau^2 KL(q_t || q_s): q_s without the true class, q_t without it and all majority classes.

        A majority class is one of which the client has more samples than of its average class. A sample for which no
        class is left is not distilled.
        """
        z, z_g = model(w, batch).logits, model.frozen(ctx.w_g, batch).logits
        n = ctx.class_counts()
        minority = not_true((n <= n.mean()).expand(z.shape), batch.y)
        q_t = (not_true(z_g, batch.y) / self.tau).masked_fill(~minority, -torch.inf).softmax(-1)
        log_q_s = (not_true(z, batch.y) / self.tau).log_softmax(-1)
        lmd = kl(torch.where(minority, q_t, 0), log_q_s)
        return batch.mean(cross_entropy(z, batch.y) + self.beta * self.tau**2 * lmd)
