"""FedDF and FedBE on models so small that teacher, fixed point and draws can be worked out; and their data."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from worlds import F64, draw

from fedntd import Batch, Config, Dataset, Federation, FedntdError, Out, configure, federate, from_tensors, tree
from fedntd.algorithms.composed import Composed
from fedntd.algorithms.ensemble import Auxiliary
from fedntd.algorithms.fedavg import FedAvg
from fedntd.algorithms.fedavgm import FedAvgM
from fedntd.algorithms.fedbe import FedBE
from fedntd.algorithms.feddf import FedDF
from fedntd.algorithms.losses import kl
from fedntd.config.build import build_module
from fedntd.config.toml import identity
from fedntd.data.dataset import Part
from fedntd.data.device import DevicePart
from fedntd.engine import tracing
from fedntd.engine.devices import set_float32_precision
from fedntd.engine.server_data import ServerData
from fedntd.models.functional import Model
from fedntd.rng import generator
from points import unlabelled_points

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]

X = draw(0, 30, 2)
P = torch.tensor([0.2, 0.8], dtype=F64)


class Linear:
    """A 'model' with logits x A + b."""

    has_dropout = False

    def __call__(self, w: dict[str, Tensor], batch: Batch) -> Out:
        return Out(batch.x @ w["A"] + w["b"])

    frozen = __call__


def auxiliary(x: Tensor = X, seed: int = 0) -> Auxiliary:
    part = DevicePart(Part(x, torch.zeros(len(x), dtype=torch.int64)), (), (), None, torch.device("cpu"), F64)
    return ServerData(Linear(), part, seed)  # type: ignore[arg-type]


def weights(seed: int) -> dict[str, Tensor]:
    return {"A": draw(seed, 2, 3), "b": draw(seed + 100, 3)}


W_G, CLIENTS = weights(1), [weights(2), weights(3)]
UP = {"delta": tree.stack([tree.sub(client, W_G) for client in CLIENTS])}


def merged(algorithm: FedAvg, p: Tensor = P, server: dict | None = None, x: Tensor = X) -> dict[str, Tensor]:
    server = algorithm.init_server(W_G) if server is None else server
    return algorithm.with_values({"auxiliary": auxiliary(x)}).aggregate(W_G, server, UP, p, 0.1)[0]


def answers(w: dict[str, Tensor]) -> Tensor:
    return (X @ w["A"] + w["b"]).softmax(-1)


MEAN = tree.add(W_G, tree.weighted_mean(UP["delta"], P))


def path_by_pytorch(
    q: Tensor, batches: list[Tensor], make_optimiser: Callable[[list[Tensor]], torch.optim.Optimizer], cosine: bool
) -> list[dict[str, Tensor]]:
    """The weights after each step from the mean towards q, by an optimiser of PyTorch."""
    student = {name: leaf.clone().requires_grad_() for name, leaf in MEAN.items()}
    optimiser, path = make_optimiser(list(student.values())), []
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches)) if cosine else None
    for places in batches:
        optimiser.zero_grad()
        kl(q[places], (X[places] @ student["A"] + student["b"]).log_softmax(-1)).mean().backward()
        optimiser.step()
        if schedule:
            schedule.step()
        path.append({name: leaf.detach().clone() for name, leaf in student.items()})
    return path


# --- FedDF ------------------------------------------------------------------------------------------------------


def test_feddf_ends_at_the_model_whose_logits_are_the_clients_mean_logits():
    """Linear models: the mean of their logits is the logits of their plain mean, wherever `p` lets the server start."""
    plain = {name: (CLIENTS[0][name] + CLIENTS[1][name]) / 2 for name in W_G}
    w = merged(FedDF(steps=3000, lr=0.05, batch_size=30))
    torch.testing.assert_close(answers(w), answers(plain), rtol=0, atol=1e-6)
    assert (answers(MEAN) - answers(plain)).abs().max() > 0.05  # it did not begin there


def test_one_step_of_feddf_by_hand():
    """One step of Adam moves every weight by lr against the sign of its gradient x^t (softmax(z) - softmax(mean z))."""
    teacher = torch.stack([X @ client["A"] + client["b"] for client in CLIENTS]).mean(0)
    error = (answers(MEAN) - teacher.softmax(-1)) / len(X)
    w = merged(FedDF(steps=1, lr=0.01, batch_size=30))
    assert (X.T @ error).abs().min() > 1e-5
    torch.testing.assert_close(w["A"], MEAN["A"] - 0.01 * (X.T @ error).sign(), rtol=0, atol=1e-5)
    torch.testing.assert_close(w["b"], MEAN["b"] - 0.01 * error.sum(0).sign(), rtol=0, atol=1e-5)


def test_feddf_takes_the_steps_of_pytorchs_adam_at_a_rate_that_falls_along_a_cosine():
    q = torch.stack([X @ client["A"] + client["b"] for client in CLIENTS]).mean(0).softmax(-1)
    batches = auxiliary().batches(round=1, size=8, steps=23)
    path = path_by_pytorch(q, batches, lambda w: torch.optim.Adam(w, lr=0.1), cosine=True)
    w = merged(FedDF(steps=23, lr=0.1, batch_size=8))
    for name in W_G:
        torch.testing.assert_close(w[name], path[-1][name], rtol=0, atol=1e-14)


# --- FedBE ------------------------------------------------------------------------------------------------------


def test_fedbe_draws_models_with_the_clients_mean_and_variance():
    """The variance of many draws, against sum_k p_k (w_k - mean)^2."""
    drawn = tree.stack(FedBE(samples=20_000).draw(MEAN, UP["delta"], P, seed=0, round=torch.tensor(1)))
    for name in W_G:
        variance = 0.2 * (CLIENTS[0][name] - MEAN[name]) ** 2 + 0.8 * (CLIENTS[1][name] - MEAN[name]) ** 2
        error = (variance / 20_000).sqrt()
        assert ((drawn[name].mean(0) - MEAN[name]).abs() < 5 * error).all()
        torch.testing.assert_close(drawn[name].var(0), variance, rtol=0.05, atol=0)
    flat = torch.cat([drawn["A"].flatten(1), drawn["b"]], 1).T
    assert (torch.corrcoef(flat) - torch.eye(9, dtype=F64)).abs().max() < 0.05  # a diagonal covariance


def test_fedbe_draws_others_in_another_round_or_seed():
    def first(seed: int, round: int) -> Tensor:
        return FedBE(samples=1).draw(MEAN, UP["delta"], P, seed, torch.tensor(round))[0]["A"]

    assert torch.equal(first(0, 1), first(0, 1))
    assert not torch.equal(first(0, 1), first(0, 2))
    assert not torch.equal(first(0, 1), first(1, 1))


def ensemble(sharpen: float, samples: int) -> Tensor:
    """The teacher, from its definition."""
    drawn = FedBE(samples=samples).draw(MEAN, UP["delta"], P, seed=0, round=torch.tensor(1))
    q = np.mean([answers(w).numpy() for w in (MEAN, *CLIENTS, *drawn)], axis=0) ** (1 / sharpen)
    return torch.from_numpy(q / q.sum(1, keepdims=True))


@pytest.mark.parametrize(("sharpen", "samples"), [(1.0, 0), (0.5, 10)])
def test_one_step_of_fedbe_by_hand(sharpen: float, samples: int):
    """A step of SGD with weight decay on KL to the mean of softmaxes, sharpened."""
    error = (answers(MEAN) - ensemble(sharpen, samples)) / len(X)
    w = merged(FedBE(samples=samples, epochs=1, lr=0.3, batch_size=30, sharpen=sharpen))
    torch.testing.assert_close(w["A"], MEAN["A"] - 0.3 * (X.T @ error + 1e-5 * MEAN["A"]), rtol=0, atol=1e-12)
    torch.testing.assert_close(w["b"], MEAN["b"] - 0.3 * (error.sum(0) + 1e-5 * MEAN["b"]), rtol=0, atol=1e-12)


def test_fedbe_takes_the_steps_of_pytorchs_sgd():
    batches = auxiliary().batches(round=1, size=8, steps=20)
    path = path_by_pytorch(
        ensemble(0.5, 3),
        batches,
        lambda w: torch.optim.SGD(w, lr=0.3, momentum=0.9, weight_decay=1e-5),
        cosine=False,
    )
    settings: dict = {"samples": 3, "epochs": 5, "lr": 0.3, "batch_size": 8}
    last, averaged = merged(FedBE(**settings)), merged(FedBE(**settings, swa_start=10, swa_every=5))
    for name in W_G:
        torch.testing.assert_close(last[name], path[-1][name], rtol=0, atol=1e-14)
        torch.testing.assert_close(averaged[name], (path[14][name] + path[19][name]) / 2, rtol=0, atol=1e-14)


def test_fedbe_returns_the_mean_of_the_weights_along_the_way():
    """The mean of steps 3, 5 and 7, if averaging starts after step 1 with every second step; an epoch is one step."""
    settings: dict = {"samples": 2, "lr": 0.5, "batch_size": 30}
    path = [merged(FedBE(**settings, epochs=epochs)) for epochs in range(8)]
    averaged = merged(FedBE(**settings, epochs=7, swa_start=1, swa_every=2))
    for name in W_G:
        torch.testing.assert_close(averaged[name], (path[3][name] + path[5][name] + path[7][name]) / 3)
    assert (averaged["A"] - path[7]["A"]).abs().max() > 1e-3


# --- both -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedDF(steps=0), FedBE(epochs=0)])
def test_without_steps_they_are_fedavg(algorithm: FedAvg):
    for name, leaf in merged(algorithm).items():
        assert torch.equal(leaf, MEAN[name])


def test_more_steps_than_can_be_planned_are_refused():
    with pytest.raises(FedntdError, match="the server's 1000000000000 steps a round cannot be planned; ask for fewer"):
        auxiliary().batches(round=1, size=8, steps=10**12)


def test_the_data_is_seen_pass_after_pass_in_a_new_order():
    batches = auxiliary().batches(round=1, size=8, steps=10)
    assert [len(places) for places in batches] == [8, 8, 8, 6, 8, 8, 8, 6, 8, 8]
    passes = [torch.cat(batches[i : i + 4]).tolist() for i in (0, 4)]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(30))
    rng = generator(0, "auxiliary", 1)
    assert passes == [rng.permutation(30).tolist(), rng.permutation(30).tolist()]
    assert passes[0] != passes[1]
    assert batches[0].tolist() != auxiliary().batches(2, 8, 1)[0].tolist()
    assert batches[0].tolist() != auxiliary(seed=1).batches(1, 8, 1)[0].tolist()


SHORT_LAST_BATCH = pytest.mark.parametrize(
    "algorithm",
    [
        FedDF(steps=7, lr=0.1, batch_size=8),
        FedDF(steps=1, lr=0.1, batch_size=8),
        FedBE(samples=2, epochs=3, lr=0.3, batch_size=8, swa_start=4, swa_every=3),
    ],
)


def two_rounds(algorithm: FedAvg) -> list[dict[str, Tensor]]:
    """What the first and the second round give, from the same uploads."""
    first, server = algorithm.aggregate(W_G, algorithm.init_server(W_G), UP, P, 0.1)
    return [first, algorithm.aggregate(W_G, server, UP, P, 0.1)[0]]


@SHORT_LAST_BATCH
def test_nothing_that_is_given_or_was_returned_changes(algorithm: FedAvg):
    before = tree.map(torch.clone, W_G)
    algorithm = algorithm.with_values({"auxiliary": auxiliary()})
    first, server = algorithm.aggregate(W_G, algorithm.init_server(W_G), UP, P, 0.1)
    then = tree.map(torch.clone, first)
    second, _ = algorithm.aggregate(W_G, server, UP, P, 0.1)
    for name in W_G:
        assert torch.equal(before[name], W_G[name])
        assert torch.equal(then[name], first[name])
        assert not torch.equal(first[name], second[name])
        assert not first[name].requires_grad


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let students take the steps that a GPU would capture, without CUDA graphs; returns one entry per capture."""
    captures = []

    def graph_of(function: Callable[[], None], pool: object) -> SimpleNamespace:
        captures.append(None)
        for _ in range(2):  # to warm up
            function()
        return SimpleNamespace(replay=function)

    monkeypatch.setattr("fedntd.engine.server_data.pool_on", lambda device: "a pool")
    monkeypatch.setattr("fedntd.engine.cuda_graphs.graph_of", graph_of)
    monkeypatch.setattr("fedntd.engine.server_data.compiled", lambda module: module)
    return captures


