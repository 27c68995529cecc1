import pytest
import torch

from fedntd import tree
from fedntd.config import Optimiser
from fedntd.optim import learning_rate, sgd_step


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_torch_sgd(momentum: float, weight_decay: float):
    torch.manual_seed(0)
    optimiser = Optimiser(lr=0.05, momentum=momentum, weight_decay=weight_decay)
    start = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    parameters = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    theirs = torch.optim.SGD(parameters.values(), lr=0.05, momentum=momentum, weight_decay=weight_decay)
    w, velocity = start, tree.zeros_like(start)
    for _ in range(5):
        gradient = {name: torch.randn_like(leaf) for name, leaf in start.items()}
        for name, parameter in parameters.items():
            parameter.grad = gradient[name].clone()
        theirs.step()
        w, velocity = sgd_step(optimiser, w, gradient, velocity, lr=torch.tensor(0.05, dtype=torch.float64))
    for name in w:
        torch.testing.assert_close(w[name], parameters[name].detach(), rtol=0, atol=1e-15)


def test_inputs_are_not_changed():
    w, g, v = ({"a": torch.ones(2)} for _ in range(3))
    sgd_step(Optimiser(), w, g, v, lr=torch.tensor(0.1))
    assert all(t["a"].tolist() == [1, 1] for t in (w, g, v))


def test_two_steps_by_hand():
    # v1 = 1 + 0.5*2 = 2, w1 = 2 - 0.1*2 = 1.8;  v2 = 0.9*2 + 1 + 0.5*1.8 = 3.7, w2 = 1.8 - 0.37 = 1.43
    optimiser = Optimiser(lr=0.1, momentum=0.9, weight_decay=0.5)
    w, v, g = {"a": torch.tensor(2.0)}, {"a": torch.tensor(0.0)}, {"a": torch.tensor(1.0)}
    w, v = sgd_step(optimiser, w, g, v, lr=torch.tensor(0.1))
    w, v = sgd_step(optimiser, w, g, v, lr=torch.tensor(0.1))
    assert w["a"].item() == pytest.approx(1.43)


def test_learning_rate_decays_after_each_round():
    optimiser = Optimiser(lr=0.01, decay=0.99)
    assert learning_rate(optimiser, 1) == 0.01
    assert learning_rate(optimiser, 3) == pytest.approx(0.01 * 0.99**2)
