"""The vectorised engine against the sequential one: the same weights up to rounding, for all kinds of clients."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from fedntd import ALGORITHMS, Config, Dataset, Federation, FedntdError, tree
from fedntd.config.toml import from_table
from fedntd.data.augment import Augment
from fedntd.data.dataset import Part, from_tensors
from fedntd.engine import compiler as steps
from fedntd.engine import forking, tracing, vectorised
from fedntd.engine.buffers import Buffers
from fedntd.engine.compiler import Compiler, Step
from fedntd.engine.cuda_graphs import Captured
from fedntd.engine.sequential import Sequential
from fedntd.engine.vectorised import Vectorised
from fedntd.runs.record import Record
from fedntd.simulation import federation as rounds
from fedntd.simulation.together import federate, federate_together
from fedntd.tree import Weights

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]


def both(
    config: Callable[..., Config], dataset: Dataset, net: Net | None, **settings: object
) -> tuple[Federation, Federation]:
    """The same run by the loop and vectorised, to the end."""
    runs = [
        Federation(config(engine=engine, **settings), dataset, net and net()) for engine in ("sequential", "vectorised")
    ]
    for run in runs:
        run.records = list(run)  # type: ignore[attr-defined]
    return runs[0], runs[1]


def assert_equal_runs(loop: Federation, together: Federation, atol: float = 1e-12) -> None:
    for name, leaf in loop.state.w.items():
        torch.testing.assert_close(together.state.w[name], leaf, rtol=0, atol=atol)
    for k, own in loop.state.own.items():
        for name, leaf in tree.flatten(own).items():
            torch.testing.assert_close(tree.flatten(together.state.own[k])[name], leaf, rtol=0, atol=atol)
    for a, b in zip(loop.records, together.records, strict=True):  # type: ignore[attr-defined]
        assert_equal_records(a, b)


def assert_equal_records(a: Record, b: Record) -> None:
    for field in a.__dataclass_fields__:
        if field != "seconds":
            assert getattr(b, field) == pytest.approx(getattr(a, field), abs=1e-9), field


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_equal_to_the_loop(name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """Ragged clients (LDA), short last batches, momentum and weight decay on, several rounds, float64."""
    loop, together = both(make_config, blobs, tiny_net, algorithm={"name": name}, federation={"rounds": 4})
    assert len({len(part) for part in loop.parts}) > 2
    assert_equal_runs(loop, together)


@pytest.mark.parametrize("name", ["fedntd", "moon", "stateful:Sending"])
@pytest.mark.parametrize("together", [1, 2, 5])
def test_in_chunks(name: str, together: int, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """MOON keeps the trained weights themselves, another method sends them: a chunk must not hand out what the next one
    overwrites."""
    settings = {"algorithm": {"name": name}, "federation": {"ratio": 1.0, "rounds": 3}, "together": together}
    assert_equal_runs(*both(make_config, blobs, tiny_net, **settings))


def test_clients_smaller_than_a_batch(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    settings = {
        "partition": {"name": "lda", "alpha": 0.5, "min_size": 1},
        "federation": {"clients": 20, "batch_size": 50},
    }
    assert_equal_runs(*both(make_config, blobs, tiny_net, **settings))


def test_rounds_of_small_clients_have_few_shapes(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    """On a GPU a step is compiled for every width of a batch."""
    lda, federation = {"name": "lda", "alpha": 5.0, "min_size": 1}, {"clients": 8, "batch_size": 50}
    run = Federation(make_config(engine="vectorised", partition=lda, federation=federation), blobs, tiny_net())
    engine = run.engine
    assert isinstance(engine, Vectorised)
    widths = {engine.pack([k], [run.local_plan(1, k)]).plan.shape[-1] for k in range(8)}
    assert len({len(part) for part in run.parts}) > 4
    assert len(widths) <= 3


def test_state_is_each_clients_own(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    settings = {"algorithm": {"name": "stateful:Remembering"}, "federation": {"rounds": 6}}
    loop, together = both(make_config, blobs, tiny_net, **settings)
    assert len(loop.state.own) > 3
    assert_equal_runs(loop, together)


def images(channels: int = 1, size: int = 8, tested: int = 60) -> Dataset:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(20)
    x = torch.randint(0, 200, (60, channels, size, size), generator=g) + 20 * y[:, None, None, None]
    x = x.to(torch.uint8)
    return from_tensors("images", (x, y), (x[:tested], y[:tested]), augment=Augment(pad=2, flip=True, cutout=4))


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [("cnn", "fedntd"), ("cnn", "fedcurv"), ("resnet10", "fedntd"), ("resnet56", "fedalign")],
)
def test_the_papers_networks_on_augmented_images(model: str, algorithm: str):
    """Max-pooling, ReLU and a masked BatchNorm, a narrow last stage, with the same crops, flips and holes."""

    def config(engine: str, **_: object) -> Config:
        table = {
            "engine": engine,
            "device": "cpu",
            "precision": "fp64",
            "model": {"name": model},
            "algorithm": {"name": algorithm},
            "optimiser": {"lr": 1e-4 if model == "resnet56" else 0.01},  # 56 layers multiply what rounding changes
            "partition": {"name": "lda", "alpha": 0.5, "min_size": 3},
            "federation": {"clients": 5, "ratio": 0.6, "rounds": 1, "local_epochs": 1, "batch_size": 8},
        }
        return from_table(table)

    loop, together = both(config, images(size=8 if model == "cnn" else 16, tested=12), None)
    assert_equal_runs(loop, together, atol=1e-11)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Let the engine train with the steps that it compiles on a GPU, without CUDA graphs. Returns the numbers of
    clients of these steps."""
    ready: set[int] = set()
    make = Compiler.make

    def make_step(compiler: Compiler, buffers: Buffers, *others: Any) -> Step:
        ready.add(len(buffers.loss))
        return make(compiler, buffers, *others)

    @torch.no_grad()
    def capture(function: Callable[[], Any], pool: None) -> Captured:
        for _ in range(2):  # a GPU warms up
            function()
        return Captured(function, None)

    monkeypatch.setattr(Vectorised, "compiles", lambda engine: True)
    monkeypatch.setattr(Compiler, "make", make_step)
    monkeypatch.setattr(steps, "capture", capture)
    monkeypatch.setattr(vectorised, "AHEAD", 2)  # many short stretches
    monkeypatch.setattr(vectorised, "TEST_BATCH", 7)  # which does not divide the samples
    return ready


