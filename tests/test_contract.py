"""The promises that every algorithm in the registry keeps. A new method is held to all of them by being registered."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedntd import ALGORITHMS, Batch, Config, Context, Dataset, FedAvg, Federation, Model, tree
from fedntd.config import Optimiser
from fedntd.local import train_client

METHODS = sorted(ALGORITHMS)
SWITCHED_OFF = {"fedntd": {"beta": 0.0}}  # the coefficient at which a method is FedAvg
METHOD = pytest.mark.parametrize("name", METHODS)

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def batches(count: int, size: int = 4) -> list[Batch]:
    g = torch.Generator().manual_seed(3)
    return [
        Batch(torch.randn(size, 2, dtype=torch.float64, generator=g), torch.randint(0, 3, (size,), generator=g))
        for _ in range(count)
    ]


def context(algorithm: FedAvg, w: dict) -> Context:
    return Context(w, algorithm.broadcast(algorithm.init_server(w)), algorithm.init_client(w), lr=0.1, momentum=0.9)


def assert_same(a: tree.Tree, b: tree.Tree, atol: float = 0.0) -> None:
    for name, leaf in tree.flatten(a).items():
        torch.testing.assert_close(leaf, tree.flatten(b)[name], rtol=0, atol=atol)


@METHOD
def test_nothing_given_is_changed(name: str, tiny_net: Net):
    algorithm, model = ALGORITHMS[name](), Model(tiny_net(), "fp64")
    w = model.weights()
    ctx = context(algorithm, w)
    server = algorithm.init_server(w)
    before = copy.deepcopy((ctx, server))
    result = train_client(algorithm, model, Optimiser(lr=0.1), batches(3), ctx)
    up, _ = algorithm.finish(result, ctx)
    sent = copy.deepcopy(up)
    algorithm.aggregate(w, server, tree.stack([up, up]), torch.tensor([0.5, 0.5]), 0.1)
    assert_same(before[0]._asdict()["w_g"], ctx.w_g)
    assert_same(before[0]._asdict()["own"], ctx.own)
    assert_same(before[1], server)
    assert_same(sent, up)
    assert tree.sqnorm(tree.sub(result.w, w)) > 0  # training did move a copy


@METHOD
def test_the_order_of_clients_does_not_matter(name: str, blobs: Dataset, tiny_net: Net):
    algorithm, model = ALGORITHMS[name](), Model(tiny_net(), "fp64")
    w = model.weights()
    ctx = context(algorithm, w)
    ups = [
        algorithm.finish(train_client(algorithm, model, Optimiser(lr=0.1), batches(steps, size), ctx), ctx).up
        for steps, size in ((1, 3), (2, 5), (4, 2))
    ]
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    order = [2, 0, 1]
    one = algorithm.aggregate(w, algorithm.init_server(w), tree.stack(ups), p, 0.1)
    other = algorithm.aggregate(w, algorithm.init_server(w), tree.stack([ups[i] for i in order]), p[order], 0.1)
    for a, b in zip(one, other, strict=True):
        assert_same(a, b, atol=1e-14)


@METHOD
def test_switched_off_it_is_fedavg(name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    if name not in SWITCHED_OFF:
        assert name == "fedavg"
        return
    off = Federation(make_config(algorithm={"name": name, **SWITCHED_OFF[name]}), blobs, tiny_net())
    on = Federation(make_config(algorithm={"name": name}), blobs, tiny_net())
    plain = Federation(make_config(algorithm={"name": "fedavg"}), blobs, tiny_net())
    for federation in (off, on, plain):
        list(federation)
    assert_same(off.state.w, plain.state.w, atol=1e-14)
    assert tree.sqnorm(tree.sub(on.state.w, plain.state.w)) > 1e-8  # and switched on it is not


@METHOD
def test_one_client_with_all_data_and_one_step_is_centralised_sgd(
    name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    config = make_config(
        algorithm={"name": name},
        partition={"name": "iid"},
        federation={"clients": 1, "ratio": 1.0, "rounds": 1, "local_epochs": 1, "batch_size": 1000},
    )
    federation = Federation(config, blobs, tiny_net())
    list(federation)
    net = tiny_net().double()
    theirs = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    nn.functional.cross_entropy(net(blobs.train.x), blobs.train.y).backward()
    theirs.step()
    assert_same(federation.state.w, {n: p.detach() for n, p in net.named_parameters()}, atol=1e-12)


@METHOD
def test_it_can_be_vectorised_over_clients(name: str, tiny_net: Net):
    """vmap over stacked weights with a padded batch gives each client's own gradient on its real samples."""
    algorithm, model = ALGORITHMS[name](), Model(tiny_net(), "fp64")
    w_g = model.weights()
    ctx = context(algorithm, w_g)
    clients = [tree.map(lambda leaf, k=k: leaf * (1 + 0.1 * k), w_g) for k in range(3)]
    full = batches(3, size=5)
    real = torch.tensor([5, 3, 1])
    mask = torch.arange(5) < real[:, None]

    def gradient(w: dict, batch: Batch) -> dict:
        return grad(lambda w: algorithm.loss(model, w, batch, ctx))(w)

    stacked = Batch(torch.stack([b.x for b in full]), torch.stack([b.y for b in full]), mask)
    together = vmap(lambda w, x, y, m: gradient(w, Batch(x, y, m)), randomness="error")(tree.stack(clients), *stacked)
    for k, w in enumerate(clients):
        alone = gradient(w, Batch(full[k].x[: real[k]], full[k].y[: real[k]]))
        assert_same(tree.map(lambda leaf, k=k: leaf[k], together), alone, atol=1e-13)


@METHOD
def test_it_learns(name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    config = make_config(algorithm={"name": name}, federation={"rounds": 25})
    accuracies = [record.accuracy for record in Federation(config, blobs, tiny_net())]
    assert max(accuracies) > 0.8  # three separated blobs; chance is 0.33


@METHOD
def test_it_says_who_it_is(name: str):
    module = __import__(ALGORITHMS[name].__module__, fromlist=["x"])
    assert module.__doc__ is not None
    assert any(year in module.__doc__ for year in map(str, range(2016, 2030)))  # cites its paper
