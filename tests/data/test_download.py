"""Downloads from a server on this machine that can also send errors, wrong bytes, and less than it promised."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedntd.data import download
from fedntd.data.download import Source
from fedntd.errors import FedntdError


class Server:
    """Sends what `bodies` has for a path; a path in `cut` gets only half of what its Content-Length says."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.bodies.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if self.path in outer.cut else body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("FEDNTD_MIRROR", raising=False)
    server = Server()
    yield server
    server.close()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDNTD_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def sha(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


CONTENT = {"a-ubyte": b"first content" * 50, "b-ubyte": b"second content" * 50}
ZIPPED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENT.items()}


@pytest.fixture
def tiny(server: Server, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the dataset "tiny": two gzipped files, each published at /one and at /two."""
    sources = tuple(
        Source(
            name,
            len(body),
            "md5:" + hashlib.md5(body).hexdigest(),
            tuple(f"{server.url}/{n}/{name}" for n in ("one", "two")),
        )
        for name, body in ZIPPED.items()
    )
    monkeypatch.setitem(download.SOURCES, "tiny", sources)
    monkeypatch.setitem(download.FILES, "tiny", {"": {name: sha(content) for name, content in CONTENT.items()}})
    server.bodies = {f"/one/{name}": body for name, body in ZIPPED.items()}
    return data / "tiny"


def files_in(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def quietly(_: str) -> None:
    pass


def test_fetch_puts_the_files_in_the_data_folder(tiny, server):
    assert download.check("tiny") == {"a-ubyte": "missing", "b-ubyte": "missing"}
    said = []
    assert download.fetch("tiny", said.append) == tiny
    assert files_in(tiny) == ZIPPED
    assert (tiny / "a-ubyte.gz").stat().st_mode & 0o444 == 0o444  # others may read a shared data folder
    assert download.check("tiny") == {"a-ubyte.gz": "ok", "b-ubyte.gz": "ok"}
    assert [line.split(",")[0] for line in said] == ["tiny: a-ubyte.gz", "tiny: b-ubyte.gz"]


def test_fetch_asks_for_nothing_that_is_there_and_whole(tiny, server):
    tiny.mkdir(parents=True)
    (tiny / "a-ubyte").write_bytes(CONTENT["a-ubyte"])  # not gzipped: whole all the same
    download.fetch("tiny", quietly)
    assert server.asked == ["/one/b-ubyte.gz"]
    download.fetch("tiny", quietly)
    assert server.asked == ["/one/b-ubyte.gz"]


def test_mirror_is_asked_first_and_the_publisher_next(tiny, server, monkeypatch):
    monkeypatch.setenv("FEDNTD_MIRROR", f"{server.url}/mirror/")
    server.bodies["/mirror/tiny/a-ubyte.gz"] = ZIPPED["a-ubyte.gz"]
    download.fetch("tiny", quietly)
    assert server.asked == ["/mirror/tiny/a-ubyte.gz", "/mirror/tiny/b-ubyte.gz", "/one/b-ubyte.gz"]
    assert files_in(tiny) == ZIPPED


def test_next_address_is_tried_when_one_fails(tiny, server):
    server.bodies["/two/a-ubyte.gz"] = server.bodies["/one/a-ubyte.gz"]
    server.bodies["/one/a-ubyte.gz"] = b"something else"
    download.fetch("tiny", quietly)
    assert server.asked[:2] == ["/one/a-ubyte.gz", "/two/a-ubyte.gz"]
    assert files_in(tiny) == ZIPPED


def break_download(server: Server, how: str) -> str:
    """Make /one/a-ubyte.gz fail, and return what the error must say."""
    if how == "cut":
        server.cut.add("/one/a-ubyte.gz")
        return r"no connection, or it was cut \(ChunkedEncodingError\)"
    if how == "checksum":
        server.bodies["/one/a-ubyte.gz"] = b"<html>please log in</html>"
        return "the file it sends has a wrong checksum"
    del server.bodies["/one/a-ubyte.gz"]
    return "the server answers 404 Not Found"


@pytest.mark.parametrize("how", ["cut", "checksum", "404"])
def test_failed_download_is_one_sentence_and_leaves_nothing(tiny, server, how):
    says = break_download(server, how)
    with pytest.raises(
        FedntdError, match=rf"a-ubyte.gz could not be downloaded \(.*/one/.*: {says}; .*/two/.* 404"
    ) as caught:
        download.fetch("tiny", quietly)
    assert str(caught.value).endswith("set FEDNTD_MIRROR to the address of a folder that has tiny/a-ubyte.gz")
    assert list(tiny.iterdir()) == []


@pytest.mark.parametrize("how", ["cut", "checksum", "404"])
def test_failed_download_leaves_the_files_that_are_there(tiny, server, how):
    download.fetch("tiny", quietly)
    break_download(server, how)
    with pytest.raises(FedntdError):
        download.install("tiny", download.SOURCES["tiny"][0], tiny)
    assert files_in(tiny) == ZIPPED
    (tiny / "a-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(FedntdError):
        download.fetch("tiny", quietly)
    assert files_in(tiny) == {**ZIPPED, "a-ubyte.gz": b"damaged"}


def test_no_server(tiny, server):
    server.close()
    with pytest.raises(FedntdError, match=r"no connection, or it was cut \(ConnectionError\)"):
        download.fetch("tiny", quietly)


def test_archive_whose_contents_are_wrong_is_refused(tiny, monkeypatch):
    monkeypatch.setitem(download.FILES, "tiny", {"": {"a-ubyte": sha(b"other"), "b-ubyte": sha(b"other")}})
    with pytest.raises(
        FedntdError, match=r"a-ubyte.gz was downloaded completely, but its contents have a wrong checksum"
    ):
        download.fetch("tiny", quietly)
    assert list(tiny.iterdir()) == []


def test_damaged_files_are_fetched_anew(tiny):
    download.fetch("tiny", quietly)
    whole = (tiny / "a-ubyte.gz").read_bytes()
    for damage in (b"", whole[:-3], whole[:30] + b"\0" + whole[31:], gzip.compress(b"other")):
        (tiny / "a-ubyte.gz").write_bytes(damage)
        assert download.check("tiny") == {"a-ubyte.gz": "damaged", "b-ubyte.gz": "ok"}
        download.fetch("tiny", quietly)
        assert files_in(tiny) == ZIPPED


def test_check_sees_through_another_gzip_of_the_same_content(tiny):
    tiny.mkdir(parents=True)
    (tiny / "a-ubyte.gz").write_bytes(gzip.compress(CONTENT["a-ubyte"], 1, mtime=123))
    assert (tiny / "a-ubyte.gz").read_bytes() != ZIPPED["a-ubyte.gz"]
    assert download.check("tiny") == {"a-ubyte.gz": "ok", "b-ubyte": "missing"}


def test_data_folder_that_cannot_be_written(tiny):
    tiny.parent.write_text("a file where the folder should be")
    with pytest.raises(FedntdError, match=r"tiny cannot be written: .*; FEDNTD_DATA can name another data folder"):
        download.fetch("tiny", quietly)


def test_without_pooch_the_sentence_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FedntdError, match="run: pip install pooch"):
        download.fetch("tiny", quietly)


def test_unknown_name_gets_a_suggestion(data):
    with pytest.raises(FedntdError, match="'cifar' is not a dataset that can be fetched; did you mean 'cifar10'"):
        download.fetch("cifar")
    with pytest.raises(FedntdError, match="dataset 'folder' has no checksums"):
        download.check("folder")


def test_pooch_is_not_imported_until_it_is_used():
    code = "import sys, fedntd.cli.data; sys.exit('pooch' in sys.modules or 'requests' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- archives ---------------------------------------------------------------------------------------------------


def tarball(files: dict[str, bytes], link: tuple[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link[0])
            member.type, member.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(member)
    return buffer.getvalue()


def publish(monkeypatch: pytest.MonkeyPatch, server: Server, archive: bytes, files: dict[str, bytes]) -> None:
    """A dataset "packed": an archive with `files` in the folder "inner"."""
    url = f"{server.url}/packed.tar.gz"
    monkeypatch.setitem(download.SOURCES, "packed", (Source("packed.tar.gz", len(archive), sha(archive), (url,)),))
    monkeypatch.setitem(download.FILES, "packed", {"inner": {name: sha(content) for name, content in files.items()}})
    server.bodies["/packed.tar.gz"] = archive


def test_archive_is_unpacked_and_replaces_a_damaged_folder(server, data, monkeypatch):
    files = {"x.bin": b"x" * 5000, "y.bin": b"y" * 5000}
    inner = {f"inner/{name}": content for name, content in files.items()}
    publish(monkeypatch, server, tarball({**inner, "readme.txt": b"hello"}), files)
    assert download.fetch("packed", quietly) == data / "packed"
    assert files_in(data / "packed") == {**inner, "readme.txt": b"hello"}
    (data / "packed/inner/x.bin").write_bytes(b"x" * 4999)
    (data / "packed/inner/y.bin").unlink()
    assert download.check("packed") == {"inner/x.bin": "damaged", "inner/y.bin": "missing"}
    download.fetch("packed", quietly)
    assert files_in(data / "packed") == {**inner, "readme.txt": b"hello"}


def test_files_may_lie_directly_in_the_datasets_folder(server, data, monkeypatch):
    publish(monkeypatch, server, b"", {"x.bin": b"x"})
    (data / "packed").mkdir(parents=True)
    (data / "packed/x.bin").write_bytes(b"x")
    assert download.check("packed") == {"x.bin": "ok"}


@pytest.mark.parametrize(
    "archive",
    [
        tarball({"inner/x.bin": b"x", "../../evil": b"evil"}),
        tarball({"inner/x.bin": b"x"}, link=("inner/link", "../../../evil")),
        tarball({"inner/x.bin": b"x"}, link=("inner/link", "/etc")),
        tarball({"inner/x.bin": b"x" * 9999})[:-20],
        b"no archive",
    ],
)
def test_archive_that_leads_out_or_is_damaged_is_refused(server, data, monkeypatch, archive):
    publish(monkeypatch, server, archive, {"x.bin": b"x"})
    with pytest.raises(FedntdError, match=r"packed.tar.gz cannot be unpacked: .*; nothing was changed"):
        download.fetch("packed", quietly)
    assert files_in(data.parent) == {}
    assert list((data / "packed").iterdir()) == []


def test_cinic_is_checked_by_counting(data, monkeypatch):
    counts = {"train/cat": "images:2", "test/cat": "images:1"}
    monkeypatch.setitem(download.FILES, "cinic10", {"CINIC-10": counts})
    for file in ("train/cat/1.png", "train/cat/2.png", "train/cat/notes.txt"):
        path = data / "cinic10" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert download.check("cinic10") == {"train/cat": "ok", "test/cat": "missing"}
    (data / "cinic10/train/cat/1.png").unlink()
    assert download.check("cinic10")["train/cat"] == "damaged"


# --- where ------------------------------------------------------------------------------------------------------


def test_data_folder(monkeypatch):
    monkeypatch.setenv("FEDNTD_DATA", "~/somewhere")
    assert download.data_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("FEDNTD_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert download.data_folder() == Path("/xdg/fedntd")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert download.data_folder() == Path.home() / ".local/share/fedntd"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert download.data_folder() == Path.home() / "Library/Application Support/fedntd"


def test_every_dataset_that_can_be_fetched_can_be_checked():
    assert download.SOURCES.keys() == download.FILES.keys() - {"fashion-mini"}
    for sources in download.SOURCES.values():
        for wanted in sources:
            algorithm, _, value = wanted.checksum.partition(":")
            assert len(value) == 2 * hashlib.new(algorithm).digest_size
            assert wanted.urls