@SHORT_LAST_BATCH
def test_the_steps_that_a_gpu_captures_once_are_the_same_steps_in_every_round(
    algorithm: FedAvg, request: pytest.FixtureRequest
):
    """A student that is kept, against a new one in each round."""
    fresh = [merged(algorithm, server={"round": torch.tensor(round)}) for round in (0, 1)]
    captures = request.getfixturevalue("as_on_a_gpu")
    kept = two_rounds(algorithm.with_values({"auxiliary": auxiliary()}))
    for ours, theirs in zip(kept, fresh, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in W_G)
    sizes = {len(places) for places in auxiliary().batches(1, 8, getattr(algorithm, "steps", 12))}
    assert len(captures) == len(sizes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile uses what torch itself warns of
def test_compiled_steps_are_the_same_steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """By the compiler that a GPU's steps go through, here for a CPU."""
    algorithm = FedDF(steps=7, lr=0.1, batch_size=8)
    plain = [merged(algorithm, server={"round": torch.tensor(round)}) for round in (0, 1)]
    captures = request.getfixturevalue("as_on_a_gpu")
    monkeypatch.setattr("fedntd.engine.server_data.compiled", tracing.compiled)
    kept = two_rounds(algorithm.with_values({"auxiliary": auxiliary()}))
    for ours, theirs in zip(kept, plain, strict=True):
        for name in W_G:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-12)
    assert len(captures) > 0


