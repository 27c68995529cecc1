"""A step as a graph: for any number of clients, and split into what can be computed before it."""

import operator
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedntd.engine import tracing
from fedntd.engine.forking import branch
from fedntd.engine.tracing import BATCH, OWN, SHARED, WEIGHTS, is_mutable


def test_a_step_that_is_not_proportional_to_the_clients_is_not_traced_for_any_number():
    tensors, axes = [torch.zeros(3, 2)], [0]

    def with_one_more(x: torch.Tensor) -> None:
        x.add_(torch.ones(len(x) + 1, 2)[1:])

    def proportional(x: torch.Tensor) -> None:
        x.add_(torch.ones(2 * len(x)).view(-1, 2))

    assert tracing.traced_for_any_number(with_one_more, tensors, axes) is None
    assert tracing.traced_for_any_number(lambda x: x.add_(1) if len(x) == 7 else x.mul_(2), tensors, axes) is None
    module = tracing.traced_for_any_number(proportional, tensors, axes)
    assert module is not None
    x = torch.zeros(5, 2)
    module(x)
    assert torch.equal(x, torch.ones(5, 2))


def test_a_gradient_does_not_wait_for_the_loss():
    """It starts with ones in the shape of the loss, which do not depend on its value."""
    w = torch.randn(4, 3, dtype=torch.float64)
    module = tracing.traced(vmap(grad_and_value(lambda w: w.square().sum())), [w])
    (end,) = module.graph.find_nodes(op="output")
    assert set(end.args[0][1].users) == {end}
    found = module(w)
    torch.testing.assert_close(found[0], 2 * w)
    torch.testing.assert_close(found[1], w.square().sum(1))
    elsewhere = tracing.traced(lambda x: torch.ones_like(x, dtype=torch.bool, device="meta"), [w])(w)
    assert (elsewhere.dtype, elsewhere.device.type) == (torch.bool, "meta")


def test_what_does_not_depend_on_the_weights_is_taken_out():
    """A network w, a teacher that all share, a teacher of one's own; the whole is w += (x w + x g - x o) · 2 c."""
    kinds = [WEIGHTS, SHARED, OWN, BATCH]
    w, g, o, x = (torch.randn(3, 3, dtype=torch.float64) for _ in kinds)

    def step(w: Tensor, g: Tensor, o: Tensor, x: Tensor) -> None:
        w.add_((x @ w + x @ g.exp() - x @ o) * (2 * o))

    expected = w.clone()
    step(expected, g, o, x)
    parts = tracing.split(tracing.traced(step, [w, g, o, x]), kinds)
    ahead, kept = parts.ahead(w, g, o, x), parts.once(w, g, o, x)
    assert len(ahead) == 1
    torch.testing.assert_close(ahead[0], x @ g.exp())  # but not x @ o, since o would have to be copied
    assert any(torch.equal(leaf, 2 * o) for leaf in kept)
    parts.step(w, g, o, x, *ahead, *kept)
    torch.testing.assert_close(w, expected)


def test_a_teacher_that_all_share_is_asked_ahead_for_any_number_of_clients():
    """The size of its logits depends on the length of the weights' first axis, but not on their values."""
    g = torch.randn(3, 2, dtype=torch.float64)

    def step(w: Tensor, g: Tensor, x: Tensor) -> None:
        w.copy_(vmap(lambda w, x: w + x.mT @ (x @ w + x @ g), in_dims=(0, 0))(w, x))

    w, x = torch.randn(5, 3, 2, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
    module = tracing.traced_for_any_number(step, [w, g, x], [0, None, 0])
    assert module is not None
    parts = tracing.split(module, [WEIGHTS, SHARED, BATCH])
    (ahead,) = parts.ahead(w, g, x)
    torch.testing.assert_close(ahead.view(5, 4, 2), x @ g)
    expected = w.clone()
    step(expected, g, x)
    parts.step(w, g, x, ahead, *parts.once(w, g, x))
    torch.testing.assert_close(w, expected)


@given(*(st.sampled_from([1, 2, 16, 17, 40]) for _ in range(3)))
def test_only_a_slim_product_becomes_a_sum(rows: int, depth: int, columns: int):
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, *shape, generator=rng) for shape in ((rows, depth), (depth, columns)))
    module = tracing.traced(torch.bmm, [left, right])
    targets = {node.target for node in module.graph.nodes if node.op == "call_function"}
    assert (torch.ops.aten.bmm.default in targets) == (min(rows, depth, columns) > 16)
    torch.testing.assert_close(module(left, right), left @ right)
    half = left.bfloat16(), right.bfloat16()
    found = tracing.traced(torch.bmm, half)(*half)  # one rounding, that of the result
    torch.testing.assert_close(found, (half[0].double() @ half[1].double()).bfloat16(), rtol=1 / 128, atol=1e-6)


