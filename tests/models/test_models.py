from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from fedntd import FedntdError
from fedntd.models import MODELS
from fedntd.models.functional import Batch, BatchStatNorm, Model, Taps, use_batch_statistics
from fedntd.models.resnet56 import ResNet56, Stage


def build(name: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    return MODELS[name](shape=shape, classes=classes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn", (3, 32, 32), 10, 2_156_490),
        ("cnn", (1, 28, 28), 10, 1_663_370),
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet56", (3, 32, 32), 10, 591_322),
    ],
)
def test_parameter_counts_are_the_released_codes(name: str, shape: tuple[int, ...], classes: int, parameters: int):
    assert sum(p.numel() for p in build(name, shape, classes).parameters()) == parameters


def test_cnn_is_the_released_network():
    """ReLU before pooling, written out with torch's functions: same logits, same gradients."""
    torch.manual_seed(0)
    model = Model(build("cnn"), "fp64")
    w = model.weights()
    x, y = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 3, 3, 9])

    def released(w: dict[str, torch.Tensor]) -> torch.Tensor:
        h = F.max_pool2d(F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2)), 2, 2)
        h = F.max_pool2d(F.relu(F.conv2d(h, w["conv2.weight"], w["conv2.bias"], padding=2)), 2, 2)
        h = F.relu(F.linear(h.reshape(4, -1), w["fc1.weight"], w["fc1.bias"]))
        return F.linear(h, w["fc2.weight"], w["fc2.bias"])

    batch = Batch(x, y)
    torch.testing.assert_close(model(w, batch).logits, released(w), rtol=0, atol=1e-12)
    ours = grad(lambda w: F.cross_entropy(model(w, batch).logits, y))(w)
    theirs = grad(lambda w: F.cross_entropy(released(w), y))(w)
    for name in w:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_features_are_what_the_last_layer_sees(name: str):
    model = Model(build(name), "fp64")
    w = model.weights()
    out = model(w, Batch(torch.randn(3, 3, 32, 32), torch.zeros(3, dtype=torch.int64)))
    head = "fc2" if name == "cnn" else "fc"
    assert out.z is not None
    torch.testing.assert_close(F.linear(out.z, w[f"{head}.weight"], w[f"{head}.bias"]), out.logits)


def test_resnet56_has_56_layers():
    """Its weights, counted by hand: convolutions, two numbers a channel for each BatchNorm, the linear layer."""
    convolutions = [m for m in build("resnet56").modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) - 3 + 1 == 56  # without the shortcuts' three, with the linear layer
    total = 3 * 16 * 9 + 2 * 16
    for inside, narrow in ((16, 16), (64, 32), (128, 64)):
        for block in range(6):
            a = inside if block == 0 else 4 * narrow
            total += a * narrow + 9 * narrow**2 + 4 * narrow**2 + 2 * (narrow + narrow + 4 * narrow)
        total += inside * 4 * narrow + 2 * 4 * narrow
    assert total + 256 * 10 + 10 == 591_322


@pytest.mark.parametrize("width", [0.25, 0.5])
def test_the_narrow_stage_is_the_network_with_fewer_channels(width: float):
    """Against a network that only has those channels, with the first weights of the whole one."""
    torch.manual_seed(0)
    whole = ResNet56((3, 16, 16), 10, width=width).double()
    for parameter in whole.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # BatchNorm's too
    taps: Taps = whole(torch.randn(4, 3, 16, 16, dtype=torch.float64)).taps
    narrow = Stage(int(128 * width), int(64 * width), 2).double()
    for small, large in zip(narrow.parameters(), whole.stage3.parameters(), strict=True):
        small.data = large.data[tuple(slice(size) for size in small.shape)].clone()
    torch.testing.assert_close(taps.slim_into, taps.into[:, : int(128 * width)])
    torch.testing.assert_close(narrow(taps.slim_into), taps.slim_out, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole.stage3(taps.into), taps.out, rtol=0, atol=1e-12)
    assert not taps.slim_into.requires_grad  # the narrow pass does not train the earlier layers