def test_what_a_graph_was_captured_from_is_kept(monkeypatch: pytest.MonkeyPatch, as_on_a_gpu: list):
    """It holds constants of the network whose addresses the graph has captured."""
    steps: list[weakref.ref] = []

    def compiled(module: Callable) -> Callable:
        def step(*tensors: Tensor) -> None:
            module(*tensors)

        steps.append(weakref.ref(step))
        return step

    def graph_of(function: Callable[[], None], pool: object) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr("fedntd.engine.server_data.compiled", compiled)
    monkeypatch.setattr("fedntd.engine.cuda_graphs.graph_of", graph_of)
    algorithm = FedDF(steps=7, lr=0.1, batch_size=8).with_values({"auxiliary": auxiliary()})
    two_rounds(algorithm)
    gc.collect()
    assert len(steps) > 0
    assert all(step() is not None for step in steps)


@SHORT_LAST_BATCH
def test_a_copy_of_a_method_captures_its_own_steps(algorithm: FedAvg, as_on_a_gpu: list):
    algorithm = algorithm.with_values({"auxiliary": auxiliary()})
    expected = two_rounds(algorithm)
    captured = len(as_on_a_gpu)
    for other in (copy.deepcopy(algorithm), pickle.loads(pickle.dumps(algorithm))):
        as_on_a_gpu.clear()
        for ours, theirs in zip(two_rounds(other), expected, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in W_G)
        assert len(as_on_a_gpu) == captured


