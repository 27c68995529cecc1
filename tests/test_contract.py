"""The promises that every algorithm in the registry keeps. A new method is held to all of them by being registered."""

import copy
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedntd import (
    ALGORITHMS,
    Batch,
    Config,
    Context,
    Dataset,
    FedAvg,
    Federation,
    Model,
    Result,
    Upload,
    federate,
    tree,
)
from fedntd.algorithms import SERVER_RULES
from fedntd.algorithms.composed import Composed
from fedntd.config.schema import Optimiser
from fedntd.data.device import DevicePart
from fedntd.engine.server_data import ServerData
from fedntd.engine.training import train_client
from points import CHEAP, unlabelled_points

# The settings at which a method is FedAvg.
SWITCHED_OFF: dict[str, dict[str, float]] = {
    "fedacg": {"lam": 0.0, "beta": 0.0},
    "fedalign": {"mu": 0.0},
    "fedasam": {"rho": 0.0},
    "fedbe": {"epochs": 0},
    "feddf": {"steps": 0},
    "fedavgm": {"beta": 0.0},
    "fedcurv": {"lam": 0.0},
    "feddecorr": {"beta": 0.0},
    "fedkd": {"beta": 0.0},
    "fedkd-ntd": {"beta": 0.0},
    "fedlmd": {"beta": 0.0},
    "fedntd": {"beta": 0.0},
    "fedntd-mse": {"beta": 0.0},
    "fedprox": {"mu": 0.0},
    "fedrs": {"alpha": 1.0},
    "fedsam": {"rho": 0.0},
    "fedsol": {"rho": 0.0},
    "moon": {"mu": 0.0},
}
# Methods that have none: they divide by their coefficient, or work without one.
ALWAYS_ON = {"fedavg", "feddyn", "fedexp", "fedlc", "fednova", "fednova-released", "fedopt", "scaffold"} | {
    "balanced",
    "balanced-ntd",
    "wsm",
}
# Methods for which one client with all data does not make an SGD step of cross-entropy.
NOT_SGD = {
    **dict.fromkeys(("balanced", "balanced-ntd", "wsm"), "its loss expects a class as often as the client has it"),
    "fedalign": "its loss has a term that does not vanish at the global weights",
    "fedbe": "its ensemble's answers are sharpened",
    "feddf": "its server begins where it would end, and there Adam blows up rounding errors",
    "feddecorr": "its loss has a term that does not vanish at the global weights",
    "fedlc": "its loss has margins between classes",
    "fedlmd": "its teacher sees fewer classes than its student",
    "fedsam": "its gradient is taken elsewhere",
    "fedasam": "its gradient is taken elsewhere",
    "fedexp": "its global model is the mean of the last two",
    "fedopt": "its server rescales the step",
    "feddyn": "its server goes on along the client's step",
}
# Methods that do not weight clients by `p` everywhere.
NOT_BY_WEIGHT = {
    "fedbe": "its ensemble has every client's model once",
    "feddf": "its ensemble has every client's model once",
}
# Settings for these small tests: the defaults are for large networks and hundreds of rounds.
TO_LEARN = {"fedopt": {"eta": 0.1}}

METHODS = sorted(ALGORITHMS)
METHOD = pytest.mark.parametrize("name", METHODS)
# Methods combined with another method's server step. They have no entry in the registry.
METHOD_OR_COMPOSITION = pytest.mark.parametrize(
    "name", [*METHODS, "fedntd+fedopt", "scaffold+fedavgm", "feddf+fedavgm", "fedexp+fedavgm"]
)

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def make(name: str, model: Model) -> FedAvg:
    """The method, or the composition "method+rule", with auxiliary data if it needs some."""
    name, _, rule = name.partition("+")
    algorithm = ALGORITHMS[name](**CHEAP.get(name, {}))
    algorithm = Composed(algorithm, SERVER_RULES[rule]()) if rule else algorithm
    if not algorithm.auxiliary_data:
        return algorithm
    device = torch.device("cpu")
    part = DevicePart(unlabelled_points().train, (), (), None, device, torch.float64)
    return algorithm.with_values({"auxiliary": ServerData(model, part, seed=0)})


def batches(count: int, size: int = 4, seed: int = 3) -> list[Batch]:
    g = torch.Generator().manual_seed(seed)
    return [
        Batch(torch.randn(size, 2, dtype=torch.float64, generator=g), torch.randint(0, 3, (size,), generator=g))
        for _ in range(count)
    ]


def context(algorithm: FedAvg, w: dict, server: dict | None = None, own: dict | None = None) -> Context:
    server = algorithm.init_server(w) if server is None else server
    own = algorithm.init_client(w) if own is None else own
    lr, counts = torch.tensor(0.1, dtype=torch.float64), torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    return Context(algorithm.send(w, server), algorithm.broadcast(server), own, lr, momentum=0.9, counts=counts)


def train(algorithm: FedAvg, model: Model, steps: list[Batch], ctx: Context) -> Result:
    """Train a client as an engine does: local training, then the method's `measure`."""
    result = train_client(algorithm, model, Optimiser(lr=0.1), steps, ctx)
    return result._replace(measured=algorithm.measure(model, result.w, steps[0], ctx))


