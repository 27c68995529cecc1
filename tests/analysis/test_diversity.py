import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedntd import FedAvg, Federation, FedNTD, FedntdError, tree
from fedntd.algorithms.losses import cross_entropy, kl, not_true
from fedntd.analysis.diversity import (
    class_gradients,
    closed_form,
    constant,
    diversity_bound,
    gradient_diversity,
    gram_matrix,
    local_gradients,
    mixed_diversity,
    slope,
    slope_bound,
)
from fedntd.analysis.rounds import out_of


def uniform_over_clients(rng: np.random.Generator, classes: int, groups: int) -> np.ndarray:
    """Random distributions whose mean is uniform: each with all its rotations."""
    drawn = rng.dirichlet(np.full(classes, 0.2), groups)
    return np.concatenate([np.roll(drawn, shift, axis=1) for shift in range(classes)])


class TestDefinition:
    def test_equal_gradients_have_diversity_one(self):
        g = {"a": torch.tensor([[1.0, 2.0]] * 4), "b": torch.tensor([[[3.0]]] * 4)}
        assert gradient_diversity(g) == pytest.approx(1)

    def test_by_hand(self):
        # (|(1,0)|² + |(0,2)|²) / 2 = 2.5; |(0.5, 1)|² = 1.25
        assert gradient_diversity({"w": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}) == pytest.approx(2)

    def test_orthogonal_ones_of_one_length_have_diversity_k(self):
        assert gradient_diversity({"w": 3 * torch.eye(7)}) == pytest.approx(7)

    def test_is_never_below_one_and_does_not_know_the_scale(self):
        g = {"w": torch.randn(5, 9, generator=torch.Generator().manual_seed(0))}
        assert gradient_diversity(g) >= 1
        assert gradient_diversity(tree.scale(4.0, g)) == pytest.approx(gradient_diversity(g))

    def test_opposite_gradients_have_none(self):
        with pytest.raises(FedntdError, match="is zero"):
            gradient_diversity({"w": torch.tensor([[1.0], [-1.0]])})


class TestProposition1:
    @given(st.integers(3, 12), st.integers(1, 4), st.floats(0, 20), st.integers(0, 9))
    def test_orthogonal_class_gradients_give_the_closed_form(self, classes, groups, beta, seed):
        """Real vectors, mixed by hand as the proposition says, against the formula."""
        rng = np.random.default_rng(seed)
        p = uniform_over_clients(rng, classes, groups)
        orthogonal = 3 * np.linalg.qr(rng.normal(size=(classes + 4, classes)))[0].T  # g_c, of length 3
        mixed = {"w": torch.from_numpy((p + beta * (1 - p) / (classes - 1)) @ orthogonal)}
        assert gradient_diversity(mixed) == pytest.approx(closed_form(p, beta), rel=1e-9)
        gram = gram_matrix({"w": torch.from_numpy(orthogonal)})
        assert mixed_diversity(gram, p, beta) == pytest.approx(closed_form(p, beta), rel=1e-9)

    def test_by_hand(self):
        # two classes and two clients with one each: p + beta p~ = (1, beta) and (beta, 1)
        p = np.eye(2)
        assert closed_form(p, 0) == pytest.approx(2)
        assert closed_form(p, 1) == pytest.approx(1)
        assert closed_form(p, 0.5) == pytest.approx((1 + 0.25) / (2 * 0.75**2))

    @given(st.integers(4, 12), st.floats(0, 1), st.integers(0, 9))
    def test_its_statement(self, classes, share, seed):
        """The slope is at most -M / (1 + beta)^2 for all beta up to C/2 - 1, so Lambda falls at least this fast."""
        p = uniform_over_clients(np.random.default_rng(seed), classes, 2)
        beta = share * (classes / 2 - 1)
        assert constant(p) > 0
        assert slope(p, beta) <= slope_bound(p, beta) * (1 - 1e-12)
        assert closed_form(p, beta) <= diversity_bound(p, beta) + 1e-9
        assert closed_form(p, beta) >= 1

    @given(st.integers(3, 12), st.floats(0.01, 10), st.integers(0, 9))
    def test_slope_is_the_derivative(self, classes, beta, seed):
        p = uniform_over_clients(np.random.default_rng(seed), classes, 2)
        h = 1e-5
        numerical = (closed_form(p, beta + h) - closed_form(p, beta - h)) / (2 * h)
        assert slope(p, beta) == pytest.approx(numerical, rel=1e-4, abs=1e-6)

    def test_does_not_hold_much_beyond_its_range(self):
        p = np.eye(4)
        assert slope(p, 3.5) > slope_bound(p, 3.5)

    def test_the_printed_formula_is_not_lambda(self):
        """With the proof's constants Lambda would be below 1, against its definition: see the module."""
        p, clients, classes = np.tile(np.eye(10), (10, 1)), 100, 10
        printed = classes**2 / clients**3 * p.var(axis=1).sum() + classes**2 / clients**2
        assert printed < 1
        assert closed_form(p, 0) == pytest.approx(10)  # ten groups of clients that pull at right angles

    def test_other_classes_than_uniform_ones_are_told(self):
        with pytest.raises(FedntdError, match=r"between 0\.25 and 0\.75"):
            closed_form(np.array([[1.0, 0.0], [0.5, 0.5]]), 0.0)


