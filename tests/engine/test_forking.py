"""Forked steps: the branches give the same step in any order."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedntd import Config, Federation
from fedntd.engine import compiler as steps
from fedntd.engine import forking, tracing
from fedntd.engine.forking import Fork, find_fork
from fedntd.engine.tracing import is_view
from fedntd.engine.vectorised import Vectorised
from patchwork import Patchwork, drawn_run

BATCH, INPUTS, HIDDEN, OUTPUTS = 2, 3, 4, 32  # most weights are in the last layer
X = torch.randn(BATCH, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def two_layers(first: Tensor, last: Tensor, x: Tensor) -> None:
    """A step along the gradient of sum(tanh(x first) last)² / 2, worked out by hand."""
    hidden = (x @ first).tanh()
    dy = hidden @ last
    dx = (dy @ last.T) * (1 - hidden**2)
    first_gradient, last_gradient = x.T @ dx, hidden.T @ dy
    first.copy_(first - 0.1 * first_gradient)
    last.copy_(last - 0.1 * last_gradient)


def weights(seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=rng) for shape in ((INPUTS, HIDDEN), (HIDDEN, OUTPUTS))]


@cache
def fork_of(step: Callable[..., Any]) -> Fork | None:
    return find_fork(tracing.traced(step, [*weights(0), X]))


def operations(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@given(st.booleans(), st.integers(0, 10))
def test_branches_in_any_order_are_the_whole_step(late_first: bool, seed: int):
    fork = fork_of(two_layers)
    assert fork is not None
    expected, found = weights(seed), weights(seed)
    two_layers(expected[0], expected[1], X)
    shared = fork.trunk(*found, X)
    assert all(torch.equal(a, b) for a, b in zip(found, weights(seed), strict=True))  # the trunk changes nothing
    for branch in fork.branches[:: -1 if late_first else 1]:
        branch(*found, X, *shared)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-15)


def test_most_weights_are_updated_beside_the_rest_of_the_backward_pass():
    """The last layer's gradient and update are one branch. The other must not read its weights any more: the product
    with them, dy lastᵀ, is in the trunk."""
    fork = fork_of(two_layers)
    assert fork is not None
    products = [sum(name == "aten.mm.default" for name in operations(part)) for part in (fork.trunk, *fork.branches)]
    assert products == [3, 1, 1]
    assert operations(fork.trunk).count("aten.copy_.default") == 0
    first, last = weights(1)
    shared = fork.trunk(first, last, X)
    fork.branches[0](first, last, X, *shared)
    assert torch.equal(first, weights(1)[0])
    assert not torch.equal(last, weights(1)[1])


def with_a_bias(first: Tensor, last: Tensor, x: Tensor, bias: Tensor) -> None:
    """`two_layers`, whose last layer has a bias."""
    hidden = (x @ first).tanh()
    dy = hidden @ last + bias
    dx = (dy @ last.T) * (1 - hidden**2)
    first.copy_(first - 0.1 * (x.T @ dx))
    last.copy_(last - 0.1 * (hidden.T @ dy))
    bias.copy_(bias - 0.1 * dy.sum(0))


def test_neither_branch_waits_for_small_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forking, "SMALL", 2)  # the bias is a quarter of the last layer's weights
    fork = find_fork(tracing.traced(with_a_bias, [*weights(0), X, torch.ones(OUTPUTS, dtype=torch.float64)]))
    assert fork is not None
    written = [
        [node.args[0].name for node in part.graph.nodes if node.target is torch.ops.aten.copy_.default]
        for part in fork.branches
    ]
    assert written == [["last_1"], ["first_1"], ["bias_1"]]


def test_what_comes_out_of_one_product_is_changed_in_one_branch(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the product would be in the trunk, before both branches."""

    def step(first: Tensor, last: Tensor, x: Tensor, bias: Tensor) -> None:
        hidden = (x @ first).tanh()
        dy = hidden @ last + bias
        dx = (dy @ last.T) * (1 - hidden**2)
        gradients = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1).T @ dy  # the bias as a further row
        first.copy_(first - 0.1 * (x.T @ dx))
        last.copy_(last - 0.1 * gradients[:-1])
        bias.copy_(bias - 0.1 * gradients[-1])

    bias = torch.ones(OUTPUTS, dtype=torch.float64)
    expected, found = [*weights(1), X, bias.clone()], [*weights(1), X, bias.clone()]
    with_a_bias(*expected)
    monkeypatch.setattr(forking, "SMALL", 2)
    fork = find_fork(tracing.traced(step, found))
    assert fork is not None
    assert len(fork.branches) == 2
    shared = fork.trunk(*found)
    for branch in fork.branches:
        branch(*found, *shared)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_a_step_of_one_piece_is_not_forked():
    def one_layer(first: Tensor, last: Tensor, x: Tensor) -> None:
        last.copy_(last - 0.1 * last)

    assert fork_of(one_layer) is None


