"""A step as a graph of plain operations, which can be compiled: vmap and grad are resolved in it, our convolutions
among them, which the compiler could not follow through vmap itself.

A traced graph has the number of clients written into it. So that one graph, compiled once, serves every number, the
step is traced twice, with two numbers of clients, and whatever differs between the two graphs in proportion to them
becomes a multiple of the number that a call comes with. (Tracing with symbols in place of sizes would be the textbook
way, but several of vmap's rules put the number in.)
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

NUMBERS = 7, 11  # of clients, to trace with: primes, so that no other size is by chance a multiple of both


def traced(step: Callable[..., None], tensors: Sequence[Tensor]) -> fx.GraphModule:
    """`step` as a graph for tensors of just these shapes; nothing is computed."""
    return make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def traced_for_any_number(
    step: Callable[..., None], tensors: Sequence[Tensor], axes: Sequence[int | None]
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


def of_length(number: int, tensor: Tensor, axis: int | None) -> Tensor:
    """A tensor like this one, but for its length along `axis`."""
    if axis is None:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = number
    return tensor.new_empty(shape)


def compiled(module: fx.GraphModule) -> Callable[..., Any]:
    # as a function: torch.compile does not take a traced module as it is in every version
    step = torch.compile(lambda *tensors: module(*tensors), fullgraph=True)

    def call(*tensors: Tensor) -> Any:
        # some operations (a grouped convolution) are compiled anew for every number of clients, however it is marked
        with torch._dynamo.config.patch(recompile_limit=64):
            return step(*tensors)

    return call


def mark_clients(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> None:
    """Tell the compiler along which axes the number of clients may change from call to call."""
    for tensor, axis in zip(tensors, axes, strict=True):
        if axis is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
