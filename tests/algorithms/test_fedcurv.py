"""The Fisher diagonal against autograd sample by sample, and the penalty against its definition."""

import pytest
import torch
from torch import Tensor, nn
from worlds import F64, Quadratic, World, bowl, context, descend, draw, scalar

from fedntd import Batch, FedAvg, FedntdError, Model, Result, tree
from fedntd.algorithms.fedcurv import FedCurv


def network() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "fp64")


def batch(samples: int, mask: Tensor | None = None) -> Batch:
    return Batch(draw(1, samples, 4), torch.arange(samples) % 3, mask)


def squared_gradient(model: Model, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    net = model.module
    net.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    return {name: p.grad.square() for name, p in net.named_parameters() if p.grad is not None}


def fisher(algorithm: FedCurv, model: Model, given: Batch) -> dict:
    w = model.weights()
    return algorithm.measure(model, w, given, context(w))["fisher"]


def test_true_diagonal_against_autograd():
    model, given = network(), batch(6)
    each = [squared_gradient(model, given.x[i : i + 1], given.y[i : i + 1]) for i in range(6)]
    for name, leaf in fisher(FedCurv(), model, given).items():
        torch.testing.assert_close(leaf, torch.stack([g[name] for g in each]).mean(0), rtol=1e-12, atol=1e-15)


def test_minibatch_estimate_against_autograd():
    model, given = network(), batch(6)
    wanted = squared_gradient(model, given.x, given.y)
    for name, leaf in fisher(FedCurv(per_sample=False), model, given).items():
        torch.testing.assert_close(leaf, wanted[name], rtol=1e-12, atol=1e-15)
    true = fisher(FedCurv(), model, given)
    assert tree.sqnorm(true) > 2 * tree.sqnorm(wanted)  # the two are far apart


@pytest.mark.parametrize("per_sample", [True, False])
def test_padding_does_not_count(per_sample: bool):
    model, algorithm = network(), FedCurv(per_sample=per_sample)
    padded = batch(6, torch.tensor([True, True, True, True, False, False]))
    real = Batch(padded.x[:4], padded.y[:4])
    for name, leaf in fisher(algorithm, model, padded).items():
        torch.testing.assert_close(leaf, fisher(algorithm, model, real)[name], rtol=1e-12, atol=1e-15)


def quadratic() -> Model:
    return Quadratic()  # type: ignore[return-value]


def played(algorithm: FedCurv, fishers: list[float], ends: list[float], server: dict, own: list[dict]) -> tuple:
    """One round from w_g = 0 of clients that end at `ends` with the given Fisher information."""
    uploads = []
    for i, (f, end) in enumerate(zip(fishers, ends, strict=True)):
        result = Result(scalar(end), 1, torch.tensor(0.0, dtype=F64), {"fisher": scalar(f)})
        uploads.append(algorithm.finish(result, context(scalar(0.0), shared=algorithm.broadcast(server), own=own[i])))
    p = torch.full((len(ends),), 1 / len(ends), dtype=F64)
    w, server = algorithm.aggregate(scalar(0.0), server, tree.stack([u.up for u in uploads]), p, 1.0)
    return w, server, [u.own for u in uploads]


def test_the_penalty_is_of_all_other_clients_latest_models():
    algorithm = FedCurv(lam=0.7)
    fresh = [algorithm.init_client(scalar(0.0)) for _ in range(3)]
    _, server, own = played(algorithm, [9.0, 9.0, 9.0], [5.0, 5.0, 5.0], algorithm.init_server(scalar(0.0)), fresh)
    fishers, w_j = [2.0, 0.5, 3.0], [1.0, -2.0, 0.3]
    w, server, own = played(algorithm, fishers, w_j, server, own)  # of the first round nothing is left
    assert w["w"].item() == pytest.approx(sum(w_j) / 3)
    assert server["U"]["w"].item() == pytest.approx(sum(fishers))
    assert server["V"]["w"].item() == pytest.approx(sum(i * x for i, x in zip(fishers, w_j, strict=True)))

    for k in range(3):
        ctx = context(scalar(0.0), shared=algorithm.broadcast(server), own=own[k])
        slope, _ = algorithm.gradient(quadratic(), scalar(0.9), bowl(1.0, 0.9), ctx)  # the data are content at 0.9
        wanted = sum(2 * 0.7 * fishers[j] * (0.9 - w_j[j]) for j in range(3) if j != k)
        assert slope["w"].item() == pytest.approx(wanted)


def test_a_client_alone_is_not_held_by_itself():
    algorithm = FedCurv()
    start = algorithm.init_server(scalar(0.0)), [algorithm.init_client(scalar(0.0))]
    _, server, own = played(algorithm, [2.0], [1.0], *start)
    ctx = context(scalar(0.0), shared=algorithm.broadcast(server), own=own[0])
    one, two = (a.gradient(quadratic(), scalar(3.0), bowl(1.0, 0.0), ctx)[0] for a in (algorithm, FedAvg()))
    assert one["w"].item() == pytest.approx(two["w"].item())


def test_one_clients_part_does_not_leak_into_the_next():
    """A client subtracts its own part from a sum that all share, and must not change the sum itself."""
    algorithm = FedCurv()
    fresh = [algorithm.init_client(scalar(0.0)) for _ in range(2)]
    _, server, own = played(algorithm, [2.0, 3.0], [1.0, -1.0], algorithm.init_server(scalar(0.0)), fresh)
    shared = algorithm.broadcast(server)
    slopes = []
    for k in (0, 1, 0):
        ctx = context(scalar(0.0), shared=shared, own=own[k])
        slopes.append(algorithm.gradient(quadratic(), scalar(0.5), bowl(1.0, 0.5), ctx)[0]["w"].item())
    assert slopes[0] == slopes[2] == pytest.approx(2 * 3.0 * (0.5 + 1))
    assert slopes[1] == pytest.approx(2 * 2.0 * (0.5 - 1))


@pytest.mark.parametrize("per_sample", [True, False])
def test_rounds_by_hand(per_sample: bool):
    """Every client has one sample, on which both estimates of the Fisher information are one squared gradient."""
    h, b, steps, lr, rho, lam = [1.0, 3.0, 0.5], [1.0, -1.0, 2.0], [2, 5, 3], 0.02, 0.9, 0.3
    world = World(FedCurv(lam, s=1, per_sample=per_sample), h, b, steps, lr, rho)
    w, u, v = 0.0, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for cohort in ([0, 1], [1, 2], [0, 2]):
        ends = {}
        for k in cohort:
            others = [j for j in range(3) if j != k]

            def slope(x: float, k: int = k, others: list[int] = others) -> float:
                return h[k] * (x - b[k]) + lam * sum(2 * u[j] * x - 2 * v[j] for j in others)

            ends[k] = descend(w, slope, steps[k], lr, rho)
        w = sum(ends.values()) / 2
        for k, end in ends.items():
            u[k] = (h[k] * (end - b[k])) ** 2
            v[k] = u[k] * end
        world.play(cohort=cohort)
        assert world.w == pytest.approx(w, abs=1e-12)
        assert world.server["U"]["w"].item() == pytest.approx(sum(u), abs=1e-12)
        assert world.server["V"]["w"].item() == pytest.approx(sum(v), abs=1e-12)


def test_settings():
    assert FedCurv(s=250).measure_samples == 250
    with pytest.raises(FedntdError, match=r"algorithm\.s must be at least 1"):
        FedCurv(s=0)
    with pytest.raises(FedntdError, match=r"algorithm\.lam must be at least 0"):
        FedCurv(lam=-1)