def reads_what_it_changed(first: Tensor, last: Tensor, x: Tensor) -> None:
    two_layers(first, last, x)
    first.copy_(first + last.sum())


def changes_on_the_way(first: Tensor, last: Tensor, x: Tensor) -> None:
    hidden = x @ first
    hidden.tanh_()
    first.copy_(first - x.T @ (hidden @ last @ last.T))
    last.copy_(last - hidden.T @ (hidden @ last))


def writes_what_another_input_was(first: Tensor, last: Tensor, x: Tensor) -> None:
    gradient = x.T @ (x @ first @ last @ last.T)
    last.copy_(first[0, 0].expand(HIDDEN, OUTPUTS))
    first.copy_(first - gradient)


def returns_something(first: Tensor, last: Tensor, x: Tensor) -> Tensor:
    size = last.norm()
    two_layers(first, last, x)
    return size


@pytest.mark.parametrize(
    "step",
    [reads_what_it_changed, changes_on_the_way, writes_what_another_input_was, returns_something],
)
def test_a_step_that_depends_on_the_order_of_its_changes_is_not_forked(step: Callable[..., Any]):
    assert fork_of(step) is None


def test_a_step_that_would_hand_over_more_than_it_changes_is_not_forked():
    def step(first: Tensor, last: Tensor, x: Tensor, *others: Tensor) -> None:
        much = x.tanh() if not others else others[0]
        hidden = x @ first
        dy = hidden @ last
        first.copy_(first - much.sum() * (x.T @ (dy @ last.T)))
        last.copy_(last - much.amax() * (hidden.T @ dy))

    many = torch.randn(100 * OUTPUTS, INPUTS, dtype=torch.float64)
    assert find_fork(tracing.traced(step, [*weights(0), many])) is None
    assert find_fork(tracing.traced(step, [*weights(0), many, many])) is not None
    assert find_fork(tracing.traced(two_layers, [*weights(0), many])) is not None  # products have it in memory anyway


def test_the_number_of_clients_can_be_asked_for_after_the_weights_have_changed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "SLIM", 0)  # these products are small, but products

    def step(first: Tensor, last: Tensor, x: Tensor) -> None:
        hidden = (x @ first).tanh()
        dy = hidden @ last
        dx = (dy @ last.mT) * (1 - hidden**2)
        first.copy_(first - 0.1 * (x.mT @ dx))
        last.copy_(last - torch.full((len(last), 1, 1), 0.1, dtype=x.dtype) * (hidden.mT @ dy))

    tensors = [torch.stack([leaf] * 3) for leaf in (*weights(0), X)]
    module = tracing.traced_for_any_number(step, tensors, [0, 0, 0])
    assert module is not None
    fork = find_fork(module)
    assert fork is not None
    expected, found = ([leaf.clone() for leaf in tensors] for _ in range(2))
    step(*expected)
    shared = fork.trunk(*found)
    for branch in fork.branches:
        branch(*found, *shared)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    assert fork.axes == [0] * len(shared)


# --- networks, methods and optimisers put together by chance ------------------------------------------------------