def test_methods_that_share_their_data_do_not_share_a_student():
    both = auxiliary()
    methods = [FedDF(steps=7, lr=0.1, batch_size=8), FedBE(samples=2, epochs=3, lr=0.3, batch_size=8)]
    for method in [*methods, *methods]:
        w = method.with_values({"auxiliary": both}).aggregate(W_G, method.init_server(W_G), UP, P, 0.1)[0]
        assert all(torch.equal(w[name], leaf) for name, leaf in merged(method).items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # they are what this is without
@pytest.mark.parametrize(
    "algorithm", [FedDF(steps=7, batch_size=32), FedBE(samples=2, epochs=3, lr=0.05, batch_size=32, swa_start=5)]
)
def test_a_gpu_learns_what_a_cpu_does(algorithm: FedAvg):
    """The paper's network in float32, in two rounds: what the server learns differs by less than one per cent."""
    set_float32_precision("fp32")
    on_cpu, on_gpu = (rounds_on(torch.device(device), "fp32", algorithm) for device in ("cpu", "cuda"))
    assert difference(on_cpu, on_gpu) < 0.01


def rounds_on(device: torch.device, precision: str, algorithm: FedAvg) -> list[Tensor]:
    """What the server has learned in each of two rounds, beyond the clients' mean."""
    model = Model(build_module(configure("demo"), (3, 32, 32), 10), precision)
    model.module.to(device)
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (70, 3, 32, 32), dtype=np.uint8))
    part = Part(pixels, torch.zeros(len(pixels), dtype=torch.int64))
    unseen = DevicePart(part, (0.5,) * 3, (0.25,) * 3, None, device, model.storage)
    algorithm, w = algorithm.with_values({"auxiliary": ServerData(model, unseen, seed=0)}), model.weights()
    up = {"delta": tree.map(lambda leaf: torch.from_numpy(rng.normal(0, 0.02, (3, *leaf.shape))).to(leaf), w)}
    p = torch.full((3,), 1 / 3, device=device)
    start, server, learned = FedAvg().aggregate(w, {}, up, p, 0.1)[0], algorithm.init_server(w), []
    for _ in range(2):
        end, server = algorithm.aggregate(w, server, up, p, 0.1)
        learned.append(torch.cat([(end[name] - start[name]).flatten() for name in sorted(w)]).cpu())
    return learned


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of a round, as a part of what was learned."""
    return max(((a - b).norm() / a.norm()).item() for a, b in zip(ours, theirs, strict=True))


def test_they_can_be_composed():
    """FedDF's step, then server momentum: in the first round the same weights, and the data reaches the method."""
    composed = Composed(FedDF(steps=5, lr=0.1), FedAvgM(beta=0.5))
    for name, leaf in merged(composed).items():
        torch.testing.assert_close(leaf, merged(FedDF(steps=5, lr=0.1))[name])


