"""What Pulsar's Java client really sends, played to a session: it is served, and every answer has
the fields that this client reads without asking. So an answer that it would drop its connection
for is found without Java.

The frames are of one run of ``tests/interop/java/PulsarPeer.java`` (see ``capture.py`` there).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import NamedTuple

import pytest

from magnetar.wire.pulsar.commands import COMMAND_NAMES, decode_command
from magnetar.wire.pulsar.hot import decode_send
from magnetar.wire.pulsar.metadata import dispatch_facts
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageIdData
from magnetar.wire.pulsar.sent import check_sent, read_send
from tests.golden.pulsar import FOLDER
from tests.unit.protocols.pulsar.harness import Peer, World, run
from tests.unit.protocols.pulsar.needed_fields import lacking

CLIENT = "java-client-4.0.8"
ANSWERS = {
    "CONNECT": "CONNECTED",
    "PARTITIONED_METADATA": "PARTITIONED_METADATA_RESPONSE",
    "LOOKUP": "LOOKUP_RESPONSE",
    "PRODUCER": "PRODUCER_SUCCESS",
    "SEND": "SEND_RECEIPT",
    "GET_LAST_MESSAGE_ID": "GET_LAST_MESSAGE_ID_RESPONSE",
    "GET_OR_CREATE_SCHEMA": "GET_OR_CREATE_SCHEMA_RESPONSE",
    "GET_TOPICS_OF_NAMESPACE": "GET_TOPICS_OF_NAMESPACE_RESPONSE",
    "SUBSCRIBE": "SUCCESS",
    "SEEK": "SUCCESS",
    "UNSUBSCRIBE": "SUCCESS",
    "CLOSE_PRODUCER": "SUCCESS",
    "CLOSE_CONSUMER": "SUCCESS",
    "GET_SCHEMA": "GET_SCHEMA_RESPONSE",
}


class Sent(NamedTuple):
    """A frame, and which of the client's connections it was sent on."""

    connection: int
    kind: str
    data: bytes

    @property
    def command(self) -> BaseCommand:
        return decode_command(memoryview(self.data), 4, len(self.data))


def conversation() -> list[Sent]:
    text = json.loads((FOLDER / f"{CLIENT}.json").read_text())
    return [
        Sent(item["connection"], item["kind"], bytes.fromhex(item["frame"]))
        for item in text["frames"]
    ]


SENT = conversation()
SENDS = [sent.data for sent in SENT if sent.kind == "SEND"]


def test_there_is_a_frame_of_each_kind() -> None:
    assert {sent.kind for sent in SENT} >= set(ANSWERS) | {"FLOW", "ACK"}


def refusable(command: BaseCommand) -> bool:
    """What the run asked for because it is not served."""
    if command.type in (BaseCommand.PARTITIONED_METADATA, BaseCommand.LOOKUP):
        return "transaction_coordinator" in str(command)
    return command.type == BaseCommand.GET_SCHEMA


def refused(answer: BaseCommand) -> bool:
    kind = answer.type
    if kind == BaseCommand.PARTITIONED_METADATA_RESPONSE:
        return answer.partitionMetadataResponse.HasField("error")
    if kind == BaseCommand.LOOKUP_RESPONSE:
        return answer.lookupTopicResponse.HasField("error")
    if kind == BaseCommand.GET_SCHEMA_RESPONSE:
        return answer.getSchemaResponse.HasField("error_code")
    return bool(kind == BaseCommand.ERROR)


async def play(world: World) -> list[BaseCommand]:
    """Play all; every answer, each checked against what it answers."""
    peers: dict[int, Peer] = {}
    heard: list[BaseCommand] = []
    for sent in SENT:
        peer = peers.setdefault(sent.connection, world.peer(hello=False))
        peer.feed(sent.data)
        answers = await peer.heard()
        for _ in range(5):  # what waits for the log takes some turns more
            answers += await peer.heard()
        assert not peer.session.closed, f"{sent.kind} ended the connection"
        wanted = ANSWERS.get(sent.kind)
        kinds = Counter(COMMAND_NAMES[int(answer.type)] for answer in answers)
        if any(refused(answer) for answer in answers):
            assert refusable(sent.command), f"refused: {sent.command}: {answers}"
        elif wanted is not None and sent.kind != "SEND":
            assert kinds[wanted], f"{sent.kind} was answered by {dict(kinds)}: {sent.command}"
        heard += answers
    return heard


def test_the_conversation_is_served_and_the_answers_have_what_the_client_reads() -> None:
    async def scenario(world: World) -> None:
        heard = await play(world)
        assert [missing for answer in heard for missing in lacking(answer)] == []
        kinds = Counter(COMMAND_NAMES[int(answer.type)] for answer in heard)
        assert set(kinds) >= set(ANSWERS.values()) | {"MESSAGE", "ACK_RESPONSE"}
        assert kinds["SEND_RECEIPT"] == len(SENDS)

    run(scenario)


@pytest.mark.parametrize("data", SENDS, ids=range(len(SENDS)))
def test_its_messages_are_sound(data: bytes) -> None:
    view = memoryview(data)
    found = decode_send(view, 4, len(data))
    sent = check_sent(view, found.payload_start, found.payload_end)
    ids = (found.producer_id, found.sequence_id, found.highest_sequence_id)
    assert read_send(view, 4, len(data)) == (*ids, found.payload_start, *sent)
    payload = view[found.payload_start : found.payload_end]
    assert dispatch_facts(payload)[0] >= 1


def test_it_names_itself_and_its_ids_as_expected() -> None:
    connect = SENT[0].command.connect
    assert connect.client_version.startswith("Pulsar-Java-v4.0.8")
    starts = [
        sent.command.subscribe.start_message_id
        for sent in SENT
        if sent.kind == "SUBSCRIBE" and sent.command.subscribe.HasField("start_message_id")
    ]
    assert MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1) in [
        MessageIdData(ledgerId=start.ledgerId, entryId=start.entryId) for start in starts
    ]
