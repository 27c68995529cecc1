import matplotlib
import numpy as np
import pytest
from make_runs import make_run, methods_by_partitions, plain_record, settings, write_run
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import Collection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from fedntd.errors import FedntdError
from fedntd.report import figures
from fedntd.report.charts import curves
from fedntd.report.figures import class_accuracy, learning_curves, local_curves, partition_figure, save_figures
from fedntd.report.summary import group

NAMES = {"class-accuracy", "consistency", "forgetting", "in-and-out-local", "learning-curves", "partition"}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return [
        make_run(folder / "a", rounds=12),
        make_run(folder / "b", "fedntd", rounds=30, stop=20, status="failed", measure__local_every=5),
    ]


def line(ax: Axes, label: str) -> Line2D:
    return next(one for one in ax.lines if one.get_label() == label)


def xs(drawn: Line2D) -> list[float]:
    return np.asarray(drawn.get_xdata()).tolist()


def ys(drawn: Line2D) -> list[float]:
    return np.asarray(drawn.get_ydata()).tolist()


def heights(band: Collection) -> np.ndarray:
    """The heights of the corners of a band around a line."""
    return np.asarray(band.get_paths()[0].vertices)[:, 1]


def array(drawn: ScalarMappable) -> np.ma.MaskedArray:
    """The values of a heat map."""
    return np.ma.asarray(drawn.get_array())


class TestLines:
    @pytest.mark.parametrize(
        ("draw", "name", "scale", "first"),
        [
            ("learning_curves", "accuracy", 100, 1),
            ("forgetting_curves", "forgetting", 1, 1),
            ("consistency_curves", "similarity", 1, 2),
        ],
    )
    def test_show_what_was_recorded(self, two, draw, name, scale, first):
        (ax,) = getattr(figures, draw)(two).axes
        for run, curve in zip(two, curves(two), strict=True):
            drawn = line(ax, curve.label)
            records = run.records[first - 1 :]
            assert xs(drawn) == [record.round for record in records]
            assert ys(drawn) == pytest.approx([scale * getattr(record, name) for record in records])
            assert drawn.get_color() == curve.colour

    def test_seeds_become_a_mean_and_a_band(self, tmp_path):
        given = {0: [0.2, 0.4], 1: [0.4, 0.8]}
        runs = [
            write_run(
                tmp_path / str(seed),
                settings(rounds=2, seed=seed),
                [plain_record(t + 1, a) for t, a in enumerate(values)],
            )
            for seed, values in given.items()
        ]
        (ax,) = learning_curves(runs).axes
        (drawn,) = ax.lines
        assert ys(drawn) == pytest.approx([30, 60])
        (band,) = ax.collections
        edges = heights(band)
        assert edges.max() == pytest.approx(60 + 800**0.5)  # of 40 and 80: (20² + 20²) / (2 - 1)
        assert edges.min() == pytest.approx(30 - 200**0.5)

    def test_a_failed_run_ends_in_a_cross(self, two):
        (ax,) = learning_curves(two).axes
        (cross,) = [one for one in ax.lines if one.get_marker() == "X"]
        assert xs(cross) == [20]

    def test_legend_names_every_run(self, two):
        figure = learning_curves(two)
        assert [text.get_text() for text in figure.legends[0].texts] == [curve.label for curve in curves(two)]

    def test_a_panel_for_each_setting(self, tmp_path):
        """All panels share one scale and one legend of the methods."""
        figure = learning_curves(methods_by_partitions(tmp_path))
        one, other = figure.axes
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["s=2", "s=5"]
        assert [ys(line(one, f"{name} s=2")) for name in ("fedavg", "fedntd")] == [[30.0], [50.0]]
        assert [ys(line(other, f"{name} s=5")) for name in ("fedavg", "fedntd")] == [[80.0], [70.0]]
        low, high = one.get_ylim()
        assert low < 30
        assert high > 80
        assert other.get_ylim() == (low, high)
        assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg", "fedntd"]

    def test_cost_has_a_mark_for_each_setting_and_a_unit_that_fits(self, tmp_path):
        runs = methods_by_partitions(tmp_path)  # 1,500 bytes and 2 seconds each
        figure = figures.cost_figure(group(runs), curves(runs))
        traffic, time = figure.axes
        assert (traffic.get_xlabel(), time.get_xlabel()) == ("kB sent in both directions", "seconds a run")
        points = [one[0] for one in traffic.containers]
        assert {(xs(point)[0], ys(point)[0], point.get_marker()) for point in points} == {
            *((1.5, accuracy, "o") for accuracy in (30.0, 50.0)),
            *((1.5, accuracy, "s") for accuracy in (80.0, 70.0)),
        }
        assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg", "fedntd", "s=2", "s=5"]

    def test_a_dollar_in_a_name_is_no_formula(self, tmp_path):
        runs = [make_run(tmp_path / name, rounds=2, classes=["a$b$", "$_{"]) for name in ("$x_{", "$y_{")]
        save_figures(runs, tmp_path / "out")