def add_to_all(half: Tensor, w: Tensor) -> Tensor:
    half.view(-1).add_(w.view(-1))
    return half


def add_to_reshaped(half: Tensor, w: Tensor) -> Tensor:
    turned = half.mT.reshape(-1)  # a copy, and a view of that
    return turned.add_(w.view(-1)).view(2, 2)


def add_to_chunks(half: Tensor, w: Tensor) -> Tensor:
    for mine, theirs in zip(half.chunk(2), w.chunk(2), strict=True):
        mine.add_(theirs)
    return half


@pytest.mark.parametrize("add", [add_to_all, add_to_reshaped, add_to_chunks])
def test_what_is_changed_in_place_stays_in_the_step(add: Callable[[Tensor, Tensor], Tensor]):
    """Otherwise the second step would start with the values that the first one left."""

    def step(w: Tensor, g: Tensor) -> None:
        w.add_(add(g / 2, w))

    w, g = torch.ones(2, 2), torch.full((2, 2), 4.0)
    parts = tracing.split(tracing.traced(step, [w, g]), [WEIGHTS, SHARED])
    kept = parts.once(w, g)
    for _ in range(2):
        parts.step(w, g, *kept)  # w becomes 2 w + 2
    assert torch.equal(w, torch.full((2, 2), 10.0))


def test_casts_of_the_weights_are_kept_up_to_date():
    def step(w: Tensor, g: Tensor) -> None:
        w.copy_(w + w.to(torch.bfloat16).float() * g)

    w, g = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])
    expected = w.clone()
    parts = tracing.split(tracing.traced(step, [w, g]), [WEIGHTS, SHARED])
    (kept,) = parts.once(w, g)
    for _ in range(3):
        step(expected, g)
        parts.step(w, g, kept)
        assert torch.equal(kept, w.to(torch.bfloat16).float())
    assert torch.equal(w, expected)


def test_parts_share_their_constants():
    """Frozen layers, say, which may be large."""
    constant = torch.randn(2, 2)

    def step(w: Tensor, x: Tensor) -> None:
        w.copy_(w - constant * x)

    tensors = [torch.ones(2, 2), torch.ones(2, 2)]
    module = tracing.traced(step, tensors)
    (held,) = module.buffers()
    (change,) = (node for node in module.graph.nodes if is_mutable(node))
    returning, changing = tracing.extract(module, change.all_input_nodes[1:]), branch(module, {change}, [])
    torch.testing.assert_close(returning(*tensors), (1 - constant,))
    after_split = tracing.split(module, [WEIGHTS, BATCH]).step
    for part in (returning, changing, after_split):
        assert [leaf.data_ptr() for leaf in part.buffers()] == [held.data_ptr()]
    for part in (changing, after_split):
        w = torch.ones(2, 2)
        part(w, tensors[1])
        torch.testing.assert_close(w, 1 - constant)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile uses what torch itself warns of
def test_any_number_of_functions_can_be_compiled_in_a_process(monkeypatch: pytest.MonkeyPatch):
    """As in a sweep of many groups. The compiler's limit for one code object is 64, and lowered here."""
    monkeypatch.setattr(tracing, "RECOMPILE_LIMIT", 2)
    for factor in range(5):
        graph = tracing.traced(partial(operator.mul, factor), [torch.ones(2)])
        assert tracing.compiled(graph)(torch.ones(2)).tolist() == [factor, factor]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_only_the_number_of_clients_is_left_open(monkeypatch: pytest.MonkeyPatch):
    """No matter what was compiled before. The compiler identifies functions by their line of code, and would make all
    sizes dynamic in which the inputs of such functions differ."""
    open_sizes: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list) -> object:
        open_sizes.append(sum(isinstance(given, torch.SymInt) for given in inputs))
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for shape in [(2, 3, 4), (3, 5, 4), (4, 5, 6, 7), (5, 7, 6)]:
        x = torch.ones(shape)
        tracing.mark_clients([x], [0])
        tracing.compiled(lambda x: 2 * x)(x)
    assert open_sizes == [1, 1, 1, 1]
