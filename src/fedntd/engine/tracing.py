"""Traces a training step into a graph of plain operations, and splits the graph into stages.

**Tracing.** The graph contains the results of vmap and grad, not the transforms themselves. This matters for our own
convolutions: torch.compile cannot follow them through vmap.

The number of clients is a constant in a traced graph. To compile one graph for every number, `traced_for_any_number`
traces the step with two numbers of clients. Constants that differ between the two graphs in proportion to the number of
clients become multiples of the actual number. (Symbolic tracing would be the textbook solution, but several of vmap's
rules turn the symbol into a constant.)

**Splitting.** `split` moves three kinds of operations out of the step:

- Those that depend on the context alone give the same result in every step of a round, and are computed once. Examples
  are the cast of the global weights to the network's precision and the difference of two control variates.
- Those that depend on the shared context and the samples, such as a teacher's logits, need not wait for the weights,
  and are computed ahead.
- Casts of the trained weights to the network's precision are computed at the end of the previous step, where the new
  weights have just been written.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

# Kinds of inputs of a step: what it changes, the client's own context, the context all clients share, the samples.
WEIGHTS, OWN, SHARED, BATCH = "weights", "own", "shared", "batch"
# Some operations (a grouped convolution) are compiled again for every number of clients, even if it is marked dynamic.
RECOMPILE_LIMIT = 64
MayPrefetch = Callable[[list[torch.Size]], bool]
CLIENTS = 7, 11  # numbers of clients to trace with: primes, so that no other size is a multiple of both by chance
# A matrix product with at most SLIM rows, columns or depth leaves matrix units idle; with a depth above DEEP it needs
# them nevertheless.
SLIM, DEEP = 16, 1024


def traced(step: Callable[..., Any], tensors: Sequence[Tensor]) -> fx.GraphModule:
    """Trace `step` for tensors of exactly these shapes. Nothing is computed."""
    rules = {torch.ops.aten.bmm.default: slim_product, torch.ops.aten.ones_like.default: plain_ones}
    return make_fx(step, rules, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def slim_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute a slim batched product, such as that of a last layer with ten classes, as a sum of products.

    The compiler fuses the sum with the operations around it, while launching a library kernel would take longer than
    the arithmetic. NotImplemented, which keeps the library kernel, if no dimension is slim, or if the sum is long and
    its terms are scattered in memory: that takes compiled code several times as long.
    """
    (_, rows, depth), columns = left.shape, right.shape[2]
    scattered = depth > SLIM and left.stride(2) != 1
    if min(rows, depth, columns) > SLIM or depth > DEEP or scattered:
        return NotImplemented
    wide = torch.promote_types(left.dtype, torch.float32)
    terms = left.to(wide)[..., None] * right.to(wide)[:, None]
    # a short sum is written out as additions, so that it is not a reduction
    return (terms.sum(2) if depth > SLIM else reduce(torch.add, terms.unbind(2))).to(left.dtype)