class Touched(TorchDispatchMode):
    """Records which memory is read and which is written."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self.written: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        named = dict(zip([a.name for a in function._schema.arguments], args, strict=False)) | (kwargs or {})
        for argument in function._schema.arguments:
            leaves = [leaf for leaf in pytree.tree_leaves(named.get(argument.name)) if isinstance(leaf, Tensor)]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if not makes_a_view(function):
                (self.written if writes else self.read).update(leaf.untyped_storage().data_ptr() for leaf in leaves)
        return function(*args, **(kwargs or {}))


def makes_a_view(function: Any) -> bool:
    return is_view(fx.Graph().call_function(function))


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """Let the engine train with forked steps, in the order given by the test's `late_first`, and check that no branch
    reads or writes what another writes. Returns the streams in use for each fork that was run."""
    taken: list[tuple[str, ...]] = []
    streams: list[str] = []
    in_use: list[str] = []

    def new_stream(device: torch.device) -> str:
        streams.append(f"stream {len(streams)}")
        return streams[-1]

    def one_after_the_other(branches: list[Callable], sides: list[str]) -> None:
        assert len(branches) <= 1 + len(sides)
        assert set(sides).isdisjoint(in_use)  # a fork in a branch needs streams of its own
        in_use.extend(sides)
        taken.append(tuple(in_use))
        touched = []
        for branch in branches[:: -1 if request.getfixturevalue("late_first") else 1]:
            with Touched() as mode:
                branch()
            touched.append(mode)
        for one, other in permutations(touched, 2):
            assert one.written
            assert one.written.isdisjoint(other.read | other.written)
        del in_use[-len(sides) :]

    monkeypatch.setattr(Vectorised, "compiles", lambda engine: True)
    monkeypatch.setattr(forking, "MOST_HANDED_OVER", math.inf)
    monkeypatch.setattr(tracing, "SLIM", 0)  # small layers are layers
    monkeypatch.setattr(steps, "compiled", lambda module: module)
    monkeypatch.setattr(steps, "urgent_stream_on", new_stream)
    monkeypatch.setattr(steps, "side_by_side", one_after_the_other)
    return taken


@pytest.mark.parametrize(
    ("seed", "late_first", "deep"),
    [(6, False, 2), (9, True, 1), (11, False, 1), (22, True, 2), (23, False, 2), (24, True, 1)],
)
def test_branches_have_nothing_to_do_with_each_other(
    seed: int, late_first: bool, deep: int, make_config: Callable[..., Config], forks: list[tuple[str, ...]]
):
    """Where a branch forks again, forks are two deep. All steps use the same streams, because memory freed on a stream
    is reused only there."""
    dataset, sections = drawn_run(seed)
    loop, run = (
        Federation(make_config(engine=engine, **sections), dataset, Patchwork(seed, dataset.shape))
        for engine in ("sequential", "vectorised")
    )
    list(loop), list(run)
    assert len(forks) > 3
    assert {len(streams) for streams in forks} == set(range(2, 2 * deep + 1, 2))  # two for each fork
    assert len(set(forks)) == deep
    for name, leaf in loop.state.w.items():
        torch.testing.assert_close(run.state.w[name], leaf, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile uses what torch itself warns of
def test_a_compiled_trunk_hands_over_no_input():
    """One branch would change it while the other reads it. The compiler drops multiplications by one."""
    module = tracing.traced(lambda w, x: (torch.ones_like(w) * w, x @ w), [torch.ones(2, 2), torch.ones(2, 2)])
    inputs = [torch.randn(2, 2), torch.randn(2, 2)]
    given = tracing.compiled(module)(*inputs)
    assert given[0].data_ptr() == inputs[0].data_ptr()
    shared = steps.clone_aliased(given, inputs)
    assert {leaf.data_ptr() for leaf in shared}.isdisjoint(leaf.data_ptr() for leaf in inputs)
    assert shared[1] is given[1]
    torch.testing.assert_close(shared, [inputs[0], inputs[1] @ inputs[0]])


def test_the_module_can_be_imported_alone():
    """It names operators of ours, which exist only once they are registered."""
    subprocess.run([sys.executable, "-c", "import fedntd.engine.forking"], check=True, timeout=60)
