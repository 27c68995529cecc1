"""A step as a graph of plain operations, which can be compiled: vmap and grad are resolved in it, our convolutions
among them, which the compiler could not follow through vmap itself.

A traced graph has the number of clients written into it. So that one graph, compiled once, serves every number, the
step is traced twice, with two numbers of clients, and whatever differs between the two graphs in proportion to them
becomes a multiple of the number that a call comes with. (Tracing with symbols in place of sizes would be the textbook
way, but several of vmap's rules put the number in.)

What a step computes from the context alone (the global weights in the precision that the network runs in, the
difference of two control variates) is the same in every step of a round: `split` takes it out, to be computed once.
What it computes from the context and the samples (a teacher's answers) does not have to wait for the weights. And the
weights in the precision of the network are best computed where new weights are, while they are at hand, for the next
step.
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

# kinds of a step's inputs: what changes in it, what of the context is a client's own or shared by all, the samples
WEIGHTS, OWN, SHARED, BATCH = "weights", "own", "shared", "batch"
# some operations (a grouped convolution) are compiled anew for every number of clients, however it is marked
RECOMPILE_LIMIT = 64
Foreseeable = Callable[[list[torch.Size]], bool]
NUMBERS = 7, 11  # of clients, to trace with: primes, so that no other size is by chance a multiple of both
# rows, columns or depth of a product with which matrix units have too little to do; and a depth that needs them
FEW, MANY = 16, 1024


def traced(step: Callable[..., Any], tensors: Sequence[Tensor]) -> fx.GraphModule:
    """`step` as a graph for tensors of just these shapes; nothing is computed."""
    rules = {torch.ops.aten.bmm.default: slim_product, torch.ops.aten.ones_like.default: plain_ones}
    return make_fx(step, rules, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def slim_product(left: Tensor, right: Tensor) -> Tensor:
    """A product of few columns, say that of a last layer of ten classes, as a sum: the compiler merges that with what
    comes before and after it, while a library's kernel by itself would take longer than the few numbers do. But not one
    over many numbers that are far from each other in memory, which takes the compiler several times as long."""
    (_, rows, depth), columns = left.shape, right.shape[2]
    scattered = depth > FEW and left.stride(2) != 1
    if min(rows, depth, columns) > FEW or depth > MANY or scattered:
        return NotImplemented
    wide = torch.promote_types(left.dtype, torch.float32)
    terms = left.to(wide)[..., None] * right.to(wide)[:, None]
    # a short sum is written out, so that it is no reduction
    return (terms.sum(2) if depth > FEW else reduce(torch.add, terms.unbind(2))).to(left.dtype)


def plain_ones(like: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """A gradient begins with ones in the shape of the loss; that is no reason to wait until the loss is known."""
    return torch.ones(like.shape, dtype=dtype or like.dtype, device=device or like.device)


def traced_for_any_number(
    step: Callable[..., Any], tensors: Sequence[Tensor], axes: Sequence[int | None]
) -> fx.GraphModule | None:
    """`step` as a graph for any number of clients, along `axes` of the tensors; None if it cannot be had."""
    graphs = [traced(step, [of_length(n, *each) for each in zip(tensors, axes, strict=True)]) for n in NUMBERS]
    first, second = (list(module.graph.nodes) for module in graphs)
    if [(node.op, node.target) for node in first] != [(node.op, node.target) for node in second]:
        return None
    graph = graphs[0].graph
    inputs = [node for node in first if node.op == "placeholder"]
    counted, axis = next((node, axis) for node, axis in zip(inputs, axes, strict=True) if axis is not None)
    with graph.inserting_after(inputs[-1]):
        number = graph.call_function(torch.ops.aten.sym_size.int, (counted, axis))
    multiples = {1: number}

    def multiple(times: int) -> fx.Node:
        if times not in multiples:
            with graph.inserting_after(number):
                multiples[times] = graph.call_function(operator.mul, (number, times))
        return multiples[times]

    for node, other in zip(first, second, strict=True):
        node.meta["axis"] = differing_axis(node, other)
        values, form = pytree.tree_flatten((node.args, dict(node.kwargs)))
        others, other_form = pytree.tree_flatten((other.args, dict(other.kwargs)))
        if form != other_form:
            return None
        for i, (a, b) in enumerate(zip(values, others, strict=True)):
            if isinstance(a, fx.Node) or a == b:
                continue
            if not isinstance(a, int) or a % NUMBERS[0] or a * NUMBERS[1] != b * NUMBERS[0]:
                return None
            values[i] = multiple(a // NUMBERS[0])
        node.args, node.kwargs = pytree.tree_unflatten(values, form)
    graph.lint()
    graphs[0].recompile()
    return graphs[0]


def differing_axis(node: fx.Node, other: fx.Node) -> int | None:
    """The axis along which two traced tensors differ in length."""
    sizes = [getattr(each.meta.get("val"), "shape", ()) for each in (node, other)]
    return next((axis for axis, (a, b) in enumerate(zip(*sizes, strict=True)) if a != b), None)


def of_length(number: int, tensor: Tensor, axis: int | None) -> Tensor:
    """A tensor like this one, but for its length along `axis`."""
    if axis is None:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = number
    return tensor.new_empty(shape)


class Split(NamedTuple):
    """`step(*inputs, *ahead(*inputs), *kept)` is what the whole was; at first, `kept` is `once(*inputs)`, and the step
    keeps it up to date itself."""

    once: fx.GraphModule
    ahead: fx.GraphModule
    step: fx.GraphModule
    once_axes: list[int | None]  # those of the clients, where that is known
    ahead_shapes: list[torch.Size]
    ahead_layouts: list[list[int]]  # axes as they follow each other in memory, which views of it count on


def split(module: fx.GraphModule, kinds: Sequence[str], may_foresee: Foreseeable = lambda shapes: True) -> Split:
    """Take out what depends only on the context, and casts of the weights: to be computed `once`; and `ahead` of
    several steps what depends on the batch and on what clients share: they share it for several batches as well, while
    weights of their own would have to be copied for each. Unless `may_foresee` says no to the shapes of that."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    depends = dependence(graph, dict(zip(inputs, kinds, strict=True)))
    new_values = dict(node.all_input_nodes for node in graph.nodes if node.target is torch.ops.aten.copy_.default)
    carried = closed(graph, lambda node: is_narrowing(node) and node.all_input_nodes[0] in new_values)
    prefetched = {node for node in depends if depends[node] == {SHARED, BATCH}}
    ahead = [node for node in graph.nodes if node in prefetched and not prefetched.issuperset(node.users)]
    if not may_foresee([node.meta["val"].shape for node in ahead]):
        prefetched, ahead = set(), []
    taken = carried | prefetched | {node for node in depends if depends[node] and depends[node] <= {OWN, SHARED}}

    # views cost nothing: they are made again from what is kept
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in taken or (node in needed and is_view(node)):
            needed.update(node.all_input_nodes)
    fixed = (taken - prefetched) & needed
    kept = [node for node in graph.nodes if node in fixed and node.op == "call_function" and not is_view(node)]
    modules = extracted(module, kept), extracted(module, ahead)

    (end,) = graph.find_nodes(op="output")
    new = dict(new_values)
    with graph.inserting_before(end):
        for node in graph.nodes:
            if node in carried:
                new[node] = graph.node_copy(node, lambda source: new[source])
    after = inputs[-1]
    for node in [*ahead, *kept]:
        with graph.inserting_after(after):
            after = graph.placeholder(f"kept_{node.name}")
        if node in carried:
            with graph.inserting_before(end):
                graph.call_function(torch.ops.aten.copy_.default, (after, new[node]))
        node.replace_all_uses_with(after)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or is_mutable(node))
    graph.lint()
    module.recompile()
    axes, values = [node.meta.get("axis") for node in kept], [node.meta["val"] for node in ahead]
    return Split(*modules, module, axes, [v.shape for v in values], [layout_of(v) for v in values])