class TestLocal:
    def test_measured_points_are_joined(self, two):
        axes = local_curves(two).axes
        assert len(axes) == 4
        _, _, inside, outside = axes
        label = curves(two)[1].label
        assert xs(line(inside, label)) == [1, 5, 10, 15, 20]
        measured = [record for record in two[1].records if record.out_local is not None]
        assert ys(line(outside, label)) == pytest.approx([100 * r.out_local for r in measured])
        edges = heights(outside.collections[0])
        assert edges.max() == pytest.approx(max(100 * (r.out_local + r.out_local_std) for r in measured))

    def test_the_global_model_before_and_after(self, two):
        inside = local_curves(two).axes[0]
        for when in ("before", "after"):
            expected = [100 * getattr(record, f"global_in_{when}") for record in two[0].records]
            assert ys(line(inside, f"global {when}")) == pytest.approx(expected)


class TestHeatMaps:
    def test_class_accuracy_on_one_scale(self, two):
        *panels, bar = class_accuracy([*two, two[0]]).axes
        assert len(panels) == 3  # the fourth place of the grid is gone
        for ax, run in zip(panels, two, strict=False):
            (image,) = ax.images
            expected = 100 * np.array([record.class_accuracy for record in run.records]).T
            np.testing.assert_allclose(array(image), expected)
            assert image.get_clim() == (0, 100)
            assert ax.get_xlim() == (0.5, 20.5)  # the same rounds, though one run has fewer
        assert "%" in bar.get_xlabel()

    def test_partition(self, two):
        run = two[0]
        sizes, ax, _ = partition_figure(run.counts, run.classes, "a title").axes
        shown = array(ax.collections[0])
        np.testing.assert_array_equal(shown.filled(0), run.counts.T)
        np.testing.assert_array_equal(shown.mask, run.counts.T == 0)  # blank, not merely pale
        assert [bar.get_bbox().height for bar in sizes.patches if isinstance(bar, Rectangle)] == list(run.counts.sum(1))
        assert [label.get_text() for label in ax.get_yticklabels()] == run.classes

    def test_a_hundred_classes_are_not_all_named(self):
        counts = np.random.default_rng(0).integers(0, 50, (100, 100))
        _, ax, _ = partition_figure(counts, [f"class {c}" for c in range(100)], "").axes
        assert len(ax.get_yticks()) == 10


class TestFiles:
    def test_png_and_pdf(self, two, tmp_path):
        files = save_figures(two, tmp_path / "new" / "folder")
        assert {file.stem for file in files} == NAMES
        assert sorted(tmp_path.glob("new/folder/*")) == sorted(files)  # nothing half-written is left
        for file in files:
            if file.suffix == ".png":
                with Image.open(file) as image:
                    image.load()
                    assert image.info["dpi"] == pytest.approx((200, 200), abs=0.1)
                    assert len(np.unique(np.asarray(image.convert("L")))) > 10  # not blank
            else:
                text = file.read_bytes()
                assert text.startswith(b"%PDF")
                assert text.rstrip().endswith(b"%%EOF")
                assert b"/FontFile2" in text  # TrueType
                assert b"/Type3" not in text

    def test_each_partition_once(self, tmp_path):
        runs = [make_run(tmp_path / f"{a}{s}", a, seed=s, rounds=1) for a in ("fedavg", "fedntd") for s in (0, 1)]
        names = {file.stem for file in save_figures(runs, tmp_path / "out")}
        assert {name for name in names if name.startswith("partition")} == {"partition-1", "partition-2"}

    @pytest.mark.parametrize("stop", [0, 1])
    def test_hardly_any_records(self, tmp_path, stop):
        run = make_run(tmp_path / "a", stop=stop, status="interrupted")
        names = {file.stem for file in save_figures([run], tmp_path / "out")}
        assert names == ({"partition"} if stop == 0 else NAMES - {"consistency"})

    def test_settings_of_the_caller_stay(self, two):
        before = dict(matplotlib.rcParams)
        learning_curves(two)
        assert dict(matplotlib.rcParams) == before

    def test_a_folder_that_cannot_be(self, two, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(FedntdError, match="cannot be written"):
            save_figures(two, tmp_path / "file")