RAGGED: dict[str, dict] = {
    "partition": {"name": "lda", "alpha": 0.3, "min_size": 1},
    "federation": {"ratio": 1.0, "rounds": 2, "local_epochs": 1},  # in two rounds the context changes
}


def assert_equal_weights(run: Federation, loop: Federation) -> None:
    for name, leaf in loop.state.w.items():
        torch.testing.assert_close(run.state.w[name], leaf, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_step_that_a_gpu_compiles_is_the_same_step(
    name: str,
    blobs: Dataset,
    tiny_net: Net,
    make_config: MakeConfig,
    as_on_a_gpu: set,
    monkeypatch: pytest.MonkeyPatch,
):
    """The traced steps (for all clients, for one, for any number), not compiled."""
    calls = {"traced": 0, "traced_for_any_number": 0, "find_fork": 0}

    def counted(function: Callable) -> Callable:
        def call(*arguments: object) -> object:
            result = function(*arguments)
            calls[function.__name__] += result is not None
            return result

        return call

    for function in (tracing.traced, tracing.traced_for_any_number, forking.find_fork):
        monkeypatch.setattr(steps, function.__name__, counted(function))
    prefetched: list[int] = []

    def split(*given: Any) -> tracing.Split:
        result = tracing.split(*given)
        prefetched.append(len(result.ahead_shapes))
        return result

    monkeypatch.setattr(steps, "split", split)
    monkeypatch.setattr(forking, "MOST_HANDED_OVER", math.inf)
    monkeypatch.setattr(tracing, "SLIM", 0)  # small layers are layers
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    config = make_config(engine="vectorised", algorithm={"name": name}, **RAGGED)
    run, loop = (
        Federation(config, blobs, tiny_net()),
        Federation(replace(config, engine="sequential"), blobs, tiny_net()),
    )
    records, of_loop = list(run), list(loop)
    assert len(as_on_a_gpu) > 3  # numbers of clients; and how many of these steps were traced:
    forks = 0 if name == "moon" else 3  # the gradient of its cosines is computed in place
    assert calls == {"traced": 5, "traced_for_any_number": 1, "find_fork": forks}  # two are tests: of one model, of all
    assert ("cannot be forked" in " ".join(run.engine.notes)) == (name == "moon")
    assert ("only samples are prepared" in " ".join(run.engine.notes)) == (prefetched[0] == 0)
    assert len(prefetched) == 3
    assert len(set(prefetched)) == 1  # what is prefetched for one client is so for several
    assert_equal_weights(run, loop)
    for mine, other in zip(records, of_loop, strict=True):
        assert_equal_records(other, mine)


@pytest.mark.parametrize(
    ("shape", "of_one", "stacked"),
    [
        ((7, 50, 9), (1, 50, 9), True),
        ((50, 7, 9), (50, 1, 9), True),
        ((350, 9), (50, 9), False),  # whose samples come first?
        ((7, 7, 9), (1, 1, 9), False),
        ((7, 450), (1, 50, 9), False),
        ((50, 9), (50, 9), False),  # what all share
    ],
)
def test_only_results_with_a_separate_client_axis_are_prefetched(shape: tuple, of_one: tuple, stacked: bool):
    assert steps.are_stacked([torch.Size(shape)], [torch.Size(of_one)]) is stacked
    assert not steps.are_stacked([torch.Size(shape)], [])
    if stacked:
        each = [torch.randn(of_one) for _ in range(7)]
        found = steps.merge_clients(torch.stack(each), torch.Size(of_one), torch.Size(shape))
        assert torch.equal(found, torch.cat(each, shape.index(7)))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_several_clients_do_not_prefetch_as_one_does_is_left_in_the_step(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    monkeypatch.setattr(steps, "are_stacked", lambda shapes, single_shapes: False)
    config = make_config(engine="vectorised", algorithm={"name": "fedntd"}, **RAGGED)
    run = Federation(config, blobs, tiny_net())
    loop = Federation(replace(config, engine="sequential"), blobs, tiny_net())
    list(run), list(loop)
    assert_equal_weights(run, loop)


def test_prefetched_results_have_the_layout_that_the_step_was_traced_with(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, as_on_a_gpu: set, monkeypatch: pytest.MonkeyPatch
):
    """The step views as one axis a tensor that has been transposed twice."""
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    config = make_config(engine="vectorised", algorithm={"name": "stateful:Turned"}, **RAGGED)
    run = Federation(config, blobs, tiny_net())
    loop = Federation(replace(config, engine="sequential"), blobs, tiny_net())
    list(run), list(loop)
    assert {1, 3, 6} <= as_on_a_gpu  # clients: one, some, all
    assert_equal_weights(run, loop)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_compiled_a_second_time_to_record_gradients(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    def compiled(function: Callable) -> Callable:
        def call(*tensors: torch.Tensor) -> Any:
            assert not torch.is_grad_enabled()
            return function(*tensors)

        return call

    monkeypatch.setattr(steps, "compiled", compiled)
    Federation(make_config(engine="vectorised", algorithm={"name": "fedntd"}), blobs, tiny_net()).play_round()


def test_what_is_kept_of_the_weights_in_bf16_keeps_up_with_them(
    blobs: Dataset,
    tiny_net: Net,
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    """Plain steps and traced ones, which keep the cast weights from step to step, are bit-identical."""
    config = make_config(engine="vectorised", precision="bf16", algorithm={"name": "fedntd"}, **RAGGED)
    plain = Federation(config, blobs, tiny_net())
    list(plain)
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    assert len(request.getfixturevalue("as_on_a_gpu")) == 0
    kept: list[tracing.Split] = []
    monkeypatch.setattr(steps, "split", lambda *given: kept.append(tracing.split(*given)) or kept[-1])
    run = Federation(config, blobs, tiny_net())
    list(run)
    names = [node.name for node in kept[0].step.graph.nodes if node.op == "placeholder"]
    assert sum(name.startswith("kept_") for name in names) >= 5  # the network's four leaves, and what the teacher says
    assert len(kept[0].ahead_shapes) > 0
    for name, leaf in plain.state.w.items():
        assert torch.equal(run.state.w[name], leaf)


@pytest.mark.parametrize(
    ("samples", "norm", "sizes", "masked"),
    [
        (6, False, [6], False),
        (14, False, [7, 7], False),
        (15, False, [5, 5, 5], False),  # as even as can be: not 7, 7 and one
        (17, False, [6, 6, 6], True),
        (17, True, [7, 7, 7], True),  # as in the loop
        (14, True, [7, 7], False),
    ],
)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_tested_together_on_a_gpu(
    samples: int, norm: bool, sizes: list[int], masked: bool, blobs: Dataset, make_config: MakeConfig
):
    net = nn.Sequential(nn.Linear(2, 4), *[nn.BatchNorm1d(4)] * norm, nn.ReLU(), nn.Linear(4, 3))
    some = torch.linspace(0, len(blobs.test.y) - 1, samples).long()  # of all classes
    few = replace(blobs, test=Part(blobs.test.x[some], blobs.test.y[some]))
    engine = Federation(make_config(engine="vectorised"), few, net).engine
    assert isinstance(engine, Vectorised)
    plan = engine.test_plan()
    assert [len(places) for places, *_ in plan] == sizes
    assert {len(batch) for batch in plan} == {1 + masked}
    real = [places[mask[0]] if mask else places for places, *mask in plan]
    assert torch.cat(real).tolist() == list(range(samples))


@pytest.mark.parametrize("name", ["fedntd", "scaffold"])
def test_several_runs_by_the_step_that_a_gpu_compiles(
    name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig, as_on_a_gpu: set, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    config = make_config(engine="vectorised", algorithm={"name": name}, **RAGGED)
    configs = [replace(config, seed=seed) for seed in (0, 1)]
    together: dict[int, list[Record]] = {0: [], 1: []}
    for i, record in federate_together(configs, dataset=blobs, model=tiny_net()):
        assert isinstance(record, Record)
        together[i].append(record)
    assert max(as_on_a_gpu) > 6  # clients of both
    for i, one in enumerate(configs):
        for mine, alone in zip(
            together[i], federate(replace(one, engine="sequential"), blobs, tiny_net()), strict=True
        ):
            assert_equal_records(alone, mine)


# torch.compile uses what torch itself warns of
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_step_is_the_same_step(make_config: MakeConfig, as_on_a_gpu: set):
    """With the same compiler as on a GPU, here for a CPU, and with a user's convolution. Once compiled, it contains the
    number of clients, so each number needs a step of its own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    federation = RAGGED["federation"] | {"batch_size": 3}
    config = make_config(engine="vectorised", algorithm={"name": "fedntd"}, **RAGGED | {"federation": federation})
    run, loop = Federation(config, images(), net), Federation(replace(config, engine="sequential"), images(), net)
    for mine, other in zip(run, loop, strict=True):
        assert_equal_records(other, mine)
    assert {2, 3} <= as_on_a_gpu
    assert_equal_weights(run, loop)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_for_any_number_of_clients_serves_cohorts_of_any_size(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, as_on_a_gpu: set, monkeypatch: pytest.MonkeyPatch
):
    """Each piece is compiled once. (The compiler runs without generating code.)"""
    torch._dynamo.reset()
    compile, graphs = torch.compile, []

    def counted(function: Callable, **options: Any) -> Callable:
        graphs.append(CompileCounter())
        return compile(function, backend=graphs[-1], **options)

    monkeypatch.setattr(torch, "compile", counted)
    run = Federation(make_config(engine="vectorised", algorithm={"name": "fedntd"}, **RAGGED), blobs, tiny_net())
    engine = run.engine
    assert isinstance(engine, Vectorised)
    run.play_round()
    (whole,) = engine.buffers.values()
    fewer = engine.buffers_for(5, whole.batches.y.shape[1], whole.first(5, engine.axes).ctx)
    engine.step_for(3, fewer)
    assert {3, 4, 6} <= as_on_a_gpu
    assert max(counter.frame_count for counter in graphs) == 1


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x[..., None])[0][:, -1])


class Branching(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input if input.sum() > 0 else -input)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Dropout()), "it has dropout"),
        (Recurrent(), "not implemented for aten::gru"),
        (Branching(2, 3), "data-dependent control flow"),
    ],
)
def test_networks_that_cannot_be_vectorised(
    net: nn.Module, reason: str, blobs: Dataset, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    """If the engine is asked for, the error says why. Where it is only the default, the sequential engine is used."""
    with pytest.raises(FedntdError, match=f"engine = 'vectorised' cannot train this network: .*{reason}"):
        Federation(make_config(engine="vectorised"), blobs, net)
    assert isinstance(Federation(make_config(), blobs, net).engine, Sequential)
    run = Federation(make_config(engine="sequential"), blobs, net)
    run.config, run.device = replace(run.config, engine="auto"), SimpleNamespace(type="cuda")  # type: ignore[assignment]
    monkeypatch.setattr(run, "on_device", lambda _: run.engine.train_part)
    assert isinstance(run.make_engine(run.engine.model), Sequential)


def test_the_cohort_is_trained_from_copies(blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    federation = Federation(make_config(engine="vectorised"), blobs, tiny_net())
    first: Weights = federation.state.w
    before = tree.map(torch.clone, first)
    federation.play_round()
    middle = tree.map(torch.clone, federation.state.w)
    kept = federation.state.w
    federation.play_round()
    assert all(torch.equal(first[n], before[n]) for n in first)
    assert all(torch.equal(kept[n], middle[n]) for n in kept)  # buffers that are used again are never handed out


class Reads(TorchDispatchMode):
    """Records operations for which a host would have to wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        aten = torch.ops.aten
        if function in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default):
            self.found.append(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedbe", "feddf"}))  # those train at the server
def test_nothing_is_waited_for_before_the_results_of_a_round_are_fetched(
    name: str, blobs: Dataset, tiny_net: Net, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
):
    """Not even to format an error message that is not needed."""
    run = Federation(make_config(engine="vectorised", algorithm={"name": name}), blobs, tiny_net())
    run.play_round()
    before, fetch = [], rounds.to_host

    def to_host(*given: Any) -> Any:
        before.extend(reads.found)
        return fetch(*given)

    monkeypatch.setattr(rounds, "to_host", to_host)
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda leaf, **_: reads.found.append("written out") or "a tensor")
    with Reads() as reads:
        run.play_round()
    assert before == []
    assert len(reads.found) > 0  # then they are


ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def on_gpu(engine: str, precision: str, **sections: object) -> Federation:
    """One round of the paper's network on the packaged images, LDA clients of very different sizes, every client."""
    table = {
        "engine": engine,
        "device": "cuda",
        "precision": precision,
        "partition": {"name": "lda", "alpha": 0.3},
        "federation": {"clients": 12, "ratio": 1.0, "rounds": 1, "local_epochs": 1},
        **sections,
    }
    run = Federation(from_table(table))
    run.records = list(run)  # type: ignore[attr-defined]
    return run


@ON_GPU
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # they are what this is without
def test_float32_on_a_gpu_is_within_1e4_of_the_loop():
    loop, together = on_gpu("sequential", "fp32"), on_gpu("vectorised", "fp32")
    for name, leaf in loop.state.w.items():
        change = leaf - loop.initial_w[name]
        assert change.norm() > 0
        assert (together.state.w[name] - leaf).norm() <= 1e-4 * leaf.norm()


@ON_GPU
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_repeats_on_a_gpu_are_bit_identical():
    first, again = on_gpu("vectorised", "bf16"), on_gpu("vectorised", "bf16")
    for name, leaf in first.state.w.items():
        assert torch.equal(again.state.w[name], leaf)