def plain_ones(like: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """`torch.ones_like` that does not depend on the values of `like`.

    The backward pass starts with ones in the shape of the loss, and need not wait until the loss is computed.
    """
    return torch.ones(like.shape, dtype=dtype or like.dtype, device=device or like.device)


def traced_for_any_number(
    step: Callable[..., Any], tensors: Sequence[Tensor], axes: Sequence[int | None]
) -> fx.GraphModule | None:
    """Trace `step` for any number of clients; `axes` are the client axes of the tensors.

    Returns None if the two graphs traced with different numbers of clients differ in more than multiples of them.
    """
    modules = [
        traced(step, [with_length(tensor, axis, number) for tensor, axis in zip(tensors, axes, strict=True)])
        for number in CLIENTS
    ]
    first, second = (list(module.graph.nodes) for module in modules)
    if [(node.op, node.target) for node in first] != [(node.op, node.target) for node in second]:
        return None
    graph = modules[0].graph
    inputs = [node for node in first if node.op == "placeholder"]
    stacked, axis = next((node, axis) for node, axis in zip(inputs, axes, strict=True) if axis is not None)
    with graph.inserting_after(inputs[-1]):
        clients = graph.call_function(torch.ops.aten.sym_size.int, (stacked, axis))
    multiples = {1: clients}

    def multiple(factor: int) -> fx.Node:
        if factor not in multiples:
            with graph.inserting_after(clients):
                multiples[factor] = graph.call_function(operator.mul, (clients, factor))
        return multiples[factor]

    for node, other in zip(first, second, strict=True):
        node.meta["axis"] = differing_axis(node, other)
        values, form = pytree.tree_flatten((node.args, dict(node.kwargs)))
        others, other_form = pytree.tree_flatten((other.args, dict(other.kwargs)))
        if form != other_form:
            return None
        for i, (a, b) in enumerate(zip(values, others, strict=True)):
            if isinstance(a, fx.Node) or a == b:
                continue
            if not isinstance(a, int) or a % CLIENTS[0] or a * CLIENTS[1] != b * CLIENTS[0]:
                return None
            values[i] = multiple(a // CLIENTS[0])
        node.args, node.kwargs = pytree.tree_unflatten(values, form)
    graph.lint()
    modules[0].recompile()
    return modules[0]


def differing_axis(node: fx.Node, other: fx.Node) -> int | None:
    """The first axis along which two traced tensors differ in length; None if there is none."""
    shapes = [getattr(traced_node.meta.get("val"), "shape", ()) for traced_node in (node, other)]
    return next((axis for axis, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b), None)


def with_length(tensor: Tensor, axis: int | None, length: int) -> Tensor:
    """An empty tensor like this one, except for its length along `axis`; the tensor itself if `axis` is None."""
    if axis is None:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length
    return tensor.new_empty(shape)


class Split(NamedTuple):
    """The stages of a step. The whole step is equivalent to

    kept = once(*inputs)                           # before the first step
    step(*inputs, *ahead(*inputs), *kept)          # each step; it also updates `kept` for the next one
    """

    once: fx.GraphModule
    ahead: fx.GraphModule
    step: fx.GraphModule
    once_axes: list[int | None]  # the client axis of each result of `once`, where it is known
    ahead_shapes: list[torch.Size]
    ahead_layouts: list[list[int]]  # the axes of each result in memory order, which views in `step` rely on


def split(module: fx.GraphModule, kinds: Sequence[str], may_prefetch: MayPrefetch = lambda shapes: True) -> Split:
    """Split a traced step, whose inputs are of these `kinds`, into stages. `module` itself becomes the last one.

    - `once` computes what depends on the context alone, and the casts of the weights.
    - `ahead` computes what depends on the batch and on the context that all clients share. It leaves out what depends
      on a client's own context, which would have to be copied for every batch. It is empty if `may_prefetch` returns
      False for the shapes of its results.
    """
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    depends = dependence(graph, dict(zip(inputs, kinds, strict=True)))
    new_values = dict(node.all_input_nodes for node in graph.nodes if node.target is torch.ops.aten.copy_.default)
    # casts of the weights: `step` recomputes them from the new weights, for the next step
    casts = closure(graph, lambda node: is_narrowing(node) and node.all_input_nodes[0] in new_values)
    prefetched = {node for node in depends if depends[node] == {SHARED, BATCH}}
    ahead = [node for node in graph.nodes if node in prefetched and not prefetched.issuperset(node.users)]
    if not may_prefetch([node.meta["val"].shape for node in ahead]):
        prefetched, ahead = set(), []
    moved = casts | prefetched | {node for node in depends if depends[node] and depends[node] <= {OWN, SHARED}}

    # Store only what the step needs. Views cost nothing and are made again from the stored tensors.
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in moved or (node in needed and is_view(node)):
            needed.update(node.all_input_nodes)
    stored = (moved - prefetched) & needed
    kept = [node for node in graph.nodes if node in stored and node.op == "call_function" and not is_view(node)]
    modules = extract(module, kept), extract(module, ahead)

    (end,) = graph.find_nodes(op="output")
    new = dict(new_values)
    with graph.inserting_before(end):
        for node in graph.nodes:
            if node in casts:
                new[node] = graph.node_copy(node, lambda source: new[source])
    after = inputs[-1]
    for node in [*ahead, *kept]:
        with graph.inserting_after(after):
            after = graph.placeholder(f"kept_{node.name}")
        if node in casts:
            with graph.inserting_before(end):
                graph.call_function(torch.ops.aten.copy_.default, (after, new[node]))
        node.replace_all_uses_with(after)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_mutable(node))
    graph.lint()
    module.recompile()
    axes, values = [node.meta.get("axis") for node in kept], [node.meta["val"] for node in ahead]
    return Split(*modules, module, axes, [v.shape for v in values], [layout_of(v) for v in values])


def layout_of(tensor: Tensor) -> list[int]:
    """The axes of a tensor in memory order: largest stride first."""
    return sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))


