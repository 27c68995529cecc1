"""Means of squared gradients, against a backward pass for each sample and against a closed form."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedntd import Batch, Model, Out
from fedntd.kernels import convolution as kernels
from fedntd.models.cnn import CNN
from fedntd.models.squared import OtherUse, mean_squared_gradient, with_products

F64 = torch.float64
Loss = Callable[[dict[str, Tensor], Batch], Tensor]


class Shared(nn.Module):
    """Linear layers in unusual use: on a sequence, used twice, with weights that are also used directly; and one whose
    weights are only asked for their size and type."""

    def __init__(self) -> None:
        super().__init__()
        self.on_words, self.twice, self.alone = nn.Linear(4, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 5)
        self.never_called, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.on_words(x.unflatten(1, (3, 4)))).mean(1)
        h = torch.tanh(self.twice(torch.tanh(self.twice(h))))
        h = torch.tanh(self.alone(h) + torch.stack([row.sum() for row in self.alone.weight]))
        h = torch.tanh(h @ self.never_called.weight.T).to(self.head.weight.dtype)
        return self.head(h) / self.head.weight.shape[1]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Out:
        return Out(self.head(torch.tanh(self.second(torch.tanh(self.first(x))))))


class Normalised(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / weight.norm()


def convolutional() -> nn.Module:
    """[12] -> an image [3, 2, 2] -> 3 classes, by layers of many kinds."""
    head = nn.Linear(8, 3)
    nn.utils.parametrize.register_parametrization(head, "weight", Normalised())
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(16, 8, bias=False), nn.LayerNorm(8), nn.Tanh(), head,
    )  # fmt: skip


def batch_normalised() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    )


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3)),
    "convolutional": convolutional,
    "batch_normalised": batch_normalised,
    "shared": Shared,
    "tied": Tied,
}
# the weights whose mean squared gradient is a single product
BY_PRODUCT = {
    "linear": {"0.weight", "2.weight"},
    "convolutional": {"5.weight"},
    "batch_normalised": {"5.weight"},
    "shared": {"head.weight"},
    "tied": {"head.weight"},
}


def network(name: str, precision: str = "fp64") -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(NETWORKS[name](), precision)


def log_loss(model: Model) -> Loss:
    return lambda w, batch: batch.mean(F.cross_entropy(model(w, batch).logits, batch.y, reduction="none"))


def samples(count: int, seed: int = 1, mask: Tensor | None = None) -> Batch:
    x = torch.randn(count, 12, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return Batch(x, torch.arange(count) % 3, mask)


def one_by_one(model: Model, w: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """A backward pass for each sample."""
    w = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
    total = {name: torch.zeros_like(leaf) for name, leaf in w.items()}
    real = range(len(batch.y)) if batch.mask is None else batch.mask.nonzero().flatten().tolist()
    for i in real:
        loss = F.cross_entropy(model(w, Batch(batch.x[i : i + 1], batch.y[i : i + 1])).logits, batch.y[i : i + 1])
        for name, g in zip(w, torch.autograd.grad(loss, list(w.values()), allow_unused=True), strict=True):
            total[name] += 0 if g is None else g.square()
    return {name: (leaf / len(real)).detach() for name, leaf in total.items()}


def assert_same(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert given.keys() == wanted.keys()
    for name, leaf in wanted.items():
        torch.testing.assert_close(
            given[name], leaf, rtol=1e-12, atol=1e-16, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mask", [None, [True, False, True, True, False, True]])
def test_against_a_backward_pass_for_each_sample(name: str, mask: list[bool] | None):
    model, batch = network(name), samples(6, mask=None if mask is None else torch.tensor(mask))
    w = model.weights()
    assert_same(mean_squared_gradient(log_loss(model), w, batch), one_by_one(model, w, batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_which_weights_are_those_of_linear_layers(name: str):
    """They are found by watching the forward pass; all others are recognised as used otherwise."""
    model, batch = network(name), samples(2)
    w = model.weights()
    candidates = {key for key, leaf in w.items() if leaf.ndim == 2}
    if candidates != BY_PRODUCT[name]:
        with pytest.raises(OtherUse) as found:
            with_products(log_loss(model), w, batch, candidates)
        assert found.value.names == candidates - BY_PRODUCT[name]
    with_products(log_loss(model), w, batch, BY_PRODUCT[name])


def test_the_closed_form_of_a_linear_softmax_model():
    """The gradient of -log p_y is (p - e_y) x^T."""
    model, batch = Model(nn.Linear(12, 3), "fp64"), samples(9)
    w = model.weights()
    error = (batch.x @ w["weight"].T + w["bias"]).softmax(1) - torch.eye(3, dtype=F64)[batch.y]
    squared = mean_squared_gradient(log_loss(model), w, batch)
    wanted = torch.einsum("bo,bi->oi", error**2, batch.x**2) / 9
    assert_same(squared, {"weight": wanted, "bias": (error**2).mean(0)})


@pytest.mark.parametrize("name", NETWORKS)
def test_of_many_clients_at_once(name: str):
    """Each client has its own weights, samples and number of samples. One has no samples, and its mean is NaN."""
    model = network(name)
    ws = [{key: leaf + 0.1 * k for key, leaf in model.weights().items()} for k in range(3)]
    masks = [torch.arange(5) < count for count in (5, 2, 0)]
    batches = [samples(5, seed=k, mask=mask) for k, mask in enumerate(masks)]
    stacked = {key: torch.stack([w[key] for w in ws]) for key in ws[0]}
    x, y = torch.stack([batch.x for batch in batches]), torch.stack([batch.y for batch in batches])
    loss = log_loss(model)
    together = vmap(lambda w, *batch: mean_squared_gradient(loss, w, Batch(*batch)))(stacked, x, y, torch.stack(masks))
    for k in range(2):
        assert_same({key: leaf[k] for key, leaf in together.items()}, one_by_one(model, ws[k], batches[k]))
    assert all(leaf[2].isnan().all() for leaf in together.values())


def test_through_the_convolutions_of_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """The paper's network with the operators that it uses on a GPU, each sample of each client a group of its own."""
    monkeypatch.setattr("fedntd.models.cnn.conv_pool_relu", lambda x, c: kernels.conv_pool_relu(x, c.weight, c.bias))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(CNN((1, 8, 8), 3), "fp64")
    w = model.weights()
    draws = torch.randn(2, 4, 1, 8, 8, dtype=F64, generator=torch.Generator().manual_seed(0))
    batches = [Batch(x, torch.arange(4) % 3) for x in draws]
    ws = [{key: leaf * (1 + k) for key, leaf in w.items()} for k in range(2)]
    stacked = {key: torch.stack([w[key] for w in ws]) for key in w}
    x, y = torch.stack([batch.x for batch in batches]), torch.stack([batch.y for batch in batches])
    loss = log_loss(model)
    together = vmap(lambda w, x, y: mean_squared_gradient(loss, w, Batch(x, y)))(stacked, x, y)
    for k in range(2):
        assert_same({key: leaf[k] for key, leaf in together.items()}, one_by_one(model, ws[k], batches[k]))


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        # an expanded tensor takes no memory
        self.elements = max([self.elements, *(t.untyped_storage().nbytes() // t.element_size() for t in tensors)])
        return out


def test_no_sample_has_a_gradient_of_a_large_layer():
    """The paper's network, vectorised over clients: nothing is larger than the gradients of the convolutions."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(CNN((1, 16, 16), 4))
    w = model.weights()
    clients, count = 2, 20
    assert w["fc1.weight"].numel() == 512 * 1024
    convolutions = w["conv1.weight"].numel() + w["conv2.weight"].numel()
    stacked = {name: torch.stack([leaf] * clients) for name, leaf in w.items()}
    x = torch.randn(clients, count, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    y = torch.arange(count).expand(clients, -1) % 4
    with Largest() as seen:
        vmap(lambda w, x, y: mean_squared_gradient(log_loss(model), w, Batch(x, y)))(stacked, x, y)
    assert seen.elements <= clients * max(count * convolutions, w["fc1.weight"].numel())


def test_in_half_precision_squares_are_in_full():
    model, full = network("linear", "bf16"), network("linear")
    batch = samples(50)
    given = with_products(log_loss(model), model.weights(), batch, BY_PRODUCT["linear"])
    wanted = mean_squared_gradient(log_loss(full), full.weights(), batch)
    for name, leaf in given.items():
        assert leaf.dtype == torch.float32
        torch.testing.assert_close(leaf.double(), wanted[name], rtol=0.1, atol=0.01 * wanted[name].max().item())
