"""Run folders under fire: killed, interrupted, full, damaged, contested."""

import json
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save
from torch import nn

from fedntd import Config, Dataset, Diverged, Federation, FedntdError, Record, federate, federate_together, read_run
from fedntd.data.dataset import Part
from fedntd.runs.record import RunFolder, read_records
from started import Started

Net = Callable[[], nn.Module]
MakeConfig = Callable[..., Config]

# Real images and a small network: rounds take some hundredths of a second. The method has server and client state.
SMALL_RUN = """
checkpoint_seconds = 0
device = "cpu"
[algorithm]
name = "stateful:Remembering"
[model]
name = "stateful:Little"
[federation]
clients = 100
ratio = 0.02
rounds = 25
local_epochs = 1
[measure]
local_every = 0
"""


def finish(process: Started, code: int = 0) -> str:
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return errors


def numbers(folder: Path) -> list[dict]:
    """All records, without the seconds they took."""
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_killed_at_any_moment_and_resumed_it_is_the_same_run(tmp_path: Path):
    config = tmp_path / "small.toml"
    config.write_text(SMALL_RUN)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    finish(Started("run", str(config), "--out", str(undisturbed)))

    chance = random.Random(1)
    kills = 0
    arguments = [str(config), "--out", str(killed)]
    while kills < 4:
        done = len(read_records(killed / "records.jsonl"))
        process = Started("run", *arguments)
        while len(read_records(killed / "records.jsonl")) < done + 2 and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)  # somewhere in a round, in a record or in a checkpoint
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        assert read_run(killed).status == "interrupted"
        arguments = ["--resume", "--out", str(killed)]
    assert kills >= 2
    finish(Started("run", "--resume", "--out", str(killed)))

    assert numbers(killed) == numbers(undisturbed)
    assert [r["round"] for r in numbers(killed)] == list(range(1, 26))
    one, other = (load_file(folder / "checkpoint.safetensors") for folder in (undisturbed, killed))
    assert one.keys() == other.keys()
    assert any(name.startswith("own/") for name in one)
    assert any(name.startswith("server/") for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not list(killed.glob("*.part"))
    assert read_run(killed).status == "finished"


def test_ctrl_c_keeps_every_finished_round(tmp_path: Path):
    config = tmp_path / "small.toml"
    config.write_text(SMALL_RUN.replace("checkpoint_seconds = 0", "checkpoint_seconds = 1000"))
    folder = tmp_path / "run"
    process = Started("run", str(config), "--out", str(folder))
    while len(read_records(folder / "records.jsonl")) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert f"go on with: fedntd run --resume --out {folder}" in finish(process, code=130)
    kept = len(numbers(folder))
    errors = finish(Started("run", "--resume", "--out", str(folder)))
    assert f"round {kept + 1}/25" in errors
    assert f"round {kept}/25" not in errors  # it was not played again
    assert len(numbers(folder)) == 25


def test_ctrl_c_pressed_again_and_again_ends_it_no_worse(tmp_path: Path):
    """A second interrupt, while the first one makes the run save and wait for its threads."""
    config = tmp_path / "small.toml"
    config.write_text(SMALL_RUN.replace("checkpoint_seconds = 0", "checkpoint_seconds = 1000"))
    for gap in (0.001, 0.03):
        folder = tmp_path / f"every {gap} s"
        process = Started("run", str(config), "--out", str(folder), "--set", "federation.local_epochs=20")
        while len(read_records(folder / "records.jsonl")) < 2:
            time.sleep(0.01)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(gap)
        _, errors = process.communicate()
        assert "Traceback" not in errors
        assert process.returncode in (130, -signal.SIGINT)
        assert (folder / "checkpoint.safetensors").exists()
        assert not list(folder.glob("*.part"))


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stays(tmp_path: Path):
    """A limit on file size stands in for a full disk: from some point on, the system refuses to write."""
    config = tmp_path / "small.toml"
    config.write_text(SMALL_RUN)
    folder = tmp_path / "run"
    finish(Started("run", str(config), "--out", str(folder), "--set", "federation.rounds=2"))
    before = (folder / "checkpoint.safetensors").read_bytes()

    arguments = ("--resume", "--out", str(folder), "--set", "federation.rounds=12")
    errors = finish(Started("run", *arguments, before=partial(limit_file_size, len(before) // 2)), code=2)
    assert "cannot be written to: " in errors
    assert "the last checkpoint is kept: make room, then go on with --resume" in errors
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert not list(folder.glob("*.part"))
    finish(Started("run", *arguments))
    assert len(numbers(folder)) == 12


def limit_file_size(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def quick(make_config: MakeConfig, **sections: object) -> Config:
    return make_config(checkpoint_seconds=0.0, **sections)


def test_the_folder_holds_what_it_says(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    config = quick(make_config)
    records = list(federate(config, blobs, tiny_net(), out=tmp_path / "run"))
    run = read_run(tmp_path / "run")
    assert run.config == Federation(config, blobs, tiny_net()).config
    assert (run.config.data.name, run.config.model.name) == ("given:blobs", "given:TinyNet")
    assert run.records == records
    assert run.status == "finished"
    assert run.classes == ["0", "1", "2"]
    assert run.counts.shape == (6, 3)
    assert run.counts.sum() == 120
    assert run.environment["torch"] == torch.__version__
    names = sorted(f.name for f in (tmp_path / "run").iterdir())
    assert names == sorted(
        [
            ".lock",
            "config.toml",
            "environment.json",
            "partition.json",
            "records.jsonl",
            "checkpoint.safetensors",
            "status.json",
        ]
    )


def test_more_rounds_can_be_asked_for(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    short, longer = quick(make_config), quick(make_config, federation={"rounds": 5})
    list(federate(short, blobs, tiny_net(), out=tmp_path / "a"))
    added = list(federate(longer, blobs, tiny_net(), out=tmp_path / "a", resume=True))
    assert [r.round for r in added] == [4, 5]
    list(federate(longer, blobs, tiny_net(), out=tmp_path / "b"))
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
    assert len(json.loads((tmp_path / "a/environment.json").read_text())) == 2


def test_another_config_is_not_resumed(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    other = quick(make_config, optimiser={"lr": 0.2})
    with pytest.raises(FedntdError, match=r"was run with optimiser\.lr = 0\.1, not 0\.2"):
        list(federate(other, blobs, tiny_net(), out=tmp_path / "run", resume=True))


def test_other_data_or_another_model_is_not_resumed(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    before = (tmp_path / "run/records.jsonl").read_text()
    longer = quick(make_config, federation={"rounds": 4})
    x, y = blobs.train
    fewer = replace(blobs, train=Part(x[1:], y[1:]))
    with pytest.raises(FedntdError, match=r"run was run on other data: .*; resume it with the data it began with"):
        list(federate(longer, fewer, tiny_net(), out=tmp_path / "run", resume=True))
    larger = tiny_net()
    larger.head = nn.Linear(5, 3, bias=False)
    with pytest.raises(FedntdError, match=r"run was run with another model: .*; resume it with the model it began"):
        list(federate(longer, blobs, larger, out=tmp_path / "run", resume=True))
    assert (tmp_path / "run/records.jsonl").read_text() == before


def test_a_run_is_never_overwritten(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    before = (tmp_path / "run/records.jsonl").read_text()
    with pytest.raises(FedntdError, match="already holds a run; use --resume"):
        list(federate(quick(make_config, seed=1), blobs, tiny_net(), out=tmp_path / "run"))
    assert (tmp_path / "run/records.jsonl").read_text() == before
    with pytest.raises(FedntdError, match="there is no run to resume"):
        list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "none", resume=True))
    assert not (tmp_path / "none").exists()


def test_two_processes_cannot_write_one_folder(tmp_path: Path, make_config: MakeConfig):
    config = tmp_path / "small.toml"
    config.write_text(SMALL_RUN)
    with RunFolder(tmp_path / "run", make_config(), resume=False):
        errors = finish(Started("run", str(config), "--out", str(tmp_path / "run")), code=2)
    assert "another process is writing to" in errors


def test_a_look_at_a_folder_does_not_keep_a_run_from_starting(tmp_path: Path, make_config: MakeConfig):
    """`is_locked` takes the lock of a run for a moment."""
    looking = FileLock(tmp_path / ".lock", thread_local=False)
    looking.acquire()
    moment = threading.Timer(0.1, looking.release)
    moment.start()
    with RunFolder(tmp_path, make_config(), resume=False):
        assert not looking.is_locked
    moment.join()


def test_a_diverged_run_is_failed_and_keeps_its_records(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    config = quick(make_config, optimiser={"lr": 1e22, "momentum": 0.0}, federation={"rounds": 50})
    with pytest.raises(Diverged):
        list(federate(config, blobs, tiny_net(), out=tmp_path / "run"))
    run = read_run(tmp_path / "run")
    assert run.status == "failed"
    assert "not finite after round" in run.reason
    assert len(run.records) >= 1
    assert run.records[-1].round < 50


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None, save({"q": torch.ones(1)}, {"round": "3"})])
def test_a_damaged_checkpoint_is_one_sentence(
    damage: bytes | None, tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    file = tmp_path / "run/checkpoint.safetensors"
    damaged = file.read_bytes()[:-10] if damage is None else damage
    file.write_bytes(damaged)
    with pytest.raises(FedntdError, match=r"checkpoint\.safetensors cannot be read .*put a copy back") as error:
        list(
            federate(quick(make_config, federation={"rounds": 9}), blobs, tiny_net(), out=tmp_path / "run", resume=True)
        )
    assert "\n" not in str(error.value)
    assert file.read_bytes() == damaged
    assert len(numbers(tmp_path / "run")) == 3


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.toml", "", "config.toml is damaged: it is empty"),
        ("environment.json", "[3]", "environment.json is damaged: it is not a list of tables"),
        ("partition.json", "[]", "partition.json is damaged: it has no counts"),
    ],
)
def test_a_damaged_file_of_a_run_to_resume_is_one_sentence(
    name: str, content: str, sentence: str, tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    folder = tmp_path / "run"
    list(federate(quick(make_config), blobs, tiny_net(), out=folder))
    before = (folder / "checkpoint.safetensors").read_bytes()
    (folder / name).write_text(content)
    with pytest.raises(FedntdError, match=f"{sentence}; put a copy back, or delete .*run to start this run anew"):
        list(federate(quick(make_config, federation={"rounds": 9}), blobs, tiny_net(), out=folder, resume=True))
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert len(numbers(folder)) == 3


def test_a_finished_run_without_its_checkpoint_keeps_its_records(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    """Users may delete large files, such as the checkpoint."""
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    (tmp_path / "run/checkpoint.safetensors").unlink()
    with pytest.raises(FedntdError, match=r"has finished, but its checkpoint is gone, .*put a copy back, or delete"):
        list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run", resume=True))
    assert len(numbers(tmp_path / "run")) == 3
    assert read_run(tmp_path / "run").status == "finished"


def test_a_half_written_last_record_is_not_one(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    file = tmp_path / "run/records.jsonl"
    file.write_text(file.read_text() + '{"round": 4, "accu')
    assert [r.round for r in read_run(tmp_path / "run").records] == [1, 2, 3]
    longer = quick(make_config, federation={"rounds": 4})
    list(federate(longer, blobs, tiny_net(), out=tmp_path / "run", resume=True))
    assert [r["round"] for r in numbers(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_resumed_run_keeps_the_precision_it_began_with(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    """Here "auto" is fp32. The run was started on a machine where it is bf16."""
    out = tmp_path / "run"

    def go_on(rounds: int, resume: bool = True, precision: str = "auto") -> list[str]:
        config = make_config(precision=precision, federation={"rounds": rounds})
        list(federate(config, blobs, tiny_net(), out, resume))
        return [entry["precision"] for entry in json.loads((out / "environment.json").read_text())]

    assert go_on(1, resume=False) == ["fp32"]
    file = out / "environment.json"
    file.write_text(file.read_text().replace('"fp32"', '"bf16"'))
    assert go_on(2) == ["bf16", "bf16"]
    assert read_run(out).config.precision == "auto"  # what was asked for
    with pytest.raises(FedntdError, match=r"was run with precision = 'auto', not 'fp32'"):
        go_on(3, precision="fp32")


def test_runs_that_began_with_other_precisions_are_not_mixed(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    """One run was started where "auto" is bf16, another one starts here. Each gives the same as it would alone."""

    def losses(name: str, seeds: list[int], rounds: int, resume: bool = False) -> list[float]:
        configs = [
            make_config(precision="auto", engine="vectorised", seed=seed, federation={"rounds": rounds})
            for seed in seeds
        ]
        outs = [tmp_path / name / str(seed) for seed in seeds]
        for _, outcome in federate_together(configs, outs, resume, blobs, tiny_net()):
            assert isinstance(outcome, Record)
        return [read_run(out).records[-1].train_loss for out in outs]

    (alone,) = losses("alone", [1], 2)
    losses("beside", [0], 1)
    file = tmp_path / "beside" / "0" / "environment.json"
    file.write_text(file.read_text().replace('"fp32"', '"bf16"'))
    _, second = losses("beside", [0, 1], 2, resume=True)
    assert second == alone


def test_a_resumed_config_is_the_new_one(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    longer = quick(make_config, federation={"rounds": 4})
    list(federate(longer, blobs, tiny_net(), out=tmp_path / "run", resume=True))
    assert read_run(tmp_path / "run").config.federation.rounds == 4


def test_fewer_rounds_than_were_played_are_refused(
    tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig
):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    with pytest.raises(FedntdError, match=r"has played 3 rounds already, more than federation\.rounds = 2"):
        list(
            federate(quick(make_config, federation={"rounds": 2}), blobs, tiny_net(), out=tmp_path / "run", resume=True)
        )
    assert read_run(tmp_path / "run").config.federation.rounds == 3


def test_objects_must_be_handed_over_again(tmp_path: Path, blobs: Dataset, tiny_net: Net, make_config: MakeConfig):
    list(federate(quick(make_config), blobs, tiny_net(), out=tmp_path / "run"))
    with pytest.raises(FedntdError, match="this run's data 'blobs' was an object in Python"):
        list(federate(read_run(tmp_path / "run").config, out=tmp_path / "run", resume=True))


def test_what_the_engine_notes_is_in_the_last_entry(
    blobs: Dataset, tiny_net: Net, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A note may be written in any round, and belongs to the current start alone."""
    append, notes = RunFolder.append, ["one by one, since it has a loop", "compiled anew for each number of clients"]

    def noting(folder: RunFolder, record: Record) -> None:
        append(folder, record)
        if record.round == 2:
            folder.put_notes(notes)

    monkeypatch.setattr(RunFolder, "append", noting)
    monkeypatch.setattr(RunFolder, "put_notes", partialmethod(put_only_some, RunFolder.put_notes))
    list(federate(make_config(federation={"rounds": 2}), blobs, tiny_net(), out=tmp_path / "run"))
    assert read_run(tmp_path / "run").environment["notes"] == notes
    list(federate(make_config(federation={"rounds": 3}), blobs, tiny_net(), out=tmp_path / "run", resume=True))
    first, second = read_run(tmp_path / "run").starts
    assert first["notes"] == notes
    assert "notes" not in second


def put_only_some(folder: RunFolder, put: Callable[[RunFolder, list[str]], None], notes: list[str]) -> None:
    """The engine of a CPU has no notes."""
    if notes:
        put(folder, notes)
