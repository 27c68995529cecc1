"""Captures, with a stand-in for CUDA: what matters here is what happens around them."""

import gc
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from fedntd.graphs import graph_of, side_by_side


@pytest.fixture(autouse=True)
def stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch):
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())


def test_no_garbage_is_collected_while_a_graph_is_captured():
    """A forgotten graph that is destroyed meanwhile would spoil it."""
    collecting: list[bool] = []
    graph_of(lambda: collecting.append(gc.isenabled()), None)
    assert collecting == [True, True, False]  # warming up twice, capturing
    assert gc.isenabled()


def test_the_collector_is_left_as_it_was():
    def fails_at_capture() -> None:
        if not gc.isenabled():
            raise RuntimeError("not capturable")

    with pytest.raises(RuntimeError):
        graph_of(fails_at_capture, None)
    assert gc.isenabled()
    gc.disable()
    try:
        graph_of(lambda: None, None)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("which", ["plain", "urgent", "neither"])
def test_streams_come_together_again_if_memory_runs_out(which: str):
    """Else the capture would end with another error, which is not taken for what it is."""
    order: list[str] = []

    def function(name: str) -> None:
        order.append(name)
        if name == which:
            raise torch.OutOfMemoryError

    main, side = torch.cuda.current_stream(), MagicMock()
    main.wait_stream = lambda stream: order.append("together")
    side.wait_stream = lambda stream: order.append("apart")
    try:
        side_by_side(lambda: function("plain"), lambda: function("urgent"), side)
    except torch.OutOfMemoryError:
        assert which != "neither"
    assert (order[0], order[-1]) == ("apart", "together")
    assert order[1:-1] == (["urgent"] if which == "urgent" else ["urgent", "plain"])
