"""The figure items: what they draw from made-up results, and what they measure on small runs."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from PIL import Image

from fedntd import Federation, federate, tree
from fedntd.analysis.alignment import alignment as share_aligned
from fedntd.analysis.diversity import gradient_diversity
from fedntd.analysis.landscape import Loss
from fedntd.analysis.rounds import next_cohort, next_round, reopen, trace_client
from fedntd.config.registry import Choice
from fedntd.paper.item import Item, Plot, Results, Setting, table
from fedntd.paper.items import (
    alignment,
    fedalign,
    fig_consistency,
    fig_curves,
    fig_distributions,
    fig_divergence,
    fig_hyper,
    fig_hypersphere,
    fig_landscape,
    fig_local_forgetting,
    fig_local_training,
    fig_personalized,
    fig_tsne,
    prop1,
    prop2,
    prop3,
)
from fedntd.paper.methods import METHODS
from fedntd.paper.render import draw, write_item
from fedntd.paper.runner import Workshop
from fedntd.paper.tables import Figures, Table
from fedntd.runs.ledger import read_store
from fedntd.runs.measures import in_local
from fedntd.runs.reader import read_run
from fedntd.runs.record import load_checkpoint
from ledgers import fill

ALL = [
    module.ITEM
    for module in (
        *(alignment, fig_consistency, fig_curves, fig_distributions, fig_divergence, fig_hyper, fig_hypersphere),
        *(fig_landscape, fig_local_forgetting, fig_local_training, fig_personalized, fig_tsne, prop1, prop2, prop3),
    )
]


def plots(results: Results) -> list[Plot]:
    return [thing for thing in draw(results) if isinstance(thing, Plot)]


def lines(ax: Axes, label: str = "") -> list[Line2D]:
    return [line for line in ax.lines if not label or line.get_label() == label]


def ys(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_ydata(), dtype=float)


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_nothing_is_drawn_of_nothing(item: Item):
    """A table may be open, but there is no empty plot."""
    assert plots(Results(item, Setting(), {}, {})) == []


# --- drawn from records -----------------------------------------------------------------------------------------


class TestConsistency:
    def test_figure_2(self):
        levels = list(fig_consistency.LEVELS)
        setting = Setting(settings=("federation.rounds=6",))
        found = fill(fig_consistency.ITEM, lambda row, column: 40 if row == "CIFAR-10" else None, setting=setting)
        for i, level in enumerate(levels):
            (result,) = found["CIFAR-10", level]
            history = {**result.history, "forgetting": [0.1 * i] * 6, "similarity": [None, *[1 - 0.1 * i] * 5]}
            found["CIFAR-10", level] = [replace(result, history=history)]
        (plot,) = plots(found)
        iid, niid, similarity, against, _ = plot.figure.axes
        for ax in (iid, niid):
            (image,) = ax.images
            np.testing.assert_allclose(np.asarray(image.get_array())[:, -1], 40)  # %, [class, round]
            assert image.get_clim() == (0, 100)
        assert ys(lines(similarity, "IID")[0])[1:] == pytest.approx([1] * 5)
        assert ys(lines(similarity, "NIID (α=0.1)")[0])[1:] == pytest.approx([0.7] * 5)
        assert ys(lines(against, "CIFAR-10")[0]) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
        assert [text.get_text() for text in against.get_xticklabels()] == ["IID", "0.5", "0.3", "0.1", "0.05"]
        assert not lines(against, "CIFAR-100")  # none is measured

    def test_normalised(self):
        setting = Setting(settings=("federation.rounds=2",))
        found = fill(fig_consistency.ITEM, lambda row, column: 50 if row == "FedNTD" else None, setting=setting)
        values = [[0.1] * 10, [0.9, 0.1, *[0.0] * 8]]
        for setup in fig_consistency.SETUPS:
            (result,) = found["FedNTD", setup]
            found["FedNTD", setup] = [replace(result, history={**result.history, "class_accuracy": values})]
        (plot,) = plots(found)
        shown = [ax for ax in plot.figure.axes if ax.images and ax.get_visible()]
        assert len(shown) == len(fig_consistency.SETUPS)
        np.testing.assert_allclose(np.asarray(shown[0].images[0].get_array()).T, [[0.1] * 10, [0.9, 0.1, *[0] * 8]])

    def test_settings_are_the_papers(self):
        config = fig_consistency.ITEM.config(("CIFAR-10", "α=0.1"), 0, Setting())
        assert (config.data.name, config.partition.options["alpha"], config.algorithm.name) == (
            "cifar10",
            0.1,
            "fedavg",
        )
        assert (config.optimiser.lr, config.optimiser.decay, config.federation.rounds) == (0.01, 1.0, 200)


def test_local_forgetting():
    setting = Setting(settings=("federation.rounds=3",))
    (cell,) = fig_local_forgetting.ITEM.runs
    history: dict[str, Any] = {
        "in_local": [0.5, 0.6, 0.7],
        "out_local": [0.2, 0.1, 0.3],
        "out_local_std": [0.01, 0.02, 0.03],
    }
    found = fill(fig_local_forgetting.ITEM, lambda *_: 40, setting=setting, global_in_before=0.25, **history)
    (plot,) = plots(found)
    inside, outside = plot.figure.axes
    assert ys(lines(inside, "local models, mean ± std")[0]) == pytest.approx([50, 60, 70])
    assert ys(lines(inside, "global model before the round")[0]) == pytest.approx([25] * 3)
    assert ys(lines(outside, "local models, mean ± std")[0]) == pytest.approx([20, 10, 30])
    ends = np.array(outside.containers[0][2][0].get_segments())[:, :, 1]  # pyright: ignore
    assert ends[:, 1] - ends[:, 0] == pytest.approx([2, 4, 6])
    assert found.config(*cell).measure.local_every == 1


def test_curves():
    setting = Setting(settings=("federation.rounds=4",))
    found = fill(fig_curves.ITEM, lambda row, _: {"FedAvg": 40, "FedNTD": 50}[row], setting=setting)
    (plot,) = plots(found)
    grid = np.array(plot.figure.axes).reshape(3, 8)
    titles = [ax.get_title(loc="left") for ax in grid[0]]
    assert titles == [f"s={s}, E={e}" for e in (1, 10) for s in (10, 5, 3, 2)]
    for ax in grid.flat:
        assert ys(lines(ax, "FedAvg")[0])[-1] == pytest.approx(40)
        assert ys(lines(ax, "FedNTD")[0])[-1] == pytest.approx(50)
    config = found.config("FedNTD", "s=3, E=10")
    assert (config.partition.options["s"], config.federation.local_epochs, config.measure.local_every) == (3, 10, 1)


def test_only_the_columns_that_there_are():
    setting = Setting(settings=("federation.rounds=4",))
    (plot,) = plots(fill(fig_curves.ITEM, lambda _, column: 40 if column == "s=2, E=1" else None, setting=setting))
    assert len(plot.figure.axes) == 3


def test_personalized():
    setting = Setting(settings=("federation.rounds=4",))
    of = {method: 30.0 + i for i, method in enumerate(METHODS)}
    (plot,) = plots(fill(fig_personalized.ITEM, lambda row, _: of[row], setting=setting))
    assert len(plot.figure.axes) == 9
    for ax in plot.figure.axes:
        assert {line.get_label(): ys(line)[-1] for line in ax.lines} == pytest.approx(of)
    assert len({line.get_color() for line in plot.figure.axes[0].lines}) == len(METHODS)
    assert [text.get_text() for text in plot.figure.legends[0].texts] == list(METHODS)


def test_many_rounds_are_smoothed():
    """Odd rounds at 40, even ones at 60: five in a row have a mean of 48 or 52."""
    setting = Setting(settings=("federation.rounds=60",))
    (plot,) = plots(fill(fig_personalized.ITEM, lambda *_: 50, setting=setting, accuracy=[0.4, 0.6] * 30))
    (line, *_) = plot.figure.axes[-1].lines
    assert np.asarray(line.get_xdata()).tolist() == list(range(3, 59))
    assert ys(line)[:4] == pytest.approx([48, 52, 48, 52])


def test_learning_curves_of_fedalign():
    """One panel for each measured row, all methods in one legend."""
    setting = Setting(settings=("federation.rounds=4",))
    found = fill(fedalign.ITEM, lambda row, method: None if row.startswith("64") else 30, setting=setting)
    (plot,) = plots(found)
    shown = [ax for ax in plot.figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in shown] == [f"16 clients, α={alpha}" for alpha in (0.05, 0.1, 0.5)]
    assert [text.get_text() for text in plot.figure.legends[0].texts] == ["FedAvg", "FedAlign", "FedNTD"]
    for ax in shown:
        assert all(ys(line)[-1] == pytest.approx(30) for line in ax.lines)


def test_hyper():
    setting = Setting(settings=("federation.rounds=4",), seeds=2)

    def accuracy(row: str, column: str) -> float:
        return 20 if column == "FedAvg" else 30 + 10 * float(column.split("=")[1])

    (plot,) = plots(fill(fig_hyper.ITEM, accuracy, seeds=2, setting=setting))
    tau, beta, f_tau, f_beta = plot.figure.axes
    for ax, values in ((tau, fig_hyper.TAUS), (beta, fig_hyper.BETAS)):
        drawn = next(line for line in ax.lines if len(ys(line)) == len(values))
        assert ys(drawn) == pytest.approx([30.5 + 10 * value for value in values])  # of the two seeds, one point apart
        assert [text.get_text() for text in ax.get_xticklabels()] == [f"{value:g}" for value in values]
        assert lines(ax, "FedAvg, LDA α=0.1")[0].get_ydata() == pytest.approx([20.5, 20.5])
    for ax in (f_tau, f_beta):
        assert lines(ax, "FedAvg, Sharding s=2")[0].get_ydata() == pytest.approx([0.3, 0.3])
    config = fig_hyper.ITEM.config(("LDA α=0.1", "τ=0.5"), 0, Setting())
    assert config.algorithm.options == {"beta": 1.0, "tau": 0.5}


# --- measured on small runs -------------------------------------------------------------------------------------

SETTINGS = (
    *("federation.rounds=2", "federation.ratio=0.15", "federation.local_epochs=1", "device=cpu", "workers=1"),
    "data.name=fedntd.paper.rehearsal:thumbnails",  # a quarter of the pixels
)
TINY = Setting(small=True, settings=SETTINGS)


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[[Item], Results]:
    """Train, measure, read back from the files, and write all that an item draws. Runs are shared."""
    out = tmp_path_factory.mktemp("paper")

    def make_item(item: Item) -> Results:
        shop = Workshop(out, read_store(out, None), None)
        for _, event in shop.train(shop.missing(item, TINY)):
            assert not isinstance(event, Exception), event
        shop = Workshop(out, read_store(out, None), None)
        assert shop.measure(item, TINY)
        results = shop.results(item, TINY)
        assert results.measured
        for file in write_item(results, out):
            if file.suffix == ".png":
                with Image.open(file) as image:
                    assert len(np.unique(np.asarray(image.convert("L")))) > 10  # not blank
        return results

    return make_item


def folder_of(results: Results, cell: tuple[str, str]) -> Path:
    (result,) = results[cell]
    assert result.folder
    return result.folder


def test_distributions(make):
    found = make(fig_distributions.ITEM).measured
    p = np.array(found["p"])
    assert p.shape == (10, 10)
    assert p.sum(1) == pytest.approx(1, abs=1e-4)
    config = replace(fig_distributions.ITEM, runs={("", ""): fig_distributions.SETTINGS}).config(("", ""), 0, TINY)
    federation = Federation(config)
    assert p == pytest.approx(federation.p[found["clients"]], abs=1e-5)


def test_local_training(make):
    results = make(fig_local_training.ITEM)
    for cell in results:
        found, run = results.measured["/".join(cell)], read_run(folder_of(results, cell))
        federation = reopen(run.path)
        cohort = next_cohort(federation)
        assert len(found["in_local"]) == len(cohort) == 3
        # step 0 is the run's last model; the last step is that of a client trained in the next round
        last = np.array(run.records[-1].class_accuracy)
        p = run.counts / run.counts.sum(1, keepdims=True)
        assert [trace[0] for trace in found["in_local"]] == pytest.approx(
            [in_local(last, p[k]) for k in cohort], abs=1e-5
        )
        end = trace_client(federation, cohort[0], every=99)
        assert found["steps"][-1] == end.steps[-1]
        assert found["out_local"][0][-1] == pytest.approx(end.out_local[-1], abs=1e-5)


def test_divergence(make):
    results = make(fig_divergence.ITEM)
    found = results.measured["FedAvg/s=2"]
    config = replace(fig_divergence.ITEM, runs=fig_divergence.RUNS).config(("FedAvg", "s=2"), 0, TINY)
    federation = Federation(config)
    first, w_before, second = next(iter(federation)), federation.state.w, next(iter(federation))
    known = np.array(first.class_accuracy)
    expected = np.abs(known / known.sum() - federation.p[second.cohort]).sum(1)
    assert found["distributions"][1] == pytest.approx(expected, abs=1e-5)
    # all clients have one size, so the global model has moved by the mean of what they moved: less than their mean
    moved = sum(
        float((a - b).abs().sum()) for a, b in zip(*map(tree.leaves, (w_before, federation.state.w)), strict=True)
    )
    assert moved <= np.mean(found["weights"][1]) * (1 + 1e-4)
    (plot,) = plots(results)
    p, w = (np.ravel(found[name]) for name in ("distributions", "weights"))
    assert f"$r$ = {np.corrcoef(p, w)[0, 1]:.2f}" in plot.figure.axes[0].get_title(loc="left")


def test_alignment(make):
    results = make(alignment.ITEM)
    cell = ("FedNTD", "s=2")
    folder = folder_of(results, cell)
    (found,) = results.measured["/".join(cell)]
    # by another way: the run is played on for a round, and its two last global models are compared
    federation = reopen(folder)
    w = federation.state.w
    longer = replace(federation.config, federation=replace(federation.config.federation, rounds=3))
    list(federate(longer, out=folder.parent / "longer"))
    after = load_checkpoint(folder.parent / "longer" / "checkpoint.safetensors", torch.device("cpu")).w
    engine = federation.engine
    assert found["aggregated"] == pytest.approx(share_aligned(engine.model, w, after, engine.test_part), abs=1e-5)
    prefers = np.array(results.measured["prefers FedNTD/s=2"])
    assert prefers.shape == (5, 512)  # global, three locals, next global
    assert found["locals"] == pytest.approx((prefers[1:4] == prefers[0]).mean(), abs=1e-5)

    (shown,) = [thing for thing in draw(results) if isinstance(thing, Table)]
    one = shown.cell("s=2: global and next global (512)", "FedNTD")
    assert isinstance(one, Figures)
    assert one.mean == found["aggregated"]
    assert one.published is not None
    assert one.published.value == 0.871
    other = shown.cell("α=0.05: global and locals (128)", "FedAvg")
    assert isinstance(other, Figures)
    assert (other.mean, other.published and other.published.value) == (None, 0.512)
    assert len(shown.rows) == 12
    assert set(shown.cells) == {(row, column) for row in shown.rows for column in shown.columns}


def test_hypersphere(make):
    results = make(fig_hypersphere.ITEM)
    run = read_run(folder_of(results, fig_hypersphere.CELL))
    config = replace(run.config, partition=Choice("sharding", {"s": 2}))
    federation = Federation(config)
    for method in fig_hypersphere.METHODS:
        models = results.measured[method]
        assert [model["model"] for model in models[::4]] == ["global", "aggregated"]
        for model in models:
            density = np.array(model["density"])
            assert density.shape == (10, len(fig_hypersphere.AT))
            area = (density[:, 1:] + density[:, :-1]).sum(1) / 2 * (fig_hypersphere.AT[1] - fig_hypersphere.AT[0])
            assert area == pytest.approx(1, abs=0.01)
        for model in models[1:4]:
            client = int(model["model"].split()[1])
            assert model["owns"] == np.flatnonzero(federation.counts[client]).tolist()
            assert model["density"] != models[0]["density"]
    assert results.measured["FedAvg"][0]["density"] == results.measured["FedNTD"][0]["density"]
    assert results.measured["FedAvg"][1]["density"] != results.measured["FedNTD"][1]["density"]


def test_clients_unlike_one_another():
    p = np.array([[1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]], dtype=float)
    assert fig_hypersphere.dissimilar_clients(p) == [0, 3, 4]


def test_tsne(make, monkeypatch):
    monkeypatch.setattr(fig_tsne, "SAMPLES", 20)
    results = make(fig_tsne.ITEM)
    found = results.measured
    federation = reopen(folder_of(results, fig_tsne.CELL))
    assert found["labels"] == federation.engine.test_part.y[:20].tolist()
    assert np.shape(found["homogeneous"]) == np.shape(found["heterogeneous"]) == (4, 20, 2)  # global, three locals
    assert np.shape(found["both"]) == (7, 20, 2)
    assert [plot.name for plot in plots(results)] == ["fig-tsne-class", "fig-tsne-local", "fig-tsne-method"]


def test_landscape(make):
    """With the paper's small network instead of the ResNet-56 of the comparison to FedAlign."""
    runs = {(fig_landscape.ROW, "FedNTD"): table("cifar10-s2", "fedntd")}
    results = make(replace(fig_landscape.ITEM, runs=runs))
    for cell in runs:
        found = results.measured["/".join(cell)]
        federation = reopen(folder_of(results, cell))
        loss = Loss.on(federation.engine.model, federation.engine.test_part, 10)
        assert found["loss"] == pytest.approx(loss(federation.state.w), abs=1e-4)
        surface = np.array(found["surface"])
        assert surface[3, 3] == pytest.approx(found["loss"], abs=1e-4)
        first, second = found["eigenvalues"]
        assert first >= second > 0
        assert np.array(found["perturbed"])[0] == pytest.approx(0, abs=1e-4)
        # along the first eigenvector the loss is curved by the first eigenvalue
        bend = (surface[4, 3] - 2 * surface[3, 3] + surface[2, 3]) / (found["at"][4] - found["at"][3]) ** 2
        assert bend == pytest.approx(first, rel=0.5)