def extract(module: fx.GraphModule, results: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy of the module that returns these results and changes none of its inputs."""
    graph, names = copy.deepcopy(module.graph), {node.name for node in results}
    (end,) = graph.find_nodes(op="output")
    end.args = (tuple(node for node in graph.nodes if node.name in names),)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    # Built last, because this generates the code. Constants, such as frozen layers, are shared: they may be large.
    return fx.GraphModule(module, graph)


def dependence(graph: fx.Graph, kinds: dict[fx.Node, str]) -> dict[fx.Node, set[str]]:
    """The kinds of inputs that each operation depends on.

    Tensors that are changed in place, and the operations that change them, count as depending on the weights, so that
    they stay in the step.
    """
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        if is_mutable(node):
            changed.update((node, *node.all_input_nodes[:1]))
    for node in reversed(graph.nodes):
        if node in changed and is_view(node):
            changed.update(node.all_input_nodes[:1])
    depends: dict[fx.Node, set[str]] = {}
    for node in graph.nodes:
        # the size of a tensor does not depend on its values
        sources = [depends[source] for source in node.all_input_nodes if not is_client_count(node)]
        depends[node] = {kinds[node]} if node in kinds else {WEIGHTS} if node in changed else set().union(*sources)
    return {node: depends[node] for node in depends if node.op == "call_function"}


def closure(graph: fx.Graph, is_start: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """The operations for which `is_start` holds, and all that depend on nothing but operations in this set."""
    members: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and not is_mutable(node):
            sources = node.all_input_nodes
            if is_start(node) or (sources and members.issuperset(sources)):
                members.add(node)
    return members


def is_narrowing(node: fx.Node) -> bool:
    """Whether the operation casts its input to a type of fewer bytes."""
    if node.target is not torch.ops.aten._to_copy.default or not node.all_input_nodes:
        return False
    return node.meta["val"].element_size() < node.all_input_nodes[0].meta["val"].element_size()


def is_mutable(node: fx.Node) -> bool:
    """Whether the operation changes one of its inputs in place."""
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def is_view(node: fx.Node) -> bool:
    """Whether the result shares memory with the operation's input."""
    if node.target is operator.getitem:  # one of a list of views, as made by chunk()
        return is_view(node.all_input_nodes[0])
    # reshape() ends in _unsafe_view, a view that is not marked as one
    return getattr(node.target, "is_view", False) or node.target is torch.ops.aten._unsafe_view.default


def is_client_count(node: fx.Node) -> bool:
    """Whether the node is the number of clients or a multiple of it, as inserted by `traced_for_any_number`."""
    return node.target in (torch.ops.aten.sym_size.int, operator.mul)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for a traced module or a function of tensors. Only sizes marked by `mark_clients` are dynamic."""

    # not every supported version of torch compiles a traced module directly
    def plain(*tensors: Tensor) -> Any:
        return function(*tensors)

    # torch limits the number of compilations for each code object, and many groups of runs would reach the limit.
    # Give each function a code object of its own.
    own_code = FunctionType(plain.__code__.replace(), plain.__globals__, closure=plain.__closure__)
    compiled_function = torch.compile(own_code, fullgraph=True)

    def call(*tensors: Tensor) -> Any:
        # Automatic dynamic shapes are tracked by line of code, which all functions compiled here have in common.
        with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT, automatic_dynamic_shapes=False):
            return compiled_function(*tensors)

    return call


def mark_clients(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> None:
    """Tell the compiler along which axes the number of clients may change from call to call."""
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
