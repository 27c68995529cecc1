"""CUDA graphs: work that a GPU repeats many times, launched as one piece."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedntd.support.collector import collector_paused


def pool_on(device: torch.device) -> Any:
    """A memory pool for graphs; None on a CPU.

    Graphs may share a pool if they are replayed one after the other and the results of one are not needed once the next
    is replayed.
    """
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def urgent_stream_on(device: torch.device) -> torch.cuda.Stream | None:
    """A stream whose kernels take precedence over those of other streams; None on a CPU."""
    return torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None


def side_by_side(functions: Sequence[Callable[[], Any]], streams: Sequence[torch.cuda.Stream | None]) -> None:
    """Run independent functions at the same time: the first on the current stream, the others on `streams`.

    Without streams, run them one after the other.
    """
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
    finally:  # also if memory runs out: a capture with an unjoined stream raises another error, which hides the first
        for side in sides:
            here.wait_stream(side)


def graph_of(function: Callable[[], Any], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture `function` as a CUDA graph, after two calls to warm up."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    # Destroying a graph during the capture of another one spoils the capture, and the collector may do so at any time.
    with collector_paused(), torch.cuda.graph(graph, pool=pool):
        function()
    return graph


@dataclass(frozen=True)
class Captured:
    """A captured function. It is kept, because it holds the tensors whose addresses are in the graph."""

    function: Callable[[], Any]
    graph: torch.cuda.CUDAGraph | None  # None on a CPU, where the function itself is called

    @torch.no_grad()
    def __call__(self) -> None:
        if self.graph:
            self.graph.replay()
        else:
            self.function()


@torch.no_grad()
def capture(function: Callable[[], Any], pool: Any) -> Captured:
    """Capture `function` in the memory of `pool`. Without a pool, as on a CPU, calls run the function itself."""
    return Captured(function, graph_of(function, pool) if pool else None)
