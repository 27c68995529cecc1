"""The device of a run, with a stand-in for a second GPU."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedntd import Config, Dataset, Federation
from fedntd.devices import choose_device


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that were made current."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    return devices


def test_the_second_gpu_becomes_the_current_one(current: list, monkeypatch: pytest.MonkeyPatch):
    """Kernels are launched and graphs captured there."""
    second = torch.device("cuda:1")
    monkeypatch.setattr(torch, "empty", lambda *_, device: SimpleNamespace(device=torch.device(device)))
    assert choose_device(Config(device="cuda:1")) == second
    assert current == [second]
    assert choose_device(Config(device="cpu")) == torch.device("cpu")
    assert current == [second]


def test_runs_on_two_gpus_can_take_turns(
    blobs: Dataset,
    tiny_net: Callable[[], nn.Module],
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
):
    run, current = Federation(make_config(), blobs, tiny_net()), []
    monkeypatch.setattr("fedntd.federation.make_current", current.append)
    list(run)
    assert current == [run.device] * run.rounds
