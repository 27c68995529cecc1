"""The device of a run, with a stand-in for a second GPU."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedntd import Config, Dataset, Federation, federate, tree
from fedntd.engine.devices import choose_device, to_device
from fedntd.runs.record import RunFolder
from fedntd.simulation.together import Member, start


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


def test_numbers_are_sent_to_a_device_of_any_kind():
    assert to_device(np.ones(2), torch.device("meta"), torch.float32).device.type == "meta"


def test_runs_on_two_gpus_can_take_turns(
    blobs: Dataset,
    tiny_net: Callable[[], nn.Module],
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
):
    run, current = Federation(make_config(), blobs, tiny_net()), []
    monkeypatch.setattr("fedntd.simulation.federation.make_current", current.append)
    list(run)
    assert current == [run.device] * run.rounds


def test_what_clients_keep_goes_home_without_passing_through_the_device(
    blobs: Dataset, tiny_net: Callable[[], nn.Module], make_config: Callable[..., Config], tmp_path: Path
):
    """A device that does not hold the state of all clients could not take it from a checkpoint either."""
    config = make_config(algorithm={"name": "scaffold"})
    list(federate(config, blobs, tiny_net(), out=tmp_path))
    run = Federation(config, blobs, tiny_net())
    run.device = torch.device("meta")  # and its clients' home stays the host
    with RunFolder(tmp_path, run.config, resume=True) as folder:
        folder.start = lambda *_: None  # type: ignore[method-assign]
        start(Member(0, run, folder))
    assert {leaf.device.type for leaf in tree.leaves({"w": run.state.w, "server": run.state.server})} == {"meta"}
    assert {leaf.device.type for own in run.state.own.values() for leaf in tree.leaves(own)} == {"cpu"}