class TestPropositions:
    def test_1(self, make, monkeypatch):
        monkeypatch.setattr(prop1, "TRAINED", (0.0, 2.0))
        results = make(prop1.ITEM)
        found, folder = results.measured, folder_of(results, prop1.CELL)
        federation = reopen(folder)
        # orthogonal class gradients of one length: local gradients p^k themselves
        p = {"w": torch.from_numpy(federation.p)}
        assert found["assumed"][0] == pytest.approx(gradient_diversity(p), abs=1e-4)
        assert all(after < before for before, after in pairwise(found["assumed"]))
        assert all(value <= bound + 1e-5 for value, bound in zip(found["assumed"], found["bound"], strict=True))
        assert min(found["classes"] + found["objective"] + found["updates"]) >= 1
        # at beta = 0 FedNTD is FedAvg
        inside = next_round(reopen(folder, algorithm=Choice("fedavg")))
        moved = {name: leaf - inside.w_g[name] for name, leaf in inside.w_k.items()}
        assert found["updates"][0] == pytest.approx(gradient_diversity(moved), rel=1e-3)
        assert np.diag(found["cosines"]) == pytest.approx(1, abs=1e-5)

    def test_2(self, make):
        results = make(prop2.ITEM)
        federation = reopen(folder_of(results, prop2.CELL))
        client = next_cohort(federation)[0]
        assert results.measured["p"] == pytest.approx(federation.p[client].tolist(), abs=1e-5)
        for method in prop2.METHODS:
            found = results.measured[method]
            assert found["true"] == pytest.approx(found["true_by_p"], abs=2e-6)
            assert found["not_true"] == pytest.approx(found["not_true_by_p_out"], abs=2e-6)
            assert sum(found["not_true_terms"]) == pytest.approx(found["not_true"], abs=2e-5)
        (shown,) = [thing for thing in draw(results) if isinstance(thing, Table)]
        assert shown.cell("after FedNTD", "L true") == shown.cell("after FedNTD", "Σ p E[…]")

    def test_3(self, make):
        found = make(prop3.ITEM).measured
        grid = np.array(found["grid"])
        assert grid[np.argmin(found["symmetric"])] == pytest.approx(1 / 3, abs=1e-5)
        assert grid[np.argmin(found["one order"])] != pytest.approx(1 / 3, abs=0.1)
        for path in found["paths"]:
            assert all(after >= before for before, after in pairwise(path))