def layout_of(tensor: Tensor) -> list[int]:
    """Its axes, those with the largest steps in memory first."""
    return sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))


def extracted(module: fx.GraphModule, results: Sequence[fx.Node]) -> fx.GraphModule:
    """A copy that changes nothing and returns these results."""
    graph, names = copy.deepcopy(module.graph), {node.name for node in results}
    (end,) = graph.find_nodes(op="output")
    end.args = (tuple(node for node in graph.nodes if node.name in names),)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    # only now, since it writes the code; constants, such as frozen layers, stay the same tensors: they may be large
    return fx.GraphModule(module, graph)


def dependence(graph: fx.Graph, kinds: dict[fx.Node, str]) -> dict[fx.Node, set[str]]:
    """On which kinds of inputs each operation's result depends; what is changed in place, and what changes it, is taken
    to depend on the weights, so that it stays where it is."""
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        if is_mutable(node):
            changed.update((node, *node.all_input_nodes[:1]))
    for node in reversed(graph.nodes):
        if node in changed and is_view(node):
            changed.update(node.all_input_nodes[:1])
    found: dict[fx.Node, set[str]] = {}
    for node in graph.nodes:
        # the size of a tensor says nothing of what is in it
        sources = [found[source] for source in node.all_input_nodes if not is_number(node)]
        found[node] = {kinds[node]} if node in kinds else {WEIGHTS} if node in changed else set().union(*sources)
    return {node: found[node] for node in found if node.op == "call_function"}


def closed(graph: fx.Graph, begins: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """The nodes that begin such a set, and all that depends on nothing else."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and not is_mutable(node):
            sources = node.all_input_nodes
            if begins(node) or (sources and found.issuperset(sources)):
                found.add(node)
    return found


def is_narrowing(node: fx.Node) -> bool:
    """Whether it writes its input in a type of fewer bytes."""
    if node.target is not torch.ops.aten._to_copy.default or not node.all_input_nodes:
        return False
    return node.meta["val"].element_size() < node.all_input_nodes[0].meta["val"].element_size()


def is_mutable(node: fx.Node) -> bool:
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def is_view(node: fx.Node) -> bool:
    """Whether its result shares the memory of what it is made from."""
    if node.target is operator.getitem:  # one of several views, of which chunk() makes a list
        return is_view(node.all_input_nodes[0])
    # reshape() ends in the other one, which is a view without saying so
    return getattr(node.target, "is_view", False) or node.target is torch.ops.aten._unsafe_view.default


def is_number(node: fx.Node) -> bool:
    """Whether it is the number of clients, or a multiple of it, as `traced_for_any_number` puts them in."""
    return node.target in (torch.ops.aten.sym_size.int, operator.mul)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch.compile does not take a traced module as it is in every version
    def plain(*tensors: Tensor) -> Any:
        return function(*tensors)

    # what is compiled is kept by code object, up to a limit that many groups of runs would reach: each has its own
    own = FunctionType(plain.__code__.replace(), plain.__globals__, closure=plain.__closure__)
    step = torch.compile(own, fullgraph=True)

    def call(*tensors: Tensor) -> Any:
        # dynamo remembers, by line of code, which sizes have changed; here that would be a mixture of all functions'
        with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT, automatic_dynamic_shapes=False):
            return step(*tensors)

    return call


def mark_clients(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> None:
    """Tell the compiler along which axes the number of clients may change from call to call."""
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
