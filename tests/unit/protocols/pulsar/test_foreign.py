"""Every command there is, about a topic of another namespace: what is served is refused, and
nothing changes, whatever a client sends.

The commands are made by the shapes of their messages, with the names of what is another's wherever
there is a name, so that a command that is added is asked here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.pulsar.handlers.permits import PERMITS
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import Peer
from tests.unit.protocols.pulsar.test_authentication import Secured, run

SPACE: Final = "other/space"
TOPIC: Final = f"persistent://{SPACE}/named"
HIDDEN: Final = f"persistent://{SPACE}/hidden"
"""Never named by the client."""
SAID: Final = {
    "topic": TOPIC,
    "namespace": SPACE,
    "topics_pattern": f"persistent://{SPACE}/.*",
    "subscription": "taken",
    "initial_subscription_name": "made",
    "metadata_auto_creation_enabled": True,
    "force_topic_creation": True,
    "create": True,
}
OPENED: Final = frozenset(
    (
        BaseCommand.ACK,
        BaseCommand.CLOSE_PRODUCER,
        BaseCommand.CLOSE_CONSUMER,
        BaseCommand.UNSUBSCRIBE,
        BaseCommand.SEEK,
        BaseCommand.GET_LAST_MESSAGE_ID,
        BaseCommand.CONSUMER_STATS,
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
    )
)
"""About a producer, a consumer or a watch of this connection: it has none."""


def fill(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        if field.name in SAID and not field.message_type:
            setattr(message, field.name, SAID[field.name])
        elif field.is_required and field.message_type:
            fill(getattr(message, field.name))
        elif field.is_required or field.name in ("request_id", "action"):
            if field.cpp_type == field.CPPTYPE_STRING:
                setattr(message, field.name, b"" if field.type == field.TYPE_BYTES else "x")
            elif field.cpp_type == field.CPPTYPE_ENUM:
                setattr(message, field.name, field.enum_type.values[0].number)
            else:
                setattr(message, field.name, 1)


def about_others(kind: int) -> BaseCommand:
    """With the bodies of all commands: only its own is looked at."""
    command = BaseCommand(type=BaseCommand.CONNECT)
    for field in command.DESCRIPTOR.fields:
        if field.message_type:
            body = getattr(command, field.name)
            body.SetInParent()
            fill(body)
    command.type = kind  # type: ignore[assignment]
    return command


def codes(message: Message) -> Iterator[int]:
    """Of the errors that an answer says."""
    for field, value in message.ListFields():
        if field.enum_type is not None and field.enum_type.name == "ServerError":
            yield value
        elif field.message_type is not None and not field.is_repeated:
            yield from codes(value)


async def answers(peer: Peer) -> list[BaseCommand]:
    found = []
    for turn in range(150):
        peer.session._flush()
        while (command := peer._pop()) is not None:
            found.append(command)
        await asyncio.sleep(0 if turn < 100 else 0.1)
    return found


def state(world: Secured) -> Any:
    kept = {path: node for path, node in world.metadata.nodes.items() if "loadbalance" not in path}
    logs = world.store.logs.items()
    return kept, {name: (len(log._entries), [*log.cursors.opened]) for name, log in logs}


@pytest.mark.parametrize("grants", [(), ("produce", "consume")], ids=["no-grant", "elsewhere"])
@pytest.mark.parametrize("name", sorted(BaseCommand.Type.keys()))
def test_a_command_about_what_is_not_the_clients(
    tmp_path: Path, name: str, grants: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        world = await Secured(tmp_path).start()
        namespaces = world.broker.control.namespaces
        await namespaces.create_tenant("other")
        await namespaces.create_namespace(SPACE)
        for each in (TOPIC, HIDDEN):
            topic = await world.services.topics.get(parse_topic(each), create=True)
            assert topic is not None
        if grants:
            await world.grant("alice", *grants)
        kind, before = BaseCommand.Type.Value(name), state(world)
        peer = world.role("alice")
        await peer.next()
        peer.tell(about_others(kind))
        told = await answers(peer)
        said = {code for each in told for code in codes(each)}
        if kind in PERMITS and kind not in OPENED:
            refused = {int(ServerError.AUTHORIZATION)}
            if kind == BaseCommand.GET_OR_CREATE_SCHEMA:
                refused = {int(ServerError.INCOMPATIBLE_SCHEMA)}
            assert said == refused, told
        elif kind not in OPENED:
            assert said <= {int(ServerError.NOT_ALLOWED)} or peer.session.closed, told
        assert "hidden" not in str(told)
        assert state(world) == before

    run(scenario)