def three_uploads(algorithm: FedAvg, model: Model) -> list[Upload]:
    """The uploads of clients of different sizes and numbers of steps, in the first round."""
    ctx = context(algorithm, model.weights())
    sizes = ((1, 3), (2, 5), (4, 2))
    return [algorithm.finish(train(algorithm, model, batches(*size, seed=k), ctx), ctx) for k, size in enumerate(sizes)]


def assert_same(a: tree.Tree, b: tree.Tree, atol: float = 0.0) -> None:
    assert tree.flatten(a).keys() == tree.flatten(b).keys()
    for name, leaf in tree.flatten(a).items():
        torch.testing.assert_close(leaf, tree.flatten(b)[name], rtol=0, atol=atol)


@METHOD_OR_COMPOSITION
def test_nothing_given_is_changed(name: str, tiny_net: Net):
    """Results are new tensors: what the server sent, what the client keeps and what it uploads stay unchanged."""
    model = Model(tiny_net(), "fp64")
    algorithm = make(name, model)
    w = model.weights()
    server = algorithm.init_server(w)
    ctx = context(algorithm, w, server)
    before = copy.deepcopy((ctx, server, w))
    result = train(algorithm, model, batches(3), ctx)
    trained = copy.deepcopy(result.w)
    up, own = algorithm.finish(result, ctx)
    sent = copy.deepcopy((up, own))
    stacked = tree.stack([up, up])
    algorithm.aggregate(w, server, stacked, torch.tensor([0.5, 0.5]), 0.1)
    for then, now in zip(before, (ctx, server, w), strict=True):
        assert_same(_as_tree(then), _as_tree(now))
    assert_same(trained, result.w)
    for then, now in zip(sent, (up, own), strict=True):
        assert_same(then, now)
    assert tree.sqnorm(tree.sub(result.w, w)) > 0  # training did move a copy


def _as_tree(value: Context | dict) -> dict:
    return {k: v for k, v in value._asdict().items() if k != "momentum"} if isinstance(value, Context) else value


@METHOD_OR_COMPOSITION
def test_the_order_of_clients_does_not_matter(name: str, tiny_net: Net):
    model = Model(tiny_net(), "fp64")
    algorithm = make(name, model)
    w = model.weights()
    ups = [upload.up for upload in three_uploads(algorithm, model)]
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    order = [2, 0, 1]
    one = algorithm.aggregate(w, algorithm.init_server(w), tree.stack(ups), p, 0.1)
    other = algorithm.aggregate(w, algorithm.init_server(w), tree.stack([ups[i] for i in order]), p[order], 0.1)
    for a, b in zip(one, other, strict=True):
        assert_same(a, b, atol=1e-13)


@METHOD_OR_COMPOSITION
def test_a_client_counts_by_its_weight(name: str, tiny_net: Net):
    """A client of weight 0 has no effect, and two equal clients count as one of twice the weight."""
    model = Model(tiny_net(), "fp64")
    algorithm = make(name, model)
    w = model.weights()
    a, b, c = (upload.up for upload in three_uploads(algorithm, model))

    def new_weights(ups: list[dict], *p: float) -> dict:
        weights = torch.tensor(p, dtype=torch.float64)
        return algorithm.aggregate(w, algorithm.init_server(w), tree.stack(ups), weights, 0.1)[0]

    if name.partition("+")[0] not in NOT_BY_WEIGHT:
        assert_same(new_weights([a, b, c], 0.25, 0.75, 0.0), new_weights([a, b], 0.25, 0.75), atol=1e-13)
        assert_same(new_weights([a, b, b], 0.5, 0.25, 0.25), new_weights([a, b], 0.5, 0.5), atol=1e-13)
    assert tree.sqnorm(tree.sub(new_weights([a, b], 0.25, 0.75), new_weights([a, b], 0.75, 0.25))) > 1e-10


