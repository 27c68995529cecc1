"""Features on the unit circle: how local training and averaging move them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedntd.analysis.features import angles, circle_density, features
from fedntd.analysis.rounds import Inside, next_round, reopen, start_from
from fedntd.config.registry import Choice
from fedntd.paper.item import Item, Plot, Results, Settings, table
from fedntd.paper.items.common import KEEP, METHODS, class_colour, folders, panels, rehearse
from fedntd.report.style import BLUES, styled
from fedntd.simulation.federation import Federation
from fedntd.tree import Weights

CELL = ("FedAvg", "IID")
LOCALS = 3
AT = np.linspace(-np.pi, np.pi, 181)


def measure(results: Results) -> Mapping[str, Any]:
    """Send a global model trained by IID clients to clients with two classes each. Needs the run folder."""
    trained = reopen(folders(results)[CELL][0])
    config = replace(trained.config, partition=Choice("sharding", {"s": 2}))
    measured: dict[str, Any] = {"classes": list(trained.dataset.classes)}
    for name, method in METHODS.items():
        federation = start_from(replace(config, algorithm=Choice(method)), trained.state.w, trained.state.round)
        measured[name] = densities(federation, next_round(federation))
    return measured


def densities(federation: Federation, inside: Inside) -> list[dict[str, Any]]:
    """Densities of the test samples' angles by class, in the global, some local and the aggregated model."""
    engine, cohort = federation.engine, inside.record.cohort
    chosen = dissimilar_clients(federation.p[cohort])
    owned = {f"client {cohort[i]}": np.flatnonzero(federation.counts[cohort[i]]).tolist() for i in chosen}
    models: list[tuple[str, Weights]] = [
        ("global", inside.w_g),
        *((name, inside.local(i)) for name, i in zip(owned, chosen, strict=True)),
        ("aggregated", inside.w),
    ]
    labels = engine.test_part.y.cpu().numpy()
    described = []
    for name, w in models:
        angle = angles(features(engine.model, w, engine.test_part))
        of_class = [circle_density(angle[labels == c], AT, 0.06) for c in range(engine.classes)]
        described.append({"model": name, "owns": owned.get(name, []), "density": np.round(of_class, 4)})
    return described


def dissimilar_clients(p: np.ndarray) -> list[int]:
    """Three clients of the cohort that share few classes, chosen greedily."""
    chosen = [0]
    while len(chosen) < min(LOCALS, len(p)):
        shared = np.where(np.isin(np.arange(len(p)), chosen), np.inf, (p @ p[chosen].T).sum(1))
        chosen.append(int(shared.argmin()))
    return chosen


def render(results: Results) -> list[Plot]:
    by_method = {method: m for method in METHODS if (m := results.measured.get(method))}
    if not by_method:
        return []
    columns = max(len(models) for models in by_method.values())
    figure, axes = panels(
        2 * len(by_method), columns, 1.75 * columns + 0.4, 2.9 * len(by_method), height_ratios=[2, 1] * len(by_method)
    )
    top = max(np.max(model["density"]) for models in by_method.values() for model in models)
    for i, (method, models) in enumerate(by_method.items()):
        for ring, line, model in zip(axes[2 * i], axes[2 * i + 1], models, strict=True):
            draw_ring(ring, np.array(model["density"]).mean(0))
            owns = model["owns"]
            for c, density in enumerate(model["density"]):
                faint = bool(owns) and c not in owns
                line.fill_between(AT, density, color=class_colour(c), alpha=0.12 if faint else 0.45, linewidth=0)
                line.plot(AT, density, color=class_colour(c), linewidth=0.5 if faint else 1.0)
            names = ", ".join(results.measured["classes"][c] for c in owns)
            ring.set_title(f"{model['model']}\n{names}" if owns else f"{model['model']}\n", fontsize=7.5, loc="center")
            line.set(xlim=(-np.pi, np.pi), ylim=(0, 1.05 * top), yticks=[])
            line.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
            line.grid(False)
        axes[2 * i][0].set_ylabel(method, fontsize=9, fontweight="bold")
        axes[2 * i + 1][0].set_ylabel("density")
    for ax in axes[-1]:
        ax.set_xlabel("angle of the feature")
    with styled():
        from matplotlib.patches import Patch

        keys = [
            Patch(color=class_colour(c), alpha=0.6, label=name) for c, name in enumerate(results.measured["classes"])
        ]
        figure.legend(
            handles=keys, loc="outside lower center", ncols=5 if columns < 5 else 10, fontsize=7, handlelength=1.2
        )
    caption = (
        "Features of the test samples on the unit circle (above: density; below: angle, by class): of the global "
        "model, of three clients after local training (their own classes in full colour), and of the round's average."
    )
    return [Plot("fig-hypersphere", figure, caption)]


def draw_ring(ax: Axes, density: np.ndarray) -> None:
    """Draw the density as the colour of a ring, and as a curve around it."""
    shade = density / max(density.max(), 1e-9)
    inner, outer = 0.86, 1.0
    edges = np.linspace(-np.pi, np.pi, len(shade))
    x, y = np.cos(edges), np.sin(edges)
    ax.pcolormesh(
        np.stack([inner * x, outer * x]), np.stack([inner * y, outer * y]), np.stack([shade, shade]),
        cmap=BLUES, vmin=0, vmax=1, shading="gouraud", rasterized=True,
    )  # fmt: skip
    hill = outer + 0.05 + 0.45 * shade
    ax.fill(
        np.append(hill * x, (1.05 * x)[::-1]), np.append(hill * y, (1.05 * y)[::-1]), color="#0072B2", alpha=0.3, lw=0
    )
    ax.set(xlim=(-1.55, 1.55), ylim=(-1.55, 1.55), xticks=[], yticks=[], aspect="equal")
    ax.grid(False)
    ax.spines[:].set_visible(False)


def small(settings: Settings) -> Settings:
    """A rehearsal with all local epochs, since two features are learned slowly."""
    reduced = rehearse(12, ratio=0.15)(settings)
    federation = {**reduced["federation"], "local_epochs": 5}
    return {**reduced, "federation": federation, "data": {**reduced["data"], "augment": False}}


ITEM = Item(
    name="fig-hypersphere",
    title="Features on the circle before and after local training, CIFAR-10 s=2",
    paper="Figure 18",
    about="A network whose features are points on the circle is trained for 100 rounds by IID clients, then by "
    "clients with two classes each: what becomes of the features of classes that a client lacks, and what averaging "
    "makes of it." + KEEP,
    # No augmentation: with crops and Cutout, all features collapsed to one place in rehearsals.
    runs={
        CELL: table(
            "cifar10-iid",
            data={"augment": False},
            model={"name": "fedntd.analysis.features:CircleCNN"},
            federation={"rounds": 100},
        )
    },
    measure=measure,
    render=render,
    seeds=1,
    small=small,
)