@pytest.mark.parametrize("width", [0.0, 1.5, 0.3])
def test_an_impossible_width_is_refused(width: float):
    with pytest.raises(FedntdError, match=r"model\.width must be a multiple of 1/64"):
        ResNet56((3, 32, 32), 10, width=width)


def test_bf16_runs_low_and_answers_in_full_precision():
    torch.manual_seed(0)
    module = build("cnn")
    w = Model(module).weights()
    batch = Batch(torch.randn(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64))
    full, low = Model(module)(w, batch).logits, Model(module, "bf16")(w, batch).logits
    assert low.dtype == torch.float32
    difference = (full - low).norm() / full.norm()
    assert 1e-4 < difference < 5e-2  # it did run in bf16, and it is close


def test_masked_batch_statistics_equal_those_of_the_real_samples():
    torch.manual_seed(0)
    norm = BatchStatNorm(4).double()
    norm.weight.data.uniform_()
    norm.bias.data.normal_()
    model = Model(nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)), "fp64")
    x, y = torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    short = model(model.weights(), Batch(x[:3], y[:3])).logits
    mask = torch.tensor([True, True, True, False, False])
    padded = model(model.weights(), Batch(x, y, mask)).logits[:3]
    torch.testing.assert_close(padded, short, rtol=0, atol=1e-12)


def test_masked_batch_statistics_of_low_precision_have_full_precision():
    """If a mean is large, its rounding error in bf16 would be comparable to the deviations from it."""
    torch.manual_seed(0)
    x = (10 + 0.25 * torch.randn(50, 4, 7, 7)).bfloat16()
    norm = BatchStatNorm(4).bfloat16()
    norm.mask = torch.arange(50) < 37
    found = norm(x)
    assert found.dtype == torch.bfloat16
    wide = x.double()
    variance, mean = torch.var_mean(wide[:37], (0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(found.double(), (wide - mean) / (variance + norm.eps).sqrt(), rtol=2**-8, atol=1e-5)


def test_masked_batch_statistics_can_be_vectorised_over_clients():
    torch.manual_seed(0)
    model = Model(build("resnet10", (1, 16, 16), 3), "fp64")
    w = model.weights()
    stacked = {name: torch.stack([leaf, 1.1 * leaf]) for name, leaf in w.items()}
    x = torch.randn(2, 4, 1, 16, 16, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    y = torch.zeros(2, 4, dtype=torch.int64)
    together = vmap(lambda w, x, y, m: model(w, Batch(x, y, m)).logits)(stacked, x, y, mask)
    for client, real in ((0, 3), (1, 4)):
        alone = model(
            {n: leaf[client] for n, leaf in stacked.items()}, Batch(x[client, :real], y[client, :real])
        ).logits
        torch.testing.assert_close(together[client, :real], alone, rtol=0, atol=1e-10)


def test_a_users_batchnorm_loses_its_running_statistics_and_keeps_its_scale():
    norm = nn.BatchNorm1d(4)
    norm.weight.data.fill_(3.0)
    module = nn.Sequential(nn.Linear(3, 4), norm, nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    x = torch.randn(6, 3)
    wanted = module.train()(x)
    replaced = use_batch_statistics(module)
    assert not any(isinstance(m, nn.BatchNorm1d) for m in replaced.modules())
    torch.testing.assert_close(replaced(x), wanted)


def test_a_frozen_batchnorm_stays_frozen_and_a_shared_one_shared():
    frozen, shared = nn.BatchNorm1d(4).requires_grad_(False), nn.BatchNorm1d(4)
    module = nn.Sequential(frozen, shared, nn.Sequential(shared), nn.Linear(4, 2))
    model = Model(module)
    assert set(model.weights()) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert not any(isinstance(m, nn.BatchNorm1d) for m in model.module.modules())


def test_a_layer_in_two_places_is_one_layer():
    """The network keeps its own weights: with tie_weights=True, torch would leave those of the last call in it."""
    linear, norm, tied = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
    tied.weight = linear.weight
    module = nn.Sequential(linear, norm, nn.Sequential(linear, norm), tied).double()
    model, x = Model(module, "fp64"), torch.randn(5, 4, dtype=torch.float64)
    w, batch = model.weights(), Batch(x, torch.zeros(5, dtype=torch.int64))
    assert set(w) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.bias"}
    assert model.obstacle(batch) == ""
    other = {name: leaf + 0.1 for name, leaf in w.items()}
    logits = model(other, batch).logits
    for name, leaf in model.weights().items():
        assert torch.equal(leaf, w[name])
    assert set(model.copy().weights()) == set(w)
    with torch.no_grad():
        for p in {*linear.parameters(), *norm.parameters(), tied.bias}:
            p.add_(0.1)
    torch.testing.assert_close(logits, module(x), rtol=0, atol=1e-12)


def test_dropout_is_off_in_a_frozen_pass():
    model = Model(nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 2)))
    batch = Batch(torch.ones(3, 50), torch.zeros(3, dtype=torch.int64))
    w = model.weights()
    assert not torch.equal(model(w, batch).logits, model(w, batch).logits)
    assert torch.equal(model.frozen(w, batch).logits, model.frozen(w, batch).logits)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.GRU(4, 4, 2, dropout=0.5), True),
        (nn.GRU(4, 4, 2), False),
        (nn.MultiheadAttention(4, 2, dropout=0.5), True),
        (nn.MultiheadAttention(4, 2), False),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout2d())), True),
        (nn.TransformerEncoderLayer(4, 2), True),
        (nn.TransformerEncoderLayer(4, 2, dropout=0.0), False),
    ],
)
def test_dropout_is_found_wherever_it_is(module: nn.Module, expected: bool):
    assert Model(module).has_dropout == expected


