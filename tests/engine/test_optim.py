import pytest
import torch

from fedntd import FedntdError, tree
from fedntd.config.schema import Optimiser
from fedntd.engine.optim import add_proximal_term, clip_gradient, learning_rate, sgd_step


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_equals_torch_sgd(momentum: float, nesterov: bool, weight_decay: float, clip: float):
    torch.manual_seed(0)
    optimiser = Optimiser(lr=0.05, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, clip=clip)
    start = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    parameters = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    theirs = torch.optim.SGD(
        parameters.values(), lr=0.05, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
    )
    norms = []
    w, velocity = start, tree.zeros_like(start)
    for scale in (1.0, 0.1, 3.0, 0.2, 1.0):
        gradient = {name: scale * torch.randn_like(leaf) for name, leaf in start.items()}
        for name, parameter in parameters.items():
            parameter.grad = gradient[name].clone()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), clip))
        theirs.step()
        gradient = clip_gradient(optimiser, gradient)
        w, velocity = sgd_step(optimiser, w, gradient, velocity, lr=torch.tensor(0.05, dtype=torch.float64))
    assert not clip or min(norms) < clip < max(norms)  # both cases occur
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


def test_clipping_is_vectorised_over_clients():
    gradients = {"a": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    short = torch.func.vmap(lambda g: clip_gradient(Optimiser(clip=1.0), g))(gradients)["a"]
    torch.testing.assert_close(short, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_the_spring_by_hand():
    g, w, w_g = ({"a": torch.tensor(value)} for value in (1.0, 5.0, 2.0))
    assert add_proximal_term(Optimiser(proximal=0.5), g, w, w_g)["a"].item() == pytest.approx(2.5)
    assert add_proximal_term(Optimiser(), g, w, w_g) is g


def test_nesterov_by_hand():
    # v1 = 2, d1 = 2 + 0.5 * 2 = 3, w1 = -0.3;  v2 = 0.5 * 2 + 2 = 3, d2 = 2 + 1.5 = 3.5, w2 = -0.65
    optimiser = Optimiser(lr=0.1, momentum=0.5, weight_decay=0.0, nesterov=True)
    w, v, g = {"a": torch.tensor(0.0)}, {"a": torch.tensor(0.0)}, {"a": torch.tensor(2.0)}
    for _ in range(2):
        w, v = sgd_step(optimiser, w, g, v, lr=torch.tensor(0.1))
    assert w["a"].item() == pytest.approx(-0.65)


@pytest.mark.parametrize("bad", [{"proximal": -1.0}, {"clip": -1.0}, {"nesterov": True, "momentum": 0.0}])
def test_impossible_options_are_refused(bad: dict):
    with pytest.raises(FedntdError, match=f"optimiser.{next(iter(bad))}"):
        Optimiser(**bad)
