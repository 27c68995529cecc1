import pytest
import torch
from torch import nn

from fedntd import FedntdError, Model, Out
from fedntd.analysis.alignment import alignment, mean_activations, preferred_classes
from fedntd.data.dataset import Part
from fedntd.data.device import DevicePart


class Net(nn.Module):
    """Features are linear in the input, so that preferences can be written down."""

    def __init__(self, neurons: int = 3) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, neurons, bias=False)
        self.fc2 = nn.Linear(neurons, 3, bias=False)

    def forward(self, x: torch.Tensor) -> Out:
        z = self.fc1(x).relu()
        return Out(self.fc2(z), z)


@pytest.fixture
def data() -> DevicePart:
    """Samples of class c lie on axis c; 1203 of them, so that there are several batches, the last one short."""
    y = torch.arange(1203) % 3
    size = torch.linspace(0.5, 1.5, 1203)
    return DevicePart(Part(size[:, None] * torch.eye(3)[y], y), (), (), None, torch.device("cpu"), torch.float32)


def weights(rows: list[list[float]]) -> dict[str, torch.Tensor]:
    return {"fc1.weight": torch.tensor(rows), "fc2.weight": torch.ones(3, len(rows))}


def test_preferences_by_hand(data: DevicePart):
    w = weights([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.1, 0.3], [-1.0, -2.0, 1.0]])
    assert preferred_classes(Model(Net(4)), w, data).tolist() == [1, 0, 2, 2]


def test_a_class_without_samples_is_preferred_by_none(data: DevicePart):
    x, y = data.plain(slice(None)).x, data.y
    lacking = DevicePart(Part(x[y != 1], y[y != 1]), (), (), None, torch.device("cpu"), torch.float32)
    w = weights([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0], [-1.0, 0.0, -2.0]])
    assert preferred_classes(Model(Net()), w, lacking, "fc1").tolist() == [2, 0, 0]


def test_mean_activations_are_means_over_the_class(data: DevicePart):
    w = weights([[0.0, 2.0, 1.0], [5.0, 0.0, -3.0]])
    means = mean_activations(Model(Net(2)), w, data)
    x, y = data.plain(slice(None)).x.double(), data.y
    expected = torch.stack([(x[y == c] @ w["fc1.weight"].T.double()).relu().mean(0) for c in range(3)])
    torch.testing.assert_close(means, expected)


def test_identical_models_align_and_permuted_ones_do_not(data: DevicePart):
    rows = [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    model, w = Model(Net()), weights(rows)
    assert alignment(model, w, w, data) == 1
    assert alignment(model, w, weights([rows[1], rows[2], rows[0]]), data) == 0
    assert alignment(model, w, weights([rows[1], rows[0], rows[2]]), data) == pytest.approx(1 / 3)
    # a neuron may change and still stand for the same class
    assert alignment(model, w, weights([[9.0, 8.0, 0.0], *rows[1:]]), data) == 1


def test_a_layer_by_name(data: DevicePart):
    w = weights([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [-1.0, -2.0, -3.0]])
    w["fc2.weight"] = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    model = Model(Net())
    assert preferred_classes(model, w, data, "fc1").tolist() == [0, 1, 0]  # before the ReLU: -1 is the largest
    assert preferred_classes(model, w, data, "fc2").tolist() == [1, 0, 0]
    with pytest.raises(FedntdError, match="no layer 'fc3'; did you mean 'fc"):
        preferred_classes(model, w, data, "fc3")


def test_a_channel_is_one_neuron():
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).mean((2, 3))

    x = torch.tensor([[[[1.0, 3.0]]], [[[-5.0, 1.0]]]])  # means 2 and -2
    part = DevicePart(Part(x, torch.tensor([0, 1])), (), (), None, torch.device("cpu"), torch.float32)
    model = Model(Convolution())
    w = {"conv.weight": torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)}
    assert mean_activations(model, w, part, "conv").tolist() == [[2, -2], [-2, 2]]
    with pytest.raises(FedntdError, match="no features"):
        preferred_classes(model, w, part)
