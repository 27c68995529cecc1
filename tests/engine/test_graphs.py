"""Captures, with a stand-in for CUDA: these tests are about what happens around a capture."""

import gc
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from fedntd.engine.cuda_graphs import graph_of, side_by_side


@pytest.fixture(autouse=True)
def stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch):
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())


def test_no_garbage_is_collected_while_a_graph_is_captured():
    """Destroying an unused graph during a capture would spoil the capture."""
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


@pytest.mark.parametrize("which", ["first", "second", "third", "none"])
def test_streams_come_together_again_if_memory_runs_out(which: str):
    """Otherwise the capture would end with another error, which is not recognised as out of memory."""
    order: list[str] = []
    names = ["first", "second", "third"]

    def function(name: str) -> None:
        order.append(name)
        if name == which:
            raise torch.OutOfMemoryError

    main: Any = torch.cuda.current_stream()
    sides: list[Any] = [MagicMock() for _ in range(3)]  # one more than is needed
    main.wait_stream = lambda stream: order.append(f"back {sides.index(stream)}")
    for i, side in enumerate(sides):
        side.wait_stream = lambda stream, i=i: order.append(f"away {i}")
    try:
        side_by_side([partial(function, name) for name in names], sides)
    except torch.OutOfMemoryError:
        assert which != "none"
    began = ["second", "third", "first"]  # all streams have something to do before this one
    began = began[: began.index(which) + 1] if which in began else began
    assert order == ["away 0", "away 1", *began, "back 0", "back 1"]


def test_without_streams_one_comes_after_the_other():
    order: list[int] = []
    side_by_side([partial(order.append, i) for i in range(3)], [None, None])
    assert order == [0, 1, 2]
