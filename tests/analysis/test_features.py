import numpy as np
import pytest
import torch

from fedntd import Federation, FedntdError, Model
from fedntd.analysis.features import CircleCNN, angles, circle_density, features, tsne
from fedntd.config.toml import from_table


def test_angles():
    points = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    assert angles(points).tolist() == pytest.approx([0, np.pi / 2, -3 * np.pi / 4])
    with pytest.raises(FedntdError, match=r"\[sample, 2\]"):
        angles(np.ones((4, 3)))


class TestDensity:
    AT = np.linspace(-np.pi, np.pi, 721)[:-1]

    def test_integrates_to_one(self):
        angle = np.random.default_rng(0).uniform(-np.pi, np.pi, 50)
        assert circle_density(angle, self.AT).sum() * 2 * np.pi / 720 == pytest.approx(1)

    def test_goes_round(self):
        """A point at the seam counts on both sides of it."""
        density = circle_density(np.array([np.pi]), self.AT)
        assert density[1] == pytest.approx(density[-1])
        assert density.argmax() == 0

    def test_is_the_normal_density_of_one_point(self):
        (peak, aside) = circle_density(np.array([0.5]), np.array([0.5, 0.7]), bandwidth=0.2)
        assert peak == pytest.approx(1 / (0.2 * (2 * np.pi) ** 0.5))
        assert aside / peak == pytest.approx(np.exp(-0.5))


def test_circle_cnn():
    model = Model(CircleCNN((1, 28, 28), 10))
    federation = Federation(
        from_table({"model": {"name": "fedntd.analysis.features:CircleCNN"}, "data": {"train_size": 1000}})
    )
    assert set(federation.state.w) == set(model.weights())
    points = features(federation.engine.model, federation.state.w, federation.engine.test_part)
    assert points.shape == (2000, 2)
    assert np.linalg.norm(points, axis=1) == pytest.approx(1, abs=1e-6)
    batch = federation.engine.test_part.plain(slice(0, 7))
    w = federation.state.w
    logits = 3 * torch.from_numpy(points[:7]).float() @ w["fc2.weight"].T + w["fc2.bias"]
    torch.testing.assert_close(federation.engine.model(w, batch).logits, logits, rtol=1e-4, atol=1e-5)
    first = features(federation.engine.model, federation.state.w, federation.engine.test_part, samples=600)
    np.testing.assert_allclose(first, points[:600], atol=1e-6)


def test_tsne_keeps_clusters_apart():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(2, 40, 8))
    a, b = tsne([near, far + 30], perplexity=10)
    assert a.shape == b.shape == (40, 2)
    spread = max(np.linalg.norm(one - one.mean(0), axis=1).mean() for one in (a, b))
    assert np.linalg.norm(a.mean(0) - b.mean(0)) > 2 * spread
    again = tsne([near, far + 30], perplexity=10)
    np.testing.assert_array_equal(a, again[0])
    with pytest.raises(FedntdError, match="more samples than 20"):
        tsne([near[:20]])
