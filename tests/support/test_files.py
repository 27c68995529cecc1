import os
from pathlib import Path

import pytest

from fedntd.errors import FedntdError
from fedntd.support.files import atomic, put, read_json, whole


def test_a_file_is_replaced_when_all_is_written(tmp_path: Path):
    file = tmp_path / "new" / "page.html"
    for text in ("one", "two"):
        with whole(file) as aside:
            aside.write_text(text)
            assert aside.suffix == ".html"  # from which some libraries choose the format
            assert not file.exists() or file.read_text() == "one"
        assert file.read_text() == text
    assert [*file.parent.iterdir()] == [file]


def test_two_processes_write_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "sweep.toml"
    with whole(file) as mine:
        mine.write_text("mine")
        monkeypatch.setattr("os.getpid", lambda: 1)
        with whole(file) as theirs:
            theirs.write_text("theirs")
    assert file.read_text() == "mine"
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("not that"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException):
    file = tmp_path / "page.html"
    file.write_text("old")
    expected = FedntdError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised, whole(file) as aside:  # noqa: PT012 (the file is half-written first)
        aside.write_text("hal")
        raise error
    assert file.read_text() == "old"
    assert [*tmp_path.iterdir()] == [file]
    if isinstance(error, OSError):
        assert str(raised.value) == f"{file} cannot be written: No space left on device"


def test_what_a_killed_process_left_is_overwritten_by_the_next_holder_of_the_lock(tmp_path: Path):
    file = tmp_path / "status.json"
    (tmp_path / "status.json.part").write_text("half of an ea")  # the name in docs/run-folder.md
    with atomic(file, locked=True) as aside:
        assert aside.name == "status.json.part"
        aside.write_text("{}")
    assert file.read_text() == "{}"
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = []
    monkeypatch.setattr("os.fsync", lambda _: done.append("fsync"))
    move = os.replace
    monkeypatch.setattr("os.replace", lambda one, other: (done.append("replace"), move(one, other)))
    for synced in (True, False):
        with atomic(tmp_path / "checkpoint", synced=synced) as aside:
            aside.write_text("weights")
    assert done == ["fsync", "replace", "replace"]


def test_an_atomic_write_leaves_its_error_to_the_caller_and_makes_no_folder(tmp_path: Path):
    gone = tmp_path / "gone"
    with pytest.raises(FileNotFoundError), atomic(gone / "status.json") as aside:
        aside.write_text("{}")
    assert not gone.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FedntdError, match=r"page\.html cannot be written: (File exists|Not a directory)"):
        put(tmp_path / "file" / "page.html", "")


def test_json_that_cannot_be_read_is_one_sentence(tmp_path: Path):
    file = tmp_path / "status.json"
    with pytest.raises(FedntdError, match=r"status\.json cannot be read: "):
        read_json(file)
    file.write_text('{"status": ')
    with pytest.raises(FedntdError, match=r"status\.json cannot be read: "):
        read_json(file)
