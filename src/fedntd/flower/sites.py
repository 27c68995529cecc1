"""Who takes part in a real federation: the nodes that Flower knows, and which site each of them says it is."""

import json
import math
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedntd.config.schema import Config
from fedntd.errors import FedntdError, require
from fedntd.flower.messages import HELLO, Hello, Report, Settings, check_hello, content, read_hello
from fedntd.flower.privacy import Clipped, NoisyMean, epsilon, next_clip
from fedntd.runs.record import RunFolder, writing
from fedntd.support.files import read_json

POLL = 0.5  # seconds between two looks for answers
AT_ONCE = 8  # answers fetched in one go, so that memory does not grow with the number of sites
UNREACHABLE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class SiteLog:
    """sites.jsonl in the run folder: one line for what each site did, or did not, in each round."""

    def __init__(self, folder: RunFolder, done: int) -> None:
        self.file = folder.path / "sites.jsonl"
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["round"] <= done]
        folder.put(self.file.name, "".join(f"{line}\n" for line in kept))

    def add(self, round: int, site: int, name: str, what: str, **more: Any) -> None:
        with writing(self.file.parent), open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps({"round": round, "site": site, "name": name, "what": what, **more}) + "\n")


class Account:
    """federation.json in the run folder: the name under which the sites keep the run's state, and the privacy spent."""

    def __init__(self, folder: RunFolder, settings: Settings, done: int) -> None:
        self.folder, self.settings = folder, settings
        file = folder.path / "federation.json"
        asked = {key: getattr(settings, key) for key in ("clip", "noise", "clip_quantile")}
        mechanism = {"mechanism": "discrete Gaussian"} if settings.noise else {}
        begun = folder.resume and file.exists()
        known = read_json(file) if begun else {"run": secrets.token_hex(8), "privacy": asked | mechanism}
        privacy: dict[str, Any] = {**dict.fromkeys(asked, 0.0), **known.get("privacy", {})}
        before = ", ".join(f"flower.{key} = {privacy[key]:g}" for key in asked)
        require(
            asked.items() <= privacy.items(),
            f"{folder.path} was begun with {before}; the privacy spent counts all rounds, so go on with these, or "
            f"choose another flower.out",
        )
        require(
            mechanism.items() <= privacy.items(),
            f"{folder.path} was begun by an earlier version, whose noise can be computed and subtracted: its rounds "
            f"are not private, and no further ones make them so; choose another flower.out",
        )
        self.run = str(known["run"])
        self.privacy: dict[str, Any] = ({"releases": done} if settings.noise else {}) | privacy
        # the clip of each round so far and of the next one; those of rounds that are played again are forgotten
        self.clips: list[float] = self.privacy.get("clips", [settings.clip])[: done + 1]
        if not begun:
            folder.put_json(file.name, known)

    @property
    def clip(self) -> float:
        """Of the round that is played now."""
        return self.clips[-1]

    def release(self, uploads: Clipped | NoisyMean) -> None:
        """Before anybody sees weights with new noise: a round that is cut off after it, and played again, shows two."""
        settings = self.settings
        if settings.noise:
            count, delta = self.privacy["releases"] + 1, settings.delta
            self.privacy |= {"releases": count, "epsilon": epsilon(settings.noise, count, delta), "delta": delta}
        if settings.clip_quantile:
            self.clips.append(next_clip(self.clip, settings.clip_quantile, uploads.share_short()))
            self.privacy["clips"] = self.clips
        self.folder.put_json("federation.json", {"run": self.run, "privacy": self.privacy})