class Fixed(nn.Module):
    """A frozen layer and a buffer before the layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(6, 4).requires_grad_(False), nn.Linear(4, 3)
        self.shift = nn.Buffer(torch.linspace(-1, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trained(self.frozen(x + self.shift))


@pytest.mark.parametrize(("precision", "close"), [("fp64", 1e-7), ("fp32", 1e-6), ("bf16", 0.05)])
def test_what_is_not_trained_is_computed_in_the_same_precision(precision: str, close: float):
    torch.manual_seed(0)
    module, batch = Fixed(), Batch(torch.randn(5, 6), torch.zeros(5, dtype=torch.int64))
    model = Model(module, precision)
    assert set(model.weights()) == {"trained.weight", "trained.bias"}
    logits = model(model.weights(), batch).logits
    torch.testing.assert_close(logits, module(batch.x).to(logits), rtol=0, atol=close)
    assert module.shift.dtype == module.frozen.weight.dtype == torch.float32  # the user's own


def test_a_model_that_does_not_fit_is_told_in_one_sentence():
    batch = Batch(torch.zeros(2, 7), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(FedntdError, match=r"cannot take samples of shape \[7\]"):
        Model(nn.Linear(5, 3)).check(batch, classes=3)
    with pytest.raises(FedntdError, match=r"outputs of shape \[2, 3\].*4 classes"):
        Model(nn.Linear(7, 3)).check(batch, classes=4)

    class Unpacking(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            _, _, height, _ = input.shape
            return super().forward(input) / height

    with pytest.raises(
        FedntdError, match=r"cannot take samples of shape \[7\]: ValueError: not enough values to unpack"
    ):
        Model(Unpacking(7, 3)).check(batch, classes=3)

    class Answering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(7, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.head(x)}

    with pytest.raises(FedntdError, match=r"^the model gives a dict; forward must return logits"):
        Model(Answering()).check(batch, classes=3)
    with pytest.raises(FedntdError, match=r"^the model has no parameters"):
        Model(nn.Flatten()).check(batch, classes=7)
    broken = nn.Linear(7, 3)
    broken.bias.data[0] = float("nan")
    with pytest.raises(FedntdError, match="'bias' are not finite"):
        Model(broken).check(batch, classes=3)
    with pytest.raises(FedntdError, match=r"'in/out\.weight' have a / in their name, which checkpoints cannot keep"):
        Model(nn.Sequential(OrderedDict({"in/out": nn.Linear(7, 3)}))).check(batch, classes=3)
    for shape in ((7,), (28, 28, 3)):
        with pytest.raises(FedntdError, match=r"model 'cnn' takes images .* of at least 4x4 pixels, not samples"):
            build("cnn", shape)
