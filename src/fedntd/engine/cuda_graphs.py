"""CUDA graphs: what a GPU does again and again, launched as one piece."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedntd.support.collector import collector_paused


def pool_on(device: torch.device) -> Any:
    """Memory for graphs; None where there are none. Graphs that are replayed one after the other, and of which nothing
    is needed once the next is replayed, can share it."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def urgent_stream_on(device: torch.device) -> torch.cuda.Stream | None:
    """A stream whose kernels go before those of others; None where there are none."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def side_by_side(functions: Sequence[Callable[[], Any]], streams: Sequence[torch.cuda.Stream | None]) -> None:
    """Functions that have nothing to do with each other: at once, all but the first on these streams, if there are."""
    first, *others = functions
    sides = [stream for stream in streams[: len(others)] if stream]
    if not sides:
        for function in functions:
            function()
        return
    here = torch.cuda.current_stream()
    for side in sides:
        side.wait_stream(here)
    try:
        for function, side in zip(others, sides, strict=True):
            with torch.cuda.stream(side):
                function()
        first()
    finally:  # if memory runs out, too: a capture ends with an error of its own if a stream is not back
        for side in sides:
            here.wait_stream(side)


def graph_of(function: Callable[[], Any], pool: Any) -> torch.cuda.CUDAGraph:
    """A CUDA graph of what `function` does."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    # to destroy a graph spoils the capture of another, and the collector may come across a forgotten one at any time
    with collector_paused(), torch.cuda.graph(graph, pool=pool):
        function()
    return graph


@dataclass(frozen=True)
class Captured:
    """A function as a graph. The function is kept, since it holds the tensors whose addresses the graph knows."""

    function: Callable[[], Any]
    graph: torch.cuda.CUDAGraph | None  # none on a CPU

    @torch.no_grad()
    def __call__(self) -> None:
        if self.graph:
            self.graph.replay()
        else:
            self.function()


@torch.no_grad()
def captured(function: Callable[[], Any], pool: Any) -> Captured:
    return Captured(function, graph_of(function, pool) if pool else None)
