import numpy as np
import pytest
import torch
from torch import Tensor

from fedntd import Batch, Federation, FedntdError, Out, tree
from fedntd.algorithms.losses import cross_entropy
from fedntd.analysis.landscape import Loss, landscape, loss_surface, perturbed_losses, top_eigenpairs

F64 = torch.float64


class Bowl:
    """A 'model' whose cross-entropy is 1 + sum_i h_i w_i^2 / 2: logits (0, log(e^q - 1)) with true class 0 have q."""

    def __init__(self, h: Tensor) -> None:
        self.h = h

    def frozen(self, w: dict[str, Tensor], batch: Batch) -> Out:
        flat = torch.cat([w["a"].flatten(), w["b"]])
        q = 1 + (self.h * flat**2).sum() / 2
        return Out(torch.stack([torch.zeros_like(q), q.expm1().log()]).expand(len(batch.y), 2))


CURVES = [0.5, 7.0, 2.0, -1.0, 3.0]


@pytest.fixture
def bowl() -> tuple[Loss, dict[str, Tensor]]:
    """Curvatures of known size: 7 along a[0, 1], 3 along b[0]."""
    batches = [Batch(torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)) for n in (3, 2)]
    model = Bowl(torch.tensor(CURVES, dtype=F64))
    return Loss(model, batches), {"b": torch.zeros(1, dtype=F64), "a": torch.zeros(2, 2, dtype=F64)}  # type: ignore[arg-type]


class TestQuadratic:
    def test_eigenvalues_and_directions(self, bowl):
        loss, w = bowl
        values, (first, second) = top_eigenpairs(loss, w)
        assert values == pytest.approx([7, 3])
        assert first["a"].abs().flatten().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)
        assert second["b"].abs().tolist() == pytest.approx([1])

    def test_surface(self, bowl):
        loss, w = bowl
        _, (first, second) = top_eigenpairs(loss, w)
        at = np.array([-1.0, 0.0, 2.0])
        expected = 1 + 7 / 2 * at[:, None] ** 2 + 3 / 2 * at[None, :] ** 2
        np.testing.assert_allclose(loss_surface(loss, w, first, second, at), expected, rtol=1e-6)

    def test_noise(self, bowl):
        """E loss = 1 + sigma^2 tr(H) / 2, and the same noise at every sigma."""
        loss, w = bowl
        losses = perturbed_losses(loss, w, [0.0, 0.1, 0.2], draws=400)
        assert losses.shape == (3, 400)
        assert losses[0] == pytest.approx(1)
        assert losses[1].mean() == pytest.approx(1 + 0.1**2 * sum(CURVES) / 2, abs=0.005)
        np.testing.assert_allclose(losses[2] - 1, 4 * (losses[1] - 1), atol=1e-9)
        assert losses[1].std() > 0.01
        np.testing.assert_array_equal(perturbed_losses(loss, w, [0.1], draws=2)[0], losses[1, :2])

    def test_all_at_once(self, bowl):
        loss, w = bowl
        found = landscape(loss.model, w, loss.batches, sigmas=(0.0, 0.3), draws=2, reach=0.5, points=3)
        assert found.loss == pytest.approx(1)
        assert found.eigenvalues == pytest.approx([7, 3])
        assert found.at.tolist() == [-0.5, 0, 0.5]
        assert found.surface[0, 1] == pytest.approx(1 + 7 / 2 * 0.25)
        assert found.surface[1, 0] == pytest.approx(1 + 3 / 2 * 0.25)
        assert found.perturbed.shape == (2, 2)

    def test_too_many(self, bowl):
        with pytest.raises(FedntdError, match=r"count must lie in 1\.\.4"):
            top_eigenpairs(*bowl, count=5)


class TestNetwork:
    @pytest.fixture
    def world(self, blobs, make_config, tiny_net) -> tuple[Loss, dict[str, Tensor], Tensor]:
        """A small network's loss, its weights, and its whole Hessian by torch.autograd.functional."""
        federation = Federation(make_config(engine="sequential"), blobs, tiny_net())
        engine, w = federation.engine, federation.state.w
        part = engine.test_part
        loss = Loss(engine.model, [part.plain(slice(0, 23)), part.plain(slice(23, 60))])
        names, batch = sorted(w), part.plain(slice(0, 60))

        def of_flat(flat: Tensor) -> Tensor:
            pieces = flat.split([w[name].numel() for name in names])
            made = {name: piece.view(w[name].shape) for name, piece in zip(names, pieces, strict=True)}
            return cross_entropy(engine.model(made, batch).logits, batch.y).mean()

        flat = torch.cat([w[name].flatten() for name in names])
        hessian = torch.autograd.functional.hessian(of_flat, flat)
        return loss, w, torch.as_tensor(hessian)

    def test_products(self, world):
        loss, w, hessian = world
        v = {name: torch.randn_like(leaf) for name, leaf in w.items()}
        found = loss.hessian_times(w, v)
        flat = torch.cat([leaf.flatten() for leaf in tree.leaves(v)])
        torch.testing.assert_close(torch.cat([leaf.flatten() for leaf in tree.leaves(found)]), hessian @ flat)

    def test_eigenvalues(self, world):
        loss, w, hessian = world
        values, vectors = top_eigenpairs(loss, w, count=3, tolerance=1e-8)
        expected, directions = torch.linalg.eigh(hessian)
        assert values == pytest.approx(expected.flip(0)[:3].numpy(), rel=1e-6)
        for i, vector in enumerate(vectors):
            flat = torch.cat([leaf.flatten() for leaf in tree.leaves(vector)])
            assert abs(float(flat @ directions[:, -1 - i])) == pytest.approx(1, abs=1e-5)

    def test_the_loss_is_the_mean_over_all_samples(self, world):
        loss, w, _ = world
        x, y = torch.cat([b.x for b in loss.batches]), torch.cat([b.y for b in loss.batches])
        assert loss(w) == pytest.approx(float(cross_entropy(loss.model(w, Batch(x, y)).logits, y).mean()))


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_images_in_the_papers_networks(name: str):
    """Pooling and BatchNorm can be differentiated twice: H v against a difference of gradients."""
    from torch.func import grad

    from fedntd import Model
    from fedntd.models import MODELS

    torch.manual_seed(0)
    model = Model(MODELS[name]((1, 8, 8), 3), "fp64")
    batch = Batch(torch.randn(6, 1, 8, 8, dtype=F64), torch.tensor([0, 1, 2, 0, 1, 2]))
    loss, w = Loss(model, [batch]), model.weights()
    v = {name: torch.randn_like(leaf) for name, leaf in w.items()}
    gradient = grad(lambda w: loss.of_batch(w, batch))
    h = 1e-7
    ahead, behind = gradient(tree.add(w, tree.scale(h, v))), gradient(tree.add(w, tree.scale(-h, v)))
    expected = tree.scale(1 / (2 * h), tree.sub(ahead, behind))
    torch.testing.assert_close(loss.hessian_times(w, v), expected, rtol=1e-4, atol=1e-4)
