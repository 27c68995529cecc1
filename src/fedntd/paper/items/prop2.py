"""Proposition 2: distillation on true classes is weighted by p, on not-true classes by the out-local p~."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedntd.analysis.distillation import kl_split
from fedntd.analysis.rounds import next_round, reopen
from fedntd.config.registry import Choice
from fedntd.paper.item import Item, Plot, Results, table
from fedntd.paper.items.common import COLOURS, KEEP, METHODS, folders, panels, rehearse, training_of
from fedntd.paper.tables import Table
from fedntd.report.style import plain

CELL = ("FedNTD", "s=2")
SIDES = {
    "true": "L true",
    "true_by_p": "Σ p E[…]",
    "not_true": "L not-true / (C−1)",
    "not_true_by_p_out": "Σ p̃ E[…]",
}


def measure(results: Results) -> Mapping[str, Any]:
    """Train one client of the next round by each method, from the final model of the run. Needs the run folder."""
    measured: dict[str, Any] = {}
    for name, method in METHODS.items():
        federation = reopen(folders(results)[CELL][0], engine="sequential", algorithm=Choice(method))
        inside, engine = next_round(federation), federation.engine
        indices = torch.from_numpy(federation.parts[inside.record.cohort[0]]).to(federation.device)
        batch = engine.train_part.plain(indices)
        with torch.no_grad():
            z, z_g = (engine.model.frozen(w, batch).logits for w in (inside.local(0), inside.w_g))
        split = kl_split(z, z_g, batch.y)
        measured[name] = {
            "true": split.true,
            "true_by_p": split.true_by_p,
            "not_true": split.not_true / (len(split.p) - 1),
            "not_true_by_p_out": split.not_true_by_p_out,
            "true_terms": split.p * split.true_of_class,
            "not_true_terms": split.p_out * split.not_true_of_class,
        }
        measured |= {"p": split.p, "classes": list(federation.dataset.classes), "of": training_of(federation.config)}
    return measured


def render(results: Results) -> list[Table | Plot]:
    measured = results.measured
    if not measured:
        return []
    cells = {(f"after {m}", title): f"{measured[m][side]:.5f}" for m in METHODS for side, title in SIDES.items()}
    both_sides = Table(
        name="prop2",
        title=ITEM.title,
        caption="Both sides of the proposition's two equations, on one client's samples: local model against global "
        "model.",
        corner="local model",
        rows=[f"after {m}" for m in METHODS],
        columns=list(SIDES.values()),
        cells=cells,
    )
    figure, ((shares, true, not_true),) = panels(1, 3, 9.8, 3.1, sharey=True, width_ratios=[0.8, 1, 1])
    y = np.arange(len(measured["p"]))
    p = np.array(measured["p"])
    shares.barh(y - 0.2, p, 0.38, color="#0072B2", label="$p$")
    shares.barh(y + 0.2, (1 - p) / (len(p) - 1), 0.38, color="#E69F00", label=r"$\tilde{p}$")
    shares.set(title="the client's distributions", xlabel="share of the class")
    shares.set_yticks(y, [plain(name) for name in measured["classes"]])
    shares.invert_yaxis()
    shares.legend()
    for ax, terms, title in (
        (true, "true_terms", r"true part: $p_c\,E_{i \in S_c}[\ldots]$"),
        (not_true, "not_true_terms", r"not-true part: $\tilde{p}_c\,E_{i \notin S_c}[\ldots]$"),
    ):
        for offset, method in zip((-0.2, 0.2), METHODS, strict=True):
            ax.barh(y + offset, measured[method][terms], 0.38, color=COLOURS[method], label=f"after {method}")
        ax.axvline(0, color="#555555", linewidth=0.7)
        ax.set(title=title, xlabel="term of the class")
        ax.locator_params(axis="x", nbins=5)
    true.legend()
    caption = (
        f"A client of {measured['of']}: each class's term of both sums. Their totals are the two parts of the "
        "divergence."
    )
    return [both_sides, Plot("prop2", figure, caption)]


ITEM = Item(
    name="prop2",
    title="Proposition 2: the two parts of the divergence",
    paper="Proposition 2",
    about="KL(global ‖ local) on a client's samples, split into true and not-true classes: the first part is weighted "
    "by p, the second by p̃." + KEEP,
    runs={CELL: table("cifar10-s2", "fedntd")},
    measure=measure,
    render=render,
    seeds=1,
    small=rehearse(4, ratio=0.25),
)