def test_out_of_is_definition_1():
    p = np.array([[1.0, 0, 0, 0], [0.25] * 4])
    assert out_of(p) == pytest.approx(np.array([[0, 1 / 3, 1 / 3, 1 / 3], [0.25] * 4]))


class TestOfAModel:
    @pytest.fixture
    def federation(self, blobs, make_config, tiny_net) -> Federation:
        return Federation(make_config(engine="sequential"), blobs, tiny_net())

    def test_class_gradients(self, federation: Federation):
        engine, w = federation.engine, federation.state.w
        found = class_gradients(engine.model, w, engine.train_part)
        for c in range(3):
            leaves = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
            batch = engine.train_part.plain(torch.nonzero(engine.train_part.y == c).flatten())
            cross_entropy(engine.model(leaves, batch).logits, batch.y).mean().backward()
            for name, leaf in leaves.items():
                torch.testing.assert_close(found[name][c], leaf.grad)

    def test_clients_gradients_are_mixtures_of_the_class_gradients_of_their_samples(self, federation: Federation):
        """f^k = sum_c p^k_c L_c, if L_c is over the client's own samples: of clients with one class, one L_c."""
        engine, w = federation.engine, federation.state.w
        labels = engine.train_part.y.numpy()
        parts = [np.flatnonzero(labels == c) for c in range(3)]
        found = local_gradients(FedAvg(), engine.model, w, w, engine.train_part, [*parts, np.arange(len(labels))])
        expected = class_gradients(engine.model, w, engine.train_part)
        shares = torch.bincount(engine.train_part.y).double() / len(labels)
        for name, leaf in found.items():
            torch.testing.assert_close(leaf[:3], expected[name])
            torch.testing.assert_close(leaf[3], torch.tensordot(shares, expected[name], 1))

    def test_the_not_true_term(self, federation: Federation):
        """At the global model it has no gradient; elsewhere it is that of beta KL."""
        engine, w_g = federation.engine, federation.state.w
        part, model = engine.train_part, engine.model
        owned = [federation.parts[0], federation.parts[1]]
        plain = local_gradients(FedAvg(), model, w_g, w_g, part, owned)
        torch.testing.assert_close(local_gradients(FedNTD(beta=3.0), model, w_g, w_g, part, owned), plain)

        w = tree.map(lambda leaf: leaf + 0.1, w_g)
        found = tree.sub(
            local_gradients(FedNTD(beta=3.0), model, w, w_g, part, owned),
            local_gradients(FedAvg(), model, w, w_g, part, owned),
        )
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
        batch = part.plain(torch.from_numpy(owned[1]))
        z, z_g = model(leaves, batch).logits, model(w_g, batch).logits
        distance = kl(not_true(z_g, batch.y).softmax(1), not_true(z, batch.y).log_softmax(1))
        (3 * distance.mean()).backward()
        for name, leaf in leaves.items():
            torch.testing.assert_close(found[name][1], leaf.grad)

    def test_long_parts_are_cut_into_batches(self, federation: Federation, monkeypatch):
        engine, w = federation.engine, federation.state.w
        whole = local_gradients(FedAvg(), engine.model, w, w, engine.train_part, [np.arange(100)])
        monkeypatch.setattr("fedntd.analysis.diversity.TEST_BATCH", 33)
        torch.testing.assert_close(
            local_gradients(FedAvg(), engine.model, w, w, engine.train_part, [np.arange(100)]), whole
        )