@METHOD
def test_switched_off_it_is_fedavg(name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    if name in ALWAYS_ON:
        assert name not in SWITCHED_OFF
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
    nn.functional.cross_entropy(net(blobs.train.x).logits, blobs.train.y).backward()
    theirs.step()
    apart = tree.sqnorm(tree.sub(federation.state.w, {n: p.detach() for n, p in net.named_parameters()})).sqrt()
    assert (apart > 1e-6) if name in NOT_SGD else (apart < 1e-12)


@METHOD_OR_COMPOSITION
def test_it_can_be_vectorised_over_clients(name: str, tiny_net: Net):
    """vmap over clients, each with its own weights, state, counts and padding, gives what each gives alone.

    In the second round, when clients and server have something to remember.
    """
    model = Model(tiny_net(), "fp64")
    algorithm = make(name, model)
    w_0 = model.weights()
    uploads = three_uploads(algorithm, model)
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    w_g, server = algorithm.aggregate(w_0, algorithm.init_server(w_0), tree.stack([u.up for u in uploads]), p, 0.1)
    counts = torch.tensor([[3.0, 1.0, 2.0], [9.0, 1.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    ctxs = [context(algorithm, w_g, server, u.own)._replace(counts=n) for u, n in zip(uploads, counts, strict=True)]
    clients = [tree.map(lambda leaf, k=k: leaf * (1 + 0.1 * k), w_g) for k in range(3)]
    full = batches(3, size=5)
    real, steps = torch.tensor([5, 3, 1]), torch.tensor([7.0, 3.0, 1.0], dtype=torch.float64)

    def client(w: dict, batch: Batch, ctx: Context, steps: int | Tensor) -> dict:
        gradient, loss = algorithm.gradient(model, w, batch, ctx)
        measured = algorithm.measure(model, w, batch, ctx)
        up, own = algorithm.finish(Result(w, steps, loss, measured), ctx)
        return {"gradient": gradient, "loss": loss, "up": up, "own": own}

    def one(w: dict, x: Tensor, y: Tensor, mask: Tensor, own: dict, counts: Tensor, steps: Tensor) -> dict:
        return client(w, Batch(x, y, mask), ctxs[0]._replace(own=own, counts=counts), steps)

    stacked = torch.stack([b.x for b in full]), torch.stack([b.y for b in full]), torch.arange(5) < real[:, None]
    own = tree.stack([ctx.own for ctx in ctxs])
    together = vmap(one, randomness="error")(tree.stack(clients), *stacked, own, counts, steps)
    for k, w in enumerate(clients):
        alone = client(w, Batch(full[k].x[: real[k]], full[k].y[: real[k]]), ctxs[k], int(steps[k]))
        assert_same(tree.map(lambda leaf, k=k: leaf[k], together), alone, atol=1e-12)


@METHOD
def test_its_numbers_may_be_tensors(name: str, tiny_net: Net):
    """Hyper-parameters may be tensors, as when runs that differ in them are trained in one step."""
    model = Model(tiny_net(), "fp64")
    algorithm = make(name, model)
    settings = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    numbers = {
        key: torch.tensor([value, 1.5 * value], dtype=torch.float64)
        for key, value in settings.items()
        if type(value) is float
    }
    w_0 = model.weights()
    uploads = three_uploads(algorithm, model)
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    w_g, server = algorithm.aggregate(w_0, algorithm.init_server(w_0), tree.stack([u.up for u in uploads]), p, 0.1)
    w, batch = tree.scale(1.1, w_g), batches(1, size=5)[0]

    def client(values: dict) -> dict:
        changed = copy.copy(algorithm)
        for key, value in values.items():
            object.__setattr__(changed, key, value)
        ctx = context(changed, w_g, server, uploads[0].own)
        gradient, loss = changed.gradient(model, w, batch, ctx)
        up, own = changed.finish(Result(w, 3, loss, changed.measure(model, w, batch, ctx)), ctx)
        return {"loss": changed.loss(model, w, batch, ctx), "gradient": gradient, "up": up, "own": own}

    if not numbers:
        return
    together = vmap(client, randomness="error")(numbers)
    for i in range(2):
        alone = client({key: value[i].item() for key, value in numbers.items()})
        assert_same(tree.map(lambda leaf, i=i: leaf[i], together), alone, atol=1e-13)


@METHOD
def test_a_run_goes_on_from_its_checkpoint(
    name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path
):
    """The states of the server and of clients are restored, too; some clients are first sampled after the restart."""

    def config(rounds: int) -> Config:
        return make_config(algorithm={"name": name}, federation={"rounds": rounds})

    whole = list(Federation(config(5), blobs, tiny_net()))
    list(federate(config(2), blobs, tiny_net(), out=tmp_path))
    resumed = list(federate(config(5), blobs, tiny_net(), out=tmp_path, resume=True))
    assert [r.loss for r in resumed] == [r.loss for r in whole[2:]]  # to the last bit
    assert {k for r in whole[:2] for k in r.cohort} < {k for r in whole for k in r.cohort}


@METHOD
def test_it_learns(name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    config = make_config(algorithm={"name": name, **TO_LEARN.get(name, {})}, federation={"rounds": 25})
    rounds = Federation(config, blobs, tiny_net())
    assert any(record.accuracy > 0.8 for record in rounds)  # three separated blobs; chance is 0.33


@METHOD
def test_it_says_who_it_is(name: str):
    module = __import__(ALGORITHMS[name].__module__, fromlist=["x"])
    assert module.__doc__ is not None
    assert any(year in module.__doc__ for year in map(str, range(2016, 2030)))  # cites its paper


@METHOD
def test_its_file_stays_short(name: str):
    module = __import__(ALGORITHMS[name].__module__, fromlist=["x"])
    lines = Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip() and not line.strip().startswith("#")]) <= 65


def test_every_method_is_sorted_in():
    assert ALWAYS_ON | SWITCHED_OFF.keys() == set(ALGORITHMS)
    assert NOT_SGD.keys() | NOT_BY_WEIGHT.keys() <= set(ALGORITHMS)
