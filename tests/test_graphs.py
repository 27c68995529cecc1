"""Captures, with a stand-in for CUDA: what matters here is what happens around them."""

import gc
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from fedntd.graphs import graph_of


@pytest.fixture(autouse=True)
def stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch):
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: nullcontext())


def test_no_garbage_is_collected_while_a_graph_is_captured():
    """A forgotten graph that is destroyed meanwhile would spoil it."""
    collecting: list[bool] = []
    _, result = graph_of(lambda: collecting.append(gc.isenabled()) or len(collecting), None)
    assert collecting == [True, True, False]  # warming up twice, capturing
    assert result == 3  # of the capture
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