def test_a_method_that_was_given_no_data_says_so():
    with pytest.raises(FedntdError, match="FedDF has no auxiliary data"):
        FedDF().aggregate(W_G, {"round": torch.tensor(0)}, UP, P, 0.1)


@pytest.mark.parametrize(
    ("method", "bad"),
    [
        (FedDF, {"steps": -1}),
        (FedDF, {"lr": 0.0}),
        (FedDF, {"batch_size": 0}),
        (FedBE, {"samples": -1}),
        (FedBE, {"sharpen": 0.0}),
        (FedBE, {"swa_every": 0}),
    ],
)
def test_impossible_values_are_refused(method: type, bad: dict):
    with pytest.raises(FedntdError, match=rf"algorithm\.{next(iter(bad))} must be"):
        method(**bad)


# --- where the data comes from ----------------------------------------------------------------------------------

NEEDY = {"name": "feddf"}


def own_points(count: int = 12) -> Dataset:
    x, y = draw(7, count, 2), torch.arange(count) % 3
    return from_tensors("mine", (x, y), (x, y))


def test_by_name_as_a_dataset_and_as_a_tensor_it_is_the_same(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    points = unlabelled_points()
    by_name = Federation(make_config(algorithm=NEEDY), blobs, tiny_net())
    as_dataset = Federation(make_config(algorithm=NEEDY), blobs, tiny_net(), auxiliary=points)
    as_tensor = Federation(make_config(algorithm=NEEDY), blobs, tiny_net(), auxiliary=points.train.x)
    runs = [[record.loss for record in federation] for federation in (by_name, as_dataset, as_tensor)]
    assert runs[0] == runs[1] == runs[2]
    other = Federation(make_config(algorithm=NEEDY), blobs, tiny_net(), auxiliary=own_points())
    assert [record.loss for record in other] != runs[0]
    assert (as_dataset.config.auxiliary.name, as_tensor.config.auxiliary.name) == ("given:points", "given:tensor")


def test_the_last_samples_are_taken_and_normalised_as_the_clients_are():
    config = configure(
        "demo", ["algorithm.name=feddf", "data.train_size=5990", "auxiliary.name=fashion-mini", "auxiliary.samples=10"]
    )
    federation = Federation(config)
    part = federation.algorithm.auxiliary.part
    whole = Federation(configure("demo"))
    torch.testing.assert_close(part.plain(slice(0, 10)).x, whole.engine.train_part.plain(slice(5990, 6000)).x)
    assert part.y.tolist() == [0] * 10  # no labels


def test_what_clients_own_cannot_be_auxiliary():
    settings = ["algorithm.name=fedbe", "auxiliary.name=fashion-mini", "auxiliary.samples=11", "data.train_size=5990"]
    with pytest.raises(FedntdError, match=r"the clients' own dataset: they have the first 5990 of its 6000"):
        Federation(configure("demo", settings))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (torch.zeros(5, 3), r"auxiliary samples are \[3\] of torch\.float32, but the clients' are \[2\]"),
        (torch.zeros(5, 2, dtype=torch.uint8), r"of torch\.uint8, but the clients' are \[2\] of torch\.float64"),
        (torch.zeros(0, 2), "there are only 0 of them"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    given: Tensor, sentence: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    with pytest.raises(FedntdError, match=sentence):
        Federation(make_config(algorithm=NEEDY), blobs, tiny_net(), auxiliary=given)


def test_more_samples_than_there_are(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    config = make_config(algorithm=NEEDY, auxiliary={"name": "points:unlabelled_points", "samples": 41})
    with pytest.raises(FedntdError, match=r"auxiliary\.samples = 41, but there are only 40"):
        Federation(config, blobs, tiny_net())


def test_none_at_all_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(
        FedntdError, match=r"algorithm 'feddf' learns from samples that belong to no client.*auxiliary\.name"
    ):
        next(federate(configure("demo", ["algorithm.name=feddf"]), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_names_and_files_are_checked():
    with pytest.raises(FedntdError, match=r"auxiliary\.name = 'fashon' is not known; did you mean 'fashion-mini'"):
        configure("demo", ["auxiliary.name=fashon"])
    with pytest.raises(FedntdError, match=r"auxiliary\.name must say which dataset"):
        configure("demo", ["auxiliary.samples=5"])
    with pytest.raises(FedntdError, match=r"auxiliary\.path must name an \.npz file"):
        Federation(configure("demo", ["algorithm.name=feddf", "auxiliary.name=npz", "auxiliary.path=/nowhere.npz"]))


def test_other_methods_leave_it_alone(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    federation = Federation(make_config(algorithm={"name": "fedavg"}), blobs, tiny_net(), auxiliary=torch.zeros(5, 9))
    assert federation.algorithm.auxiliary is None


@pytest.mark.parametrize(("name", "same"), [("cifar100", True), ("npz", False)])
def test_where_the_files_are_does_not_make_another_run(name: str, same: bool):
    """Unless a dataset is known by its files alone."""
    here, there = (configure("demo", [f"auxiliary.name={name}", f"auxiliary.path={path}"]) for path in "ab")
    assert (identity(here) == identity(there)) == same
    assert identity(here) != identity(configure("demo"))