class Sites:
    """Who is there: the nodes that Flower knows, which site each of them says it is, and how to ask them."""

    def __init__(self, grid: Grid, config: Config, settings: Settings, log: SiteLog) -> None:
        self.grid, self.clients, self.settings, self.log = grid, config.federation.clients, settings, log
        self.wanted: Hello | None = None  # what a site must say of version, classes, samples and model
        self.met: set[int] = set()  # nodes that were asked who they are
        self.asked: dict[str, int] = {}  # and the questions that are still open, by message
        self.came: list[tuple[int, Hello]] = []  # nodes that have answered and wait to be admitted
        self.turned_away: dict[int, str] = {}  # nodes that cannot take part, and why
        self.node_of: dict[int, int] = {}  # the node that a site is now
        self.hellos: dict[int, Hello] = {}  # of every site that was ever admitted
        self.silent: set[int] = set()  # nodes that did not answer the last time
        self.failures: Counter[int] = Counter()  # refused updates in succession
        self.unfit: set[int] = set()  # sites whose node was turned away
        self.left_out: dict[int, str] = {}  # sites whose updates are not wanted any more, and why

    def name(self, site: int) -> str:
        return self.hellos[site].name if site in self.hellos else f"site {site}"

    def counts(self) -> np.ndarray:
        """Samples of each class that each site has, [site, class]; zeros for sites that were never there."""
        none = [0] * len(next(iter(self.hellos.values())).classes)
        return np.array([self.hellos[k].counts if k in self.hellos else none for k in range(self.clients)])

    # --- coming and going

    def gather(self) -> None:
        """Wait until every site of the federation is there, or the time is up."""
        log(INFO, "waiting for %d sites", self.clients)
        deadline = time.monotonic() + self.settings.time_limit
        while time.monotonic() < deadline:
            self.greet()
            known = {hello.number for _, hello in self.came} | self.hellos.keys()
            if len(known) + len(self.turned_away) >= self.clients and not self.asked:
                return
            time.sleep(POLL)

    def require_enough(self) -> None:
        need, there = self.needed(self.clients), len(self.hellos)
        about = f"{there} of {self.clients} sites can take part, {need} are needed"
        require(there >= need, "; ".join([about, *self.turned_away.values()]))

    def needed(self, asked: int) -> int:
        return max(1, math.ceil(self.settings.min_share * asked - 1e-9))

    def greet(self) -> None:
        """Ask newcomers who they are; admit those that have answered by now."""
        present = set(self.grid.get_node_ids())
        self.met &= present  # one that went away is asked again when it comes back
        for node in present - self.met:
            self.met.add(node)
            self.turned_away.pop(node, None)
            self.asked |= dict.fromkeys(self.send(RecordDict(), node, HELLO), node)
        for message in self.answers(self.asked):
            node = self.asked.pop(message.metadata.reply_to_message_id)
            if unreachable(message):
                self.met.discard(node)  # if it is there still, it was busy for too long: ask again
                continue
            try:
                self.came.append((node, read_hello(content(message).config_records.get("who", ConfigRecord()))))
            except FedntdError as error:
                self.turn_away(node, f"node {node}: {error}")
        if self.wanted:
            self.came = [arrival for arrival in self.came if not self.settled(*arrival, self.wanted, present)]

    def settled(self, node: int, hello: Hello, wanted: Hello, present: set[int]) -> bool:
        """Admit a node or turn it away. One that claims the number of a site that is there must wait: it may be that
        site, started anew before its end was noticed, or another."""
        k = hello.number
        if self.node_of.get(k, node) in present - self.silent - {node}:
            return False
        try:
            check_hello(hello, wanted, self.clients, self.settings.max_samples)
        except FedntdError as error:
            self.turn_away(node, f"{hello.name} (site {k}): {error}")
            self.unfit |= {k} - self.node_of.keys()
            return True
        log(INFO, "%s is there: site %d, %d samples", hello.name, k, sum(hello.counts))
        # a node that comes back under another number is one site still: asked for both, it would count twice
        self.node_of = {site: other for site, other in self.node_of.items() if other != node} | {k: node}
        self.hellos[k] = hello
        self.silent.discard(node)
        self.unfit.discard(k)
        return True

    def turn_away(self, node: int, why: str) -> None:
        log(WARNING, "turned away: %s", why)
        self.turned_away[node] = why

    def leave_out(self, round: int, site: int, why: str) -> None:
        log(WARNING, "%s (site %d) is left out from now on: %s", self.name(site), site, why)
        self.left_out[site] = why
        self.log.add(round, site, self.name(site), "left out", reason=why)

    # --- asking

    def wait_for(self, cohort: list[int]) -> list[int]:
        """Those of the cohort that can be asked now; while they are too few, wait for more, but not for ever."""
        deadline = time.monotonic() + self.settings.time_limit
        while True:
            self.greet()
            here = [k for k in cohort if k in self.node_of]
            if len(here) >= self.needed(len(cohort)) or time.monotonic() >= deadline:
                return here
            time.sleep(POLL)

    def ask(self, kind: str, questions: dict[int, RecordDict]) -> Iterator[tuple[int, Message]]:
        """Send each site its question; hand out the answers as they come, until all are there or the time is up."""
        deadline = time.monotonic() + self.settings.time_limit
        nodes, heard = {k: self.node_of[k] for k in questions}, set()
        waiting = {id: k for k, question in questions.items() for id in self.send(question, nodes[k], kind)}
        while True:
            for message in self.answers(waiting):
                k = waiting.pop(message.metadata.reply_to_message_id)
                if not unreachable(message):
                    heard.add(nodes[k])
                    yield k, message
            if not waiting or time.monotonic() >= deadline:
                break
            self.greet()
            time.sleep(POLL)
        self.silent = (self.silent | {*nodes.values()}) - heard  # only now: until then, a site may be at work

    def send(self, question: RecordDict, node: int, kind: str) -> list[str]:
        """The number of the message; none if the node has just gone."""
        message = Message(question, node, kind, ttl=self.settings.time_limit)
        return [id for id in self.grid.push_messages([message]) if id]

    def answers(self, waiting: Collection[str]) -> Iterator[Message]:
        for some in batched(waiting, AT_ONCE):
            yield from self.grid.pull_messages(some)

    # --- what became of a site's update

    def used(self, round: int, site: int, report: Report) -> None:
        self.failures[site] = 0
        measured = {key: value for key, value in report.as_dict().items() if math.isfinite(value)}
        self.log.add(round, site, self.name(site), "used", **measured)

    def refused(self, round: int, site: int, why: str) -> None:
        self.failures[site] += 1
        log(WARNING, "round %d: the update of %s (site %d) is refused: %s", round, self.name(site), site, why)
        self.log.add(round, site, self.name(site), "refused", reason=why)
        if self.failures[site] >= self.settings.failures:
            self.leave_out(round, site, f"its last {self.failures[site]} updates were refused: {why}")

    def missed(self, round: int, site: int) -> None:
        log(WARNING, "round %d: no answer from %s (site %d)", round, self.name(site), site)
        self.log.add(round, site, self.name(site), "no answer")


def unreachable(message: Message) -> bool:
    """Flower's own answer for a node that went away."""
    return message.has_error() and message.error.code in UNREACHABLE


def batched(ids: Collection[str], size: int) -> Iterator[list[str]]:
    every = list(ids)
    return (every[start : start + size] for start in range(0, len(every), size))
