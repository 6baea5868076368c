"""Single messages over REST, in the form that Pulsar's admin clients read."""

from __future__ import annotations

import asyncio
import json
from time import sleep
from typing import Any

import httpx
import pytest

from magnetar.admin import messages
from magnetar.admin.messages import shown_entry
from magnetar.log.seam import Content
from magnetar.model.entry import Entry
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from tests.interop.pulsar.wire import checked
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.protocols.kafka.harness import batch as kafka_batch
from tests.unit.protocols.pulsar.harness import World

PREFIX = "x-pulsar-"


def entry(data: bytes, **fields: Any) -> bytes:
    """What a producer sends."""
    properties = fields.pop("properties", {})
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_500, **fields)
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    head = metadata.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + data)


def singles(*values: bytes) -> bytes:
    """The data of a batch."""
    parts = []
    for value in values:
        head = SingleMessageMetadata(payload_size=len(value)).SerializeToString()
        parts.append(len(head).to_bytes(4, "big") + head + value)
    return b"".join(parts)


async def filled(p: Platform, *payloads: bytes) -> None:
    """A topic ``t`` with those entries, and a subscription ``s`` that has acknowledged none."""
    await p.world.peer().subscribe()
    store(p.world, "t", *payloads)


def store(world: World, topic: str, *payloads: bytes) -> None:
    """As if it had been sent: some of it a broker would refuse."""
    content = Content([1] * len(payloads), [1_500] * len(payloads))
    world.log(topic).append([memoryview(each) for each in payloads], lambda *_: None, content)
    world.log(topic).release()


def said(answer: httpx.Response) -> dict[str, str]:
    """Pulsar's headers, without what they have in common."""
    assert answer.status_code == 200, answer.text
    headers = answer.headers.items()
    return {key[len(PREFIX) :]: value for key, value in headers if key.startswith(PREFIX)}


def test_a_message_is_shown_by_its_id_with_all_that_it_says() -> None:
    async def scenario(p: Platform) -> None:
        more = {"event_time": 2_500, "partition_key": "clé", "ordering_key": b"\0"}
        properties = {"team": "data", "ü": "ß\n"}
        await filled(p, entry(b"hello", properties=properties, schema_version=bytes(8), **more))
        answer = await p.client.get(f"{P}/t/ledger/1/entry/0")
        headers = said(answer)
        assert (answer.content, headers["message-id"]) == (b"hello", "1:0")
        assert json.loads(headers["property"]) == properties
        assert headers["publish-time"] == "1970-01-01T00:00:01.500Z"
        assert headers["event-time"] == "1970-01-01T00:00:02.500Z"
        assert (headers["producer-name"], headers["sequence-id"]) == ("p", "7")
        assert headers["partition-key"] == "clé"
        assert headers["base64-ordering-key"] == "AA=="
        assert headers["base64-schema-version-b64encoded"] == "AAAAAAAAAAA="
        assert headers["is-encrypted"] == "false"
        assert "num-batch-message" not in headers

    serve(scenario)


def test_a_batch_comes_whole_and_uncompressed() -> None:
    async def scenario(p: Platform) -> None:
        data = singles(b"a", b"bb")
        fields = {
            "num_messages_in_batch": 2,
            "compression": Compression.ZLIB,
            "uncompressed_size": len(data),
        }
        await filled(p, entry(bytes(find_compressor(Compression.ZLIB)(data)), **fields))
        answer = await p.client.get(f"{P}/t/subscription/s/position/1")
        headers = said(answer)
        assert answer.content == data
        assert (headers["num-batch-message"], headers["batch-size"]) == ("2", str(len(data)))
        assert (headers["compression"], headers["uncompressed-size"]) == ("ZLIB", str(len(data)))

    serve(scenario)


def test_what_is_encrypted_stays_so_and_in_one_piece() -> None:
    async def scenario(p: Platform) -> None:
        fields = {"num_messages_in_batch": 2, "encryption_algo": "AES", "uncompressed_size": 9}
        await filled(p, entry(b"secret", compression=Compression.LZ4, **fields))
        answer = await p.client.get(f"{P}/t/ledger/1/entry/0")
        headers = said(answer)
        assert (answer.content, headers["is-encrypted"]) == (b"secret", "true")
        assert "num-batch-message" not in headers

    serve(scenario)


def test_kafkas_records_are_shown_as_pulsars_consumers_get_them() -> None:
    async def scenario(p: Platform) -> None:
        await filled(p, kafka_batch(2))
        headers = said(await p.client.get(f"{P}/t/ledger/1/entry/0"))
        assert headers["num-batch-message"] == "2"
        assert "compression" not in headers

    serve(scenario)


def test_peeking_counts_what_is_not_acknowledged_and_changes_nothing() -> None:
    async def scenario(p: Platform) -> None:
        await filled(p, *(entry(b"%d" % number) for number in range(130)))
        peer = p.world.peer()
        await peer.subscribe(consumer_id=2)
        peer.acknowledge(0, 2, *range(5, 120), consumer_id=2)
        await peer.heard()
        for number, wanted in ((1, 1), (2, 3), (3, 4), (4, 120), (13, 129)):
            answer = await p.client.get(f"{P}/t/subscription/s/position/{number}")
            assert answer.content == b"%d" % wanted
        again = await p.client.get(f"{P}/t/subscription/s/position/1")
        assert again.content == b"1"
        stats = (await p.client.get(f"{P}/t/stats")).json()["subscriptions"]["s"]
        assert (stats["msgOutCounter"], stats["entriesBacklog"]) == (0, 13)
        status, reason = await p.reason("GET", f"{P}/t/subscription/s/position/14")
        assert (status, "there is no number 14" in reason) == (404, True)

    serve(scenario)


