"""The pages about real federations do what they say."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from loop import play
from processes import BIN, SOURCE, Process, kill_strays, wait
from test_collect import NEED_ALL
from typer.testing import CliRunner

from fedntd import FedntdError, read_run
from fedntd.cli import app
from fedntd.flower import sites
from fedntd.flower.messages import Settings, read_settings
from fedntd.report.html import write_report

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/real-federation.md").read_text(encoding="utf-8")


def test_the_guide_from_its_first_command_to_the_report(tmp_path: Path):
    """Every marked block, in the order of the page, in one folder."""
    blocks = re.findall(r"^<!-- run( in the background)? -->\n```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/fedntd").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from fedntd.cli import main; main()" "$@"\n'
    )
    (tmp_path / "bin/fedntd").chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)}
    started: list[Process] = []
    try:
        for number, (background, text) in enumerate(blocks):
            process = Process(["sh", "-e", "-c", text], tmp_path / f"block-{number}.log", **environment)
            started.append(process)
            if not background:
                wait(lambda p=process: not p.running(), text, process.text)
                assert process.popen.returncode == 0, f"{text}\n{process.text()}"
            elif "superlink --enable" in text:
                process.wait_for("Uvicorn running on https://127.0.0.1:8000")
            else:
                process.wait_for("SuperNode ID:")
        run = read_run(tmp_path / "runs/hospitals")
        assert run.status == "finished"
        assert [r.cohort for r in run.records] == [[0, 1, 2]] * 3
        assert run.records[-1].accuracy > 0.2
        assert '"name": "west"' in (run.path / "sites.jsonl").read_text()
        assert "fedntd" in started[-1].text()  # the table of compare
        assert (tmp_path / "report.html").stat().st_size > 10_000
    finally:
        for process in started:
            process.kill()
        kill_strays(tmp_path)


def test_the_settings_are_documented():
    rows = dict(re.findall(r"^\| `flower\.(\w+)` \| `([^`]*)` \|", GUIDE, re.MULTILINE))
    assert rows == {field.name: json.dumps(field.default) for field in dataclasses.fields(Settings)}


def test_the_methods_that_need_all_updates_are_listed():
    (listed,) = re.findall(r"<!-- need all -->(.*?)<!-- /need all -->", GUIDE)
    assert set(re.findall(r"`([^`]+)`", listed)) == NEED_ALL


def test_the_site_of_the_second_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Three sites with .npz files of their own, one of them with one class; what they send adds up."""
    page = (ROOT / "docs/own-data-in-a-federation.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^<!-- own site.py -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "hospital_site.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sites, "POLL", 0.01)
    rng = np.random.default_rng(0)
    nodes = []
    for k, labels in enumerate(([0, 1], [0, 1], [1])):
        y = rng.choice(labels, 60).astype(np.int64)
        x = rng.integers(0, 100, (60, 1, 8, 8), dtype=np.uint8)
        x[y == 1, :, 4:] += 100
        np.savez(tmp_path / f"{k}.npz", x=x, y=y)
        nodes.append({"data": str(tmp_path / f"{k}.npz")})
    import hospital_site  # pyright: ignore[reportMissingImports]

    table = {
        "data": {"name": "given:scans"},
        "partition": {"name": "given:hospitals"},
        "model": {"name": "hospital_site:Net", "width": 4},
        "federation": {"clients": 3, "ratio": 1.0, "rounds": 4, "local_epochs": 2, "batch_size": 10},
        "optimiser": {"lr": 0.05},
    }
    play(table, tmp_path / "run", hospital_site.test_samples(None), nodes, app=hospital_site.client)
    run = read_run(tmp_path / "run")
    assert run.classes == ["healthy", "ill"]
    assert run.counts.sum(1).tolist() == [48, 48, 48]
    assert run.counts[2, 0] == 0
    written = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "fedntd on scans" in written
    assert "fashion-mini" not in written
    assert run.records[-1].accuracy > 0.9
    assert 36 * run.records[-1].accuracy == pytest.approx(round(36 * run.records[-1].accuracy))
    with pytest.raises(FedntdError, match="s1 has no file nowhere; set data in its --node-config"):
        play(
            table,
            tmp_path / "more",
            None,
            [nodes[0], {"data": "nowhere"}, nodes[2]],
            app=hospital_site.client,
            min_share=1.0,
        )


