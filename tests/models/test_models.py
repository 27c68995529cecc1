import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F

from fedntd import FedntdError
from fedntd.models import MODELS
from fedntd.models.functional import Batch, BatchStatNorm, Model, use_batch_statistics


def build(name: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> nn.Module:
    return MODELS[name](shape=shape, classes=classes)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn", (3, 32, 32), 10, 2_156_490),
        ("cnn", (1, 28, 28), 10, 1_663_370),
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
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


def test_dropout_is_off_in_a_frozen_pass():
    model = Model(nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 2)))
    batch = Batch(torch.ones(3, 50), torch.zeros(3, dtype=torch.int64))
    w = model.weights()
    assert not torch.equal(model(w, batch).logits, model(w, batch).logits)
    assert torch.equal(model.frozen(w, batch).logits, model.frozen(w, batch).logits)


def test_a_model_that_does_not_fit_is_told_in_one_sentence():
    batch = Batch(torch.zeros(2, 7), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(FedntdError, match=r"cannot take samples of shape \[7\]"):
        Model(nn.Linear(5, 3)).check(batch, classes=3)
    with pytest.raises(FedntdError, match=r"outputs of shape \[2, 3\].*4 classes"):
        Model(nn.Linear(7, 3)).check(batch, classes=4)
    with pytest.raises(FedntdError, match="no parameters"):
        Model(nn.Flatten()).check(batch, classes=7)
    broken = nn.Linear(7, 3)
    broken.bias.data[0] = float("nan")
    with pytest.raises(FedntdError, match="'bias' are not finite"):
        Model(broken).check(batch, classes=3)
    with pytest.raises(FedntdError, match=r"model 'cnn' takes images"):
        build("cnn", (7,))
