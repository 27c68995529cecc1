import base64
import io
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_runs import exact_run, make_run, methods_by_partitions, plain_record, settings, write_run
from PIL import Image

from fedntd.errors import FedntdError
from fedntd.report.charts import curves
from fedntd.report.html import View, facts, size, write_report
from fedntd.runs.reader import Run

NASTY = "</script><img src=x onerror='window.broken=1'>"
REASON = "the global weights are not finite after round 7; a lower optimiser.lr may help"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        make_run(folder / "a", rounds=20),
        make_run(folder / "b", "fedntd", rounds=20, measure__local_every=5),
        make_run(folder / "c", "fedntd", rounds=20, stop=6, algorithm__beta=0.1, status="failed", reason=REASON),
    ]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html")


class Reader(HTMLParser):
    """Collects the cells of all tables, row by row, and everything that the page would load."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.loads: list[str] = []
        self.inside = False
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def embedded(file: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read_text(encoding="utf-8"))
    assert found
    return json.loads(found[1])


class TestPage:
    def test_is_self_contained(self, page):
        assert Reader(page).loads == []
        text = page.read_text(encoding="utf-8")
        for word in ("http://", "https://", "url(", "@import", "fetch(", "XMLHttpRequest"):
            assert word not in text

    def test_tables_need_no_script(self, page, runs):
        rows = Reader(page).rows
        (row,) = [
            row for row in rows if row[0].strip().startswith("fedntd beta=1") and "%" not in row[0] and len(row) == 8
        ]
        last = runs[1].records[-1]
        assert row[1].strip() == f"{100 * last.accuracy:.2f}"
        assert row[5].strip() == f"{last.forgetting:.3f}"
        assert any("failed (round 7)" in row[0] for row in rows)
        assert REASON in page.read_text(encoding="utf-8")
        settings_row = next(row for row in rows if row[0] == "optimiser.lr")
        assert settings_row[1:] == ["0.01"] * 3

    def test_what_differs_is_listed(self, page):
        (heads,) = [row for row in Reader(page).rows if row[0] == "run" and "algorithm.beta" in row]
        assert set(heads[1:]) == {"algorithm.name", "algorithm.beta", "algorithm.tau", "measure.local_every"}

    def test_many_values_of_a_setting_stay_one_line(self, tmp_path):
        runs = [make_run(tmp_path / str(i), rounds=2, optimiser__lr=0.01 * i) for i in range(1, 8)]
        assert dict(facts(runs[:5]))["Learning rate"] == "0.01 / 0.02 / 0.03 / 0.04 / 0.05"
        assert dict(facts(runs))["Learning rate"] == "0.01 / 0.02 / 0.03 / 0.04 and 3 more"

    def test_data_is_what_was_recorded(self, page, runs):
        data = embedded(page)
        assert [c["label"] for c in data["curves"]] == [curve.label for curve in curves(runs)]
        rounds, values, _ = data["curves"][1]["out_local"]
        assert rounds == [1, 5, 10, 15, 20]
        assert values == pytest.approx([r.out_local for r in runs[1].records if r.out_local is not None])
        assert data["classAccuracy"][0]["z"][3] == pytest.approx(runs[0].records[3].class_accuracy, abs=1e-4)
        assert data["partitions"] == [{"rows": runs[0].classes, "z": runs[0].counts.tolist()}]  # all share it: once

    def test_text_cannot_break_out(self, tmp_path):
        run = make_run(tmp_path / "a", rounds=3, classes=[NASTY, "b"], stop=2, status="failed", reason=NASTY)
        file = write_report([run], tmp_path / "x.html", title=NASTY)
        text = file.read_text(encoding="utf-8")
        assert "<img" not in text
        assert text.count("</script>") == 2
        assert embedded(file)["classAccuracy"][0]["rows"][0] == NASTY

    def test_not_a_number_is_null(self, tmp_path):
        bad = float("nan")
        record = plain_record(1, 0.5, class_accuracy=[bad] + [0.5] * 9, forgetting=float("inf"), in_local=bad)
        file = write_report([write_run(tmp_path / "a", settings(rounds=1), [record])], tmp_path / "x.html")
        data = embedded(file)
        assert data["classAccuracy"][0]["z"][0][:2] == [None, 0.5]
        assert data["curves"][0]["forgetting"][0] == []

    def test_the_round_in_which_a_gpu_compiles_stands_apart(self, tmp_path):
        seconds = [42.0, 0.024, 0.026, 9.0, 0.025]  # and once more, where it was resumed
        records = [plain_record(t, 0.5, seconds=each) for t, each in enumerate(seconds, 1)]
        run = write_run(tmp_path / "a", settings(rounds=5), records)
        one = write_run(tmp_path / "b", settings(rounds=1), records[:1])
        for each, told in ((run, ["51 s", "42 s", "26 ms"]), (one, ["42 s", "42 s", "–"])):
            assert told in [row[4:] for row in Reader(write_report([each], tmp_path / "x.html")).rows]

    def test_title(self, runs, tmp_path):
        def title(given: list[Run]) -> str:
            found = re.search(
                "<title>(.*?)</title>", write_report(given, tmp_path / "x.html").read_text(encoding="utf-8")
            )
            return found[1] if found else ""

        assert title(runs) == "3 runs on fashion-mini"
        assert title(runs[:1]) == "fedavg on fashion-mini"
        assert title(runs[:2]) == "fedavg and fedntd on fashion-mini"

    def test_methods_in_several_settings_are_a_table(self, tmp_path):
        given = (("fedavg", 2, 0.3), ("fedavg", 5, 0.8), ("fedntd", 2, 0.5), ("fedntd", 5, 0.7))
        runs = [
            write_run(tmp_path / f"{m}{s}", settings(m, rounds=1, partition__s=s), [plain_record(1, accuracy)])
            for m, s, accuracy in given
        ]
        file = write_report(runs, tmp_path / "x.html")
        rows = Reader(file).rows
        assert rows[:3] == [["method", "s=2", "s=5"], ["fedntd", "50.00", "70.00"], ["fedavg", "30.00", "80.00"]]
        assert re.findall(r'<td class="n best"[^>]*>([\d.]+)', file.read_text())[:2] == ["50.00", "80.00"]
        for measure in ("accuracy", "forgetting", "similarity"):
            found = re.findall(rf'<div class="chart[^>]* data-measure="{measure}"', file.read_text())
            assert re.findall('data-facet="([^"]*)"', "".join(found)) == ["s=2", "s=5"]
            assert len(found) == 2

    @pytest.mark.parametrize(
        ("bytes_up", "seconds", "traffic", "time"),
        [(500, 0.5, "kB", "seconds"), (2e6, 90.0, "MB", "minutes"), (3e12, 4e3, "TB", "hours")],
    )
    def test_axes_of_cost_have_units_that_fit(self, tmp_path, bytes_up, seconds, traffic, time):
        """The traffic of a small model would be 0 in GB."""
        record = plain_record(1, 0.5, bytes_down=bytes_up, bytes_up=bytes_up, seconds=seconds)
        runs = [write_run(tmp_path / m, settings(m, rounds=1), [record]) for m in ("fedavg", "fedntd", "fedprox")]
        page = write_report(runs, tmp_path / "x.html").read_text()
        assert page.count(f'data-x="{traffic} sent in both directions"') == 2
        assert f'data-x="{time} a run"' in page
        point = embedded(tmp_path / "x.html")["points"][0]
        assert point["traffic"] == pytest.approx(2 * bytes_up / {"kB": 1e3, "MB": 1e6, "TB": 1e12}[traffic])
        assert point["time"] == pytest.approx(seconds / {"seconds": 1, "minutes": 60, "hours": 3600}[time])

    def test_seeds_are_averaged(self, tmp_path):
        runs = [
            write_run(tmp_path / str(s), settings(rounds=1, seed=s), [plain_record(1, a)])
            for s, a in ((0, 0.4), (1, 0.6))
        ]
        rows = Reader(write_report(runs, tmp_path / "x.html")).rows
        assert [row[1:3] for row in rows if row[0].strip() == "fedavg"] == [["2", "50.00 ± 14.14"]]
        assert embedded(tmp_path / "x.html")["curves"][0]["accuracy"] == [[1], [0.5], [pytest.approx(0.02**0.5)]]

    def test_local_models_that_were_not_measured_have_no_chart(self, page, tmp_path):
        without = write_report(methods_by_partitions(tmp_path), tmp_path / "x.html")
        charts = [file.read_text(encoding="utf-8").count('data-measure="in_local"') for file in (page, without)]
        assert charts == [1, 0]

    def test_what_failed_at_once_is_in_the_tables_alone(self, tmp_path):
        """Even if the other seeds of its group are a line in the charts."""
        runs = [exact_run(tmp_path / str(seed), [0.5], seed=seed) for seed in (0, 1)]
        runs.append(exact_run(tmp_path / "failed", [], seed=2, status="failed", reason=REASON))
        for by in ((), ("algorithm.name",)):
            file = write_report(runs, tmp_path / "x.html", view=View(by=by))
            assert [curve["label"] for curve in embedded(file)["curves"]] == ["fedavg"]
            assert len(embedded(file)["classAccuracy"]) == 2
            (row,) = [row for row in Reader(file).rows if row[0].startswith("fedavg seed=2") and len(row) == 8]
            assert row[1:] == ["–", "–", "–", "–", "–", "0/1", "–"]


class TestWriting:
    def test_leaves_nothing_else(self, runs, tmp_path):
        file = write_report(runs, tmp_path / "deep" / "er" / "report.html")
        assert list(file.parent.iterdir()) == [file]

    def test_a_failed_write_keeps_the_old_page(self, runs, tmp_path, monkeypatch):
        file = write_report(runs, tmp_path / "report.html")
        before = file.read_bytes()

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(FedntdError, match="No space left"):
            write_report(runs[:1], file)
        assert file.read_bytes() == before
        assert list(tmp_path.iterdir()) == [file]

    def test_no_runs(self, tmp_path):
        with pytest.raises(FedntdError, match="at least one run"):
            write_report([], tmp_path / "x.html")

    def test_sizes(self):
        assert [size(n) for n in (999, 1500, 46_562_080, 9.3e9)] == ["999 B", "1.50 kB", "46.56 MB", "9.30 GB"]


# --- in a browser -----------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Chromium speaks its DevTools protocol on file descriptors 3 and 4.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    def __init__(self, profile: Path) -> None:
        assert CHROMIUM
        theirs_in, self.out = os.pipe()
        self.back, theirs_out = os.pipe()
        options = [
            "headless",
            "no-sandbox",
            "disable-gpu",
            "no-first-run",
            "disable-background-networking",
            "disable-sync",
        ]
        options += ["disable-component-update", "disable-quic", "remote-debugging-pipe", f"user-data-dir={profile}"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), CHROMIUM, *(f"--{o}" for o in options)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.number, self.buffer, self.session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.out)
        os.close(self.back)

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], 60)[0]:
                raise TimeoutError("the browser does not answer")
            read = os.read(self.back, 1 << 16)
            assert read, "the browser has ended"
            self.buffer += read
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        os.write(
            self.out, json.dumps({"id": self.number, "method": method, "params": params, **session}).encode() + b"\0"
        )
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, file: Path, width: int = 1280, dark: bool = False, media: str = "", script: bool = True) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.events = []
        self.send("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, once the page has had time to draw."""
        waiting = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        result = self.send(
            "Runtime.evaluate",
            expression=f"{waiting}.then(() => ({expression}))",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, x: float, y: float, press: bool = False) -> None:
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if press else ())):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if press else "none", clickCount=1)

    def click(self, selector: str) -> None:
        self.mouse(*self.middle(selector), press=True)

    def middle(self, selector: str) -> tuple[float, float]:
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y = self.run(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return x, y

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, text="\r" if key == "Enter" else "")

    def count(self, selector: str) -> int:
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    @property
    def errors(self) -> list[Any]:
        """Uncaught exceptions and errors of the browser itself, such as a blocked load."""
        return [e["params"] for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]

    @property
    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium or Chrome to open the page in")
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