# --- the commands -----------------------------------------------------------------------------------------------


def test_a_new_app_has_the_defaults_that_it_shows(tmp_path: Path):
    assert CliRunner().invoke(app, ["flower", "new", str(tmp_path / "my-app")]).exit_code == 0
    project = tomllib.loads((tmp_path / "my-app/pyproject.toml").read_text())
    flower = project["tool"]["flwr"]["app"]
    assert flower["components"] == {"serverapp": "my_app.site:server", "clientapp": "my_app.site:client"}
    flat = {
        f"{k}.{key}" if isinstance(v, dict) else k: value
        for k, v in flower["config"].items()
        for key, value in (v.items() if isinstance(v, dict) else [("", v)])
    }
    config, settings = read_settings(flat)
    assert settings == Settings(out="runs/my-app")
    assert config.algorithm.name == "fedntd"
    assert "PROJECT" not in (tmp_path / "my-app/pyproject.toml").read_text()
    assert (tmp_path / "my-app/my_app/site.py").read_text() == (ROOT / "src/fedntd/flower/template/site.py").read_text()
    assert "FLWR_TELEMETRY_ENABLED=0" in (tmp_path / "my-app/env.sh").read_text()


def test_a_new_app_in_a_folder_whose_name_is_a_word_of_the_template(tmp_path: Path):
    folder = tmp_path / "PROJECTS/my-PACKAGE"
    assert CliRunner().invoke(app, ["flower", "new", str(folder)]).exit_code == 0
    assert f'FLWR_HOME="{folder}/.flwr"' in (folder / "env.sh").read_text()
    assert tomllib.loads((folder / ".flwr/config.toml").read_text())["superlink"]["federation"] == {
        "address": "127.0.0.1:8000",
        "root-certificates": f"{folder}/keys/ca.crt",
    }
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "my-PACKAGE"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedntd", "a package 'fedntd' is installed already"),
        ("1st", "cannot be the name"),
        ("class", "cannot be the name"),
    ],
)
def test_a_name_that_cannot_be_used(name: str, sentence: str, tmp_path: Path):
    result = CliRunner().invoke(app, ["flower", "new", str(tmp_path / name)])
    assert isinstance(result.exception, FedntdError)
    assert sentence in str(result.exception)
    assert not (tmp_path / name).exists()


def test_keys_are_real_and_private(tmp_path: Path):
    folder = tmp_path / "keys"
    command = ["flower", "keys", str(folder), "--sites", "2", "--host", "fed.example.org", "--host", "10.0.0.7"]
    assert CliRunner().invoke(app, command).exit_code == 0
    ca, server = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fed.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.0.0.7"]
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in ("server.key", "site-0", "site-1"))
    for k in (0, 1):
        private = serialization.load_ssh_private_key((folder / f"site-{k}").read_bytes(), None)
        public = serialization.load_ssh_public_key((folder / f"site-{k}.pub").read_bytes())
        assert private.public_key() == public
    assert (folder / "site-0.pub").read_text() != (folder / "site-1.pub").read_text()
    again = CliRunner().invoke(app, command)
    assert "keys are not overwritten" in str(again.exception)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--host", "höst.example.org"], "--host 'höst.example.org' is neither an address nor a name of letters"),
        (["--host", ""], "--host '' is neither"),
        (["--host", "fed.example.org:8000"], "--host 'fed.example.org:8000' is neither"),
        (["--days", "99999999"], "--days must lie in 1..36500, not 99999999"),
    ],
)
def test_keys_that_cannot_be_made(options: list[str], sentence: str, tmp_path: Path):
    result = CliRunner().invoke(app, ["flower", "keys", str(tmp_path / "keys"), *options])
    assert isinstance(result.exception, FedntdError)
    assert sentence in str(result.exception)
    assert not (tmp_path / "keys").exists()


def test_flower_is_not_imported_unless_it_is_used():
    code = "import sys, fedntd.cli.flower, fedntd.cli.run; sys.exit('flwr' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(SOURCE)})
