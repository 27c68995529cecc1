"""Proposition 1: preserving the out-local distribution makes local gradients less diverse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedntd import tree
from fedntd.algorithms import FedAvg, FedNTD
from fedntd.analysis.diversity import (
    class_gradients,
    closed_form,
    diversity_bound,
    diversity_of_mixtures,
    gradient_diversity,
    gram_matrix,
    local_gradients,
    mixed_diversity,
)
from fedntd.analysis.rounds import next_round, reopen
from fedntd.config.registry import Choice
from fedntd.data.device import DevicePart
from fedntd.data.partition import Indices
from fedntd.models.functional import Model
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import BLUE, GREEN, GREY, KEEP, ORANGE, RED, folders, panels, rehearse, training_of
from fedntd.runs.measures import Vector
from fedntd.tree import Weights

CELL = ("FedNTD", "s=2")
BETAS = np.linspace(0, 4, 41)  # the proposition holds up to C/2 - 1 = 4
TRAINED = (0.0, 0.5, 1.0, 2.0, 4.0)
CLIENTS = 20  # whose gradients of the whole objective are computed


def measure(results: Results) -> Mapping[str, Any]:
    """Measure gradient diversity at the final model of the run. Needs the run folder."""
    folder = folders(results)[CELL][0]
    federation = reopen(folder, engine="sequential")  # a single round is not worth compiling
    engine, p, w_g = federation.engine, federation.p, federation.state.w
    gram = gram_matrix(class_gradients(engine.model, w_g, engine.train_part))
    w = next_round(federation).w  # not at the teacher w_g, where distillation has no gradient
    objective = objective_gram(engine.model, w, w_g, engine.train_part, federation.parts[:CLIENTS])
    clients = np.eye(len(objective) // 2)
    return {
        "of": training_of(federation.config),
        "cosines": gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram))),
        "assumed": [closed_form(p, beta) for beta in BETAS],
        "bound": [diversity_bound(p, beta) for beta in BETAS],
        "classes": [mixed_diversity(gram, p, beta) for beta in BETAS],
        "objective": [diversity_of_mixtures(objective, np.hstack([clients, beta * clients])) for beta in BETAS],
        "updates": [update_diversity(folder, beta) for beta in TRAINED],
    }


def objective_gram(model: Model, w: Weights, w_g: Weights, data: DevicePart, parts: list[Indices]) -> Vector:
    """Gram matrix of the clients' gradients of the cross-entropy, followed by those of FedNTD's term (for beta = 1)."""
    plain, distilled = (local_gradients(algorithm, model, w, w_g, data, parts) for algorithm in (FedAvg(), FedNTD()))
    return gram_matrix(tree.map(lambda a, b: torch.cat([a, b - a]), plain, distilled))


def update_diversity(folder: Path, beta: float) -> float:
    """Diversity of the client updates w_k - w_g of FedNTD(beta), in place of the gradients in definition 2."""
    inside = next_round(reopen(folder, engine="sequential", algorithm=Choice("fedntd", {"beta": beta})))
    return gradient_diversity(tree.map(torch.sub, inside.w_k, tree.map(lambda leaf: leaf[None], inside.w_g)))


def render(results: Results) -> list[Plot]:
    measured = results.measured
    if not measured:
        return []
    figure, ((assumed, real, angles),) = panels(1, 3, 9.6, 3.0, width_ratios=[1.2, 1.2, 1])
    assumed.plot(BETAS, measured["assumed"], color=BLUE, label=r"$\Lambda(\beta)$")
    assumed.plot(
        BETAS, measured["bound"], color=GREY, linestyle=(0, (2, 1.5)), label=r"bound, $\Lambda(0) - M\beta/(1+\beta)$"
    )
    assumed.set(title="under the assumptions", ylabel=r"gradient diversity $\Lambda$")
    real.plot(BETAS, measured["classes"], color=GREEN, label=r"$(p + \beta\tilde{p}) \cdot g$, real class gradients")
    real.plot(BETAS, measured["objective"], color=ORANGE, label="FedNTD's objective, after one round")
    real.plot(TRAINED, measured["updates"], "o-", color=RED, label="local updates of FedNTD(β)", markersize=4)
    real.set(title="measured", yscale="log")
    real.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    real.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    real.yaxis.set_minor_locator(NullLocator())
    for ax in (assumed, real):
        ax.axhline(1, color="#555555", linewidth=0.7)
        ax.set_xlabel(r"$\beta$")
        ax.legend(fontsize=7)
    shown = angles.imshow(measured["cosines"], cmap="RdBu_r", vmin=-1, vmax=1)
    angles.set(title="cosines of the class gradients $g_c$", xlabel="class", ylabel="class")
    angles.grid(False)
    figure.colorbar(shown, ax=angles, shrink=0.85)
    caption = (
        f"Λ over β, {measured['of']}. Left: with orthogonal class gradients of one length, as the proposition "
        "assumes, and the bound that it gives. Middle: at a trained model. Right: the class gradients there."
    )
    return [Plot("prop1", figure, caption)]


ITEM = Item(
    name="prop1",
    title="Proposition 1: gradient diversity",
    paper="Definition 2, Proposition 1",
    about="With orthogonal class gradients of one length, Λ falls with β at least as fast as the bound says, for β up "
    "to C/2 − 1. Beside it: what Λ is with the gradients of a trained model." + KEEP,
    runs={CELL: table("cifar10-s2", "fedntd")},
    measure=measure,
    render=render,
    seeds=1,
    small=rehearse(4, ratio=0.25),
)