def test_a_subscription_that_is_not_there_is_shown_the_first_and_not_made() -> None:
    """As Pulsar's admin clients count on: PeekMessages of Go's looks so."""

    async def scenario(p: Platform) -> None:
        await filled(p, entry(b"a"), entry(b"b"))
        looked = f"{P}/t/subscription/none/position"
        assert [(await p.client.get(f"{looked}/{n}")).content for n in (1, 2)] == [b"a", b"b"]
        status, reason = await p.reason("GET", f"{looked}/3")
        assert (status, "has no subscription none" in reason) == (404, True)
        assert "none" not in (await p.client.get(f"{P}/t/subscriptions")).json()

    serve(scenario)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("t/ledger/1/entry/1", 404),  # not there yet
        ("t/ledger/9/entry/0", 404),
        ("t/ledger/-1/entry/0", 400),
        ("t/ledger/1/entry/x", 400),
        (f"t/ledger/{1 << 63}/entry/0", 400),
        ("t/subscription/none/position/2", 404),
        ("t/subscription/s/position/0", 400),
        ("t/subscription/s/position/10001", 400),
        ("none/ledger/1/entry/0", 404),
        ("none/lastMessageId", 404),
        ("f/lastMessageId", 412),
        ("f/ledger/1/entry/0", 412),
        (f"t/messageid/{1 << 60}", 400),
    ],
)
def test_what_is_not_there_is_said(path: str, status: int) -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=2)
        await filled(p, entry(b"x"))
        found, reason = await p.reason("GET", f"{P}/{path}")
        assert (found, bool(reason)) == (status, True)

    serve(scenario)


def test_bytes_that_cannot_be_shown_are_no_fault_of_the_server() -> None:
    async def scenario(p: Platform) -> None:
        broken = entry(b"no lz4", compression=Compression.LZ4, uncompressed_size=100)
        timeless = entry(b"x", event_time=(1 << 63) - 1)
        await filled(p, broken, timeless)
        for number in range(2):
            status, reason = await p.reason("GET", f"{P}/t/ledger/1/entry/{number}")
            assert status == 422
            assert reason.startswith(f"entry 1:{number} cannot be shown: ")

    serve(scenario)


def test_ids_by_time_and_the_last_one() -> None:
    async def scenario(p: Platform) -> None:
        await p.status("PUT", f"{P}/f/partitions", json=1)
        part = f"{P}/f-partition-0"
        await p.world.peer().subscribe(topic="f-partition-0")
        empty = (await p.client.get(f"{part}/lastMessageId")).json()
        assert (empty["entryId"], empty["partitionIndex"]) == (-1, 0)
        await filled(p, entry(b"a"), entry(b"b"))
        whole = {"ledgerId": 1, "entryId": 1, "partitionIndex": -1, "batchIndex": -1}
        assert (await p.client.get(f"{P}/t/lastMessageId")).json() == whole
        for time_ms, number in ((0, 0), (1_500, 0), (1_501, 2)):
            found = (await p.client.get(f"{P}/t/messageid/{time_ms}")).json()
            assert found == {**whole, "entryId": number}

    serve(scenario)


def test_the_last_id_is_that_of_a_batchs_last_message() -> None:
    """Clients compare ids, and what is in a batch is after the batch's own id: who reads up to
    that would leave the last batch out."""

    async def scenario(p: Platform) -> None:
        await filled(p, entry(b"a"), entry(singles(b"b", b"c", b"d"), num_messages_in_batch=3))
        last = (await p.client.get(f"{P}/t/lastMessageId")).json()
        assert (last["entryId"], last["batchIndex"]) == (1, 2)

    serve(scenario)


def test_an_id_between_two_ledgers_is_not_that_of_the_next_entry() -> None:
    """A log reads on from wherever it is asked to."""

    async def scenario(p: Platform) -> None:
        await filled(p, *(entry(b"%d" % number) for number in range(6)))
        assert (await p.client.get(f"{P}/t/ledger/2/entry/0")).content == b"5"
        assert await p.status("GET", f"{P}/t/ledger/1/entry/5") == 404

    serve(scenario)


def test_one_entry_is_unpacked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame unpacks to a quarter of a gigabyte at most."""
    under_way: list[int] = []
    most = 0

    def shown(found: Entry) -> messages.ShownEntry:
        nonlocal most
        under_way.append(1)
        most = max(most, len(under_way))
        sleep(0.01)
        under_way.pop()
        return shown_entry(found)

    monkeypatch.setattr(messages, "shown_entry", shown)

    async def scenario(p: Platform) -> None:
        await filled(p, entry(b"hello"))
        answers = await asyncio.gather(*(p.client.get(f"{P}/t/ledger/1/entry/0") for _ in range(5)))
        assert [each.content for each in answers] == [b"hello"] * 5

    serve(scenario)
    assert most == 1
