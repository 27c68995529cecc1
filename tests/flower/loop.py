"""Flower in the same process, for what needs no real ones: questions go straight to the sites' app, as serialised
records."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate
from flwr.supercore.task_identity import TaskIdentity
from world import client

from fedntd.config.schema import with_own_code
from fedntd.config.toml import flat, from_table
from fedntd.flower.messages import Settings, read_settings
from fedntd.flower.server_app import coordinate
from fedntd.flower.site import Samples

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class LoopGrid(Grid):
    """Node 100 + k is site k."""

    def __init__(self, settings: dict[str, Any], nodes: list[dict[str, Any]], app: ClientApp) -> None:
        self.settings, self.app = settings, app
        self.nodes = {100 + k: {"partition-id": k, "name": f"s{k}"} | node for k, node in enumerate(nodes)}
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.answered: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            id, node = f"m{len(self.sent)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = id
            self.sent.append(message)
            ids.append(id)
            context = Context(1, node, self.nodes[node], RecordDict(), self.settings)
            try:
                message.content = through_the_wire(message.content)
                reply = self.app(message, context)
                reply.content = through_the_wire(reply.content)
            except RuntimeError as error:  # as a SuperNode does
                reply = Message(Error(code=2, reason=str(error)), reply_to=message)
            self.answered.append(reply)
            if context.node_config.get("fault") != "mute" or message.metadata.message_type == "query.hello":
                self.replies[id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Any: ...

    def send_and_receive(self, *_: Any, **__: Any) -> Any: ...


def through_the_wire(records: RecordDict) -> RecordDict:
    objects = {id: o.deflate() for id, o in get_all_nested_objects(records).items()}
    found = inflate(records.object_id, objects)
    assert isinstance(found, RecordDict)
    return found


def play(
    table: dict[str, Any],
    out: Path,
    test: Samples | None,
    nodes: list[dict[str, Any]] | None = None,
    app: ClientApp = client,
    **settings: Any,
) -> LoopGrid:
    """A whole federation, with its run folder in `out` and the sites' states beside it."""
    config = with_own_code(from_table(table))
    run_config = {key: value for key, value in flat(config).items() if value is not None}
    run_config |= {"flower.out": str(out)} | {f"flower.{key}": value for key, value in settings.items()}
    assert read_settings(run_config) == (config, Settings(out=str(out), **settings))
    state = {"state": str(out.parent / "states")}
    sites = nodes if nodes is not None else [{}] * config.federation.clients
    grid = LoopGrid(run_config, [state | node for node in sites], app)
    coordinate(grid, config, Settings(out=str(out), **settings), test)
    return grid