ACCURACY = '[data-measure="accuracy"]'


def hover_round(browser: Browser, chart: str, curve: int, index: int) -> list[str]:
    """Move the mouse to the round of a point (not onto the point itself) and return the lines of the tooltip."""
    browser.middle(chart)
    x, y = browser.run(
        f"""(() => {{
          const svg = document.querySelector('{chart} svg'), frame = svg.getBoundingClientRect();
          const d = svg.querySelector('path.line[data-curve="{curve}"]').getAttribute("d");
          const zoom = frame.width / svg.viewBox.baseVal.width;
          return [frame.left + zoom * d.slice(1).split("L")[{index}].split(" ")[0], frame.top + frame.height / 2];
        }})()"""
    )
    browser.mouse(x, y)
    return browser.run("document.getElementById('tip').innerText").split("\n")


class TestInTheBrowser:
    def test_draws_every_chart(self, browser, page, runs):
        browser.open(page)
        for measure in ("accuracy", "forgetting", "similarity", "in_local", "out_local", "traffic", "time"):
            assert browser.count(f'[data-measure="{measure}"] path.line') == 3, measure
        assert browser.count("[data-side] path.line") == 3 * 2 * 3  # of each run, in and out: local, before, after
        assert browser.count("[data-side] path.band") == 3 * 2
        assert browser.count("[data-heat] image") == 3 + 1
        assert browser.count(f"{ACCURACY} path.mark") == 1  # where a run failed
        points = browser.run(f"document.querySelector('{ACCURACY} path.line').getAttribute('d').split('L').length")
        assert points == len(runs[0].records)
        assert browser.errors == []
        assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]

    def test_a_band_ends_where_its_axis_does(self, browser, tmp_path):
        """A similarity of 0.8 ± 0.28 over seeds would reach up to 1.08, into the text above the chart."""
        found = []
        for seed, similarity in enumerate((1.0, 0.6)):
            records = [plain_record(t, 0.5, similarity=similarity) for t in (1, 2, 3)]
            found.append(write_run(tmp_path / str(seed), settings(rounds=3, seed=seed), records))
        browser.open(write_report(found, tmp_path / "x.html"))
        chart = "document.querySelector('[data-measure=similarity] svg')"
        top = browser.run(f"{chart}.querySelector('path.band').getBBox().y")
        highest = browser.run(f"Math.min(...[...{chart}.querySelectorAll('path.grid')].map((g) => g.getBBox().y))")
        assert top >= highest - 0.1

    @pytest.mark.parametrize("above", [0.25, 0.5])
    def test_lines_of_a_table_go_through_the_column_that_stays_in_sight(self, above, browser, tmp_path):
        """The background of that column must not hide the lines between rows, even at fractions of a pixel."""
        browser.open(write_report(methods_by_partitions(tmp_path), tmp_path / "x.html"), width=400)
        browser.run(f"document.body.style.paddingTop = '{above}px'")
        browser.run("document.querySelectorAll('table')[1].scrollIntoView({block: 'center'})")
        rows = browser.run(
            """[...document.querySelectorAll("table")[1].tBodies[0].rows].map((row) => {
              const at = row.getBoundingClientRect();
              return [at.left, row.cells[1].getBoundingClientRect().left, at.top];
            })"""
        )
        png = base64.b64decode(browser.send("Page.captureScreenshot")["data"])
        shot = np.asarray(Image.open(io.BytesIO(png)).convert("L"))
        assert len(rows) == 4
        for first, second, top in rows:
            lines = [shot[round(top) - 2 : round(top) + 3, round(left) + 4] for left in (first, second)]
            assert lines[0].tolist() == lines[1].tolist()
            assert lines[0].min() < 240

    def test_heat_map_has_the_colours_of_the_data(self, browser, tmp_path):
        records = [plain_record(1, 0.5, class_accuracy=[0.0, 1.0]), plain_record(2, 0.5, class_accuracy=[0.5, 0.0])]
        run = write_run(tmp_path / "a", settings(rounds=2), records, classes=["a", "b"])
        browser.open(write_report([run], tmp_path / "x.html"))
        pixels = browser.run(
            """new Promise((done) => {
              const image = new Image();
              image.onload = () => {
                const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
                context.drawImage(image, 0, 0);
                done([image.width, image.height, ...context.getImageData(0, 0, 2, 2).data]);
              };
              image.src = document.querySelector("[data-heat=classAccuracy] image").getAttribute("href");
            })"""
        )
        low, middle, high = [0x44, 0x01, 0x54, 255], [0x21, 0x91, 0x8C, 255], [0xFD, 0xE7, 0x25, 255]
        assert pixels == [2, 2, *low, *middle, *high, *low]  # rows are classes, columns rounds

    def test_hover_tells_the_values_of_that_round(self, browser, page, runs):
        browser.open(page)
        told = hover_round(browser, ACCURACY, curve=0, index=3)
        assert told[0] == "round 4"
        for curve, run in zip(curves(runs), runs, strict=True):
            assert told[told.index(curve.label) + 1] == f"{100 * run.records[3].accuracy:.2f} %"
        assert browser.count(f"{ACCURACY} circle.dot") == 3
        # after its end, a run is not listed
        late = hover_round(browser, ACCURACY, curve=0, index=15)
        assert late[0] == "round 16"
        assert curves(runs)[2].label not in late
        browser.mouse(5, 5)
        assert browser.run("document.getElementById('tip').hidden")

    def test_hover_over_local_models_measured_now_and_then(self, browser, page, runs):
        browser.open(page)
        told = hover_round(browser, '[data-measure="in_local"]', curve=1, index=2)
        record = runs[1].records[9]
        assert told[0] == "round 10"
        expected = f"{100 * record.in_local:.2f} % ± {100 * record.in_local_std:.2f}"
        assert told[told.index(curves(runs)[1].label) + 1] == expected

    def test_hover_over_a_heat_map(self, browser, page, runs):
        browser.open(page)
        x, y = browser.middle('[data-heat="partitions"] rect.blank')
        browser.mouse(x + 1, y + 1)
        told = browser.run("document.getElementById('tip').innerText").split("\n")
        client = int(told[0].removeprefix("client "))
        assert client == 50
        assert told[1:] == ["Sandal", str(runs[0].counts[50, 5]), "all classes", str(runs[0].counts[50].sum())]

    def test_arrow_keys_move_the_crosshair(self, browser, page):
        browser.open(page)
        browser.run(f"document.querySelector('{ACCURACY} svg').focus()")
        browser.key("ArrowLeft")
        assert browser.run("document.querySelector('#tip b').innerText") == "round 19"

    def test_a_legend_entry_hides_its_run_everywhere(self, browser, page):
        browser.open(page)
        browser.click('.key[data-curve="0"]')
        assert browser.count('path.line[data-curve="0"]') == 0
        assert browser.count(f"{ACCURACY} path.line") == 2
        assert browser.count('figure[data-curve="0"]:not([hidden])') == 0
        assert browser.run("document.querySelector('.key').getAttribute('aria-pressed')") == "false"
        told = hover_round(browser, ACCURACY, curve=1, index=3)
        assert "fedavg" not in told
        # and shows it again, by keyboard
        browser.run("document.querySelector('.key').focus()")
        browser.key("Enter")
        assert browser.count(f"{ACCURACY} path.line") == 3
        assert browser.count('figure[data-curve="0"]:not([hidden])') == 3
        assert browser.errors == []

    def test_axes_stay_when_a_run_is_hidden(self, browser, page):
        browser.open(page)
        path = f"document.querySelector('{ACCURACY} path.line[data-curve=\"1\"]').getAttribute('d')"
        before = browser.run(path)
        browser.click('.key[data-curve="2"]')
        assert browser.run(path) == before

    def test_smoothing_keeps_the_raw_line_in_sight(self, browser, page, runs):
        browser.open(page)
        before = browser.run(f"document.querySelector('{ACCURACY} path.line').getAttribute('d')")
        browser.click("#smooth")
        assert browser.run(f"document.querySelector('{ACCURACY} path.raw').getAttribute('d')") == before
        assert browser.run(f"document.querySelector('{ACCURACY} path.line').getAttribute('d')") != before
        told = hover_round(browser, ACCURACY, curve=0, index=3)  # the values told are still the measured ones
        assert told[told.index("fedavg") + 1] == f"{100 * runs[0].records[3].accuracy:.2f} %"

    def test_tables_sort(self, browser, page, runs):
        browser.open(page)
        names = "[...document.querySelector('table.sortable').tBodies[0].rows].map((row) => row.cells[0].dataset.sort)"
        browser.click("table.sortable th:nth-child(2) button")
        assert runs[1].records[-1].accuracy > runs[0].records[-1].accuracy
        assert browser.run(names) == ["fedntd beta=1", "fedavg", "fedntd beta=0.1"]  # the failed one has no value
        browser.click("table.sortable th:nth-child(2) button")
        assert browser.run(names) == ["fedavg", "fedntd beta=1", "fedntd beta=0.1"]

    def test_text_is_only_text(self, browser, tmp_path):
        run = make_run(tmp_path / "a", rounds=3, classes=[NASTY, "b"], stop=2, status="failed", reason=NASTY)
        browser.open(write_report([run], tmp_path / "x.html", title=NASTY))
        x, y = browser.middle('[data-heat="classAccuracy"] rect.blank')
        browser.mouse(x - 50, y - 5)
        assert NASTY in browser.run("document.getElementById('tip').textContent")
        assert browser.run("document.querySelector('h1').textContent") == NASTY
        assert browser.run("window.broken === undefined && !document.querySelector('img')")
        assert browser.errors == []

    def test_fits_a_phone(self, browser, tmp_path):
        runs = [
            make_run(tmp_path / f"{a}{s}", a, seed=s, rounds=4, optimiser__weight_decay=0.000123)
            for a in ("fedavg", "fedntd")
            for s in range(3)
        ]
        runs.append(make_run(tmp_path / ("long" * 30), "fedntd", seed=0, rounds=4, data__path="/" + "long" * 30))
        browser.open(write_report(runs, tmp_path / "x.html"), width=390)
        assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        browser.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert browser.run("document.documentElement.scrollWidth") == 390
        assert browser.errors == []

    def test_dark_and_print(self, browser, page):
        background = "getComputedStyle(document.body).backgroundColor"
        browser.open(page)
        assert browser.run(background) == "rgb(255, 255, 255)"
        browser.open(page, dark=True)
        assert browser.run(background) == "rgb(20, 23, 26)"
        browser.open(page, dark=True, media="print")  # paper is white
        assert browser.run(background) == "rgb(255, 255, 255)"
        assert browser.run("getComputedStyle(document.querySelector('.switch')).display") == "none"
        assert browser.run("getComputedStyle(document.querySelector('.legend')).position") == "static"
        assert browser.run("getComputedStyle(document.querySelector('figure')).breakInside") == "avoid"

    def test_tables_show_without_script(self, browser, page):
        browser.open(page, script=False)
        text = self.visible_text(browser)
        assert "the tables are complete without it" in text
        assert "fedntd beta=0.1" in text

    @staticmethod
    def visible_text(browser: Browser) -> str:
        nodes = browser.send("Accessibility.getFullAXTree")["nodes"]  # needs no script in the page
        return " ".join(str(node.get("name", {}).get("value", "")) for node in nodes)

    @pytest.mark.parametrize(("stop", "lines"), [(0, 0), (1, 1)])
    def test_hardly_any_records(self, browser, tmp_path, stop, lines):
        browser.open(write_report([make_run(tmp_path / "a", stop=stop, status="interrupted")], tmp_path / "x.html"))
        assert browser.count(f"{ACCURACY} path.line") == lines
        assert browser.count(f"{ACCURACY} .empty") == 1 - lines
        assert browser.count('[data-measure="similarity"] .empty') == 1
        assert browser.errors == []

    def test_ten_long_runs_of_a_hundred_classes(self, browser, tmp_path):
        classes = [f"class {c}" for c in range(100)]
        runs = [
            make_run(tmp_path / str(i), "fedntd", classes=classes, rounds=200, algorithm__beta=i / 10, partition__s=10)
            for i in range(10)
        ]
        browser.open(write_report(runs, tmp_path / "x.html"))
        assert browser.count(f"{ACCURACY} path.line") == 10
        started = time.monotonic()
        browser.click('.key[data-curve="0"]')
        assert browser.count(f"{ACCURACY} path.line") == 9
        assert time.monotonic() - started < 3  # 0.2 s on a laptop
        assert browser.errors == []
