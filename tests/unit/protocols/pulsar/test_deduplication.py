"""What a producer sends again is not stored again, and nobody is told that it is stored before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.seam import AppendDone, Content
from magnetar.model.errors import NotEnoughBookiesError, OffsetOutOfRangeError
from magnetar.topics.deleting import delete_records
from magnetar.topics.publishing.deduplicating import DEDUPLICATION
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.interop.pulsar.wire import checked, message, send_frame
from tests.unit.protocols.pulsar.harness import Peer, World, run
from tests.unit.protocols.pulsar.test_publishing import receipts

NAME = parse_topic("t")
NOWHERE = (1 << 64) - 1
ON: dict[str, Any] = {"deduplication": True}


def entry(name: str, sequence_id: int, data: bytes = b"x", **fields: Any) -> bytes:
    """A stored payload."""
    meta = MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1, **fields)
    head = meta.SerializeToString()
    return checked(len(head).to_bytes(4, "big") + head + data)


def batch_of(name: str, *ids: int, highest: int = 0, key: str = "") -> bytes:
    """A batch of messages with those ids."""
    parts = []
    for number in ids:
        single = SingleMessageMetadata(payload_size=1, sequence_id=number)
        if key:
            single.partition_key = key
        head = single.SerializeToString()
        parts.append(len(head).to_bytes(4, "big") + head + b"x")
    fields = {"highest_sequence_id": highest} if highest else {}
    return entry(name, ids[0], b"".join(parts), num_messages_in_batch=len(ids), **fields)


def send(sequence_id: int, name: str = "p") -> bytes:
    return send_frame(1, sequence_id, entry(name, sequence_id))


async def ids(world: World) -> list[int]:
    """The sequence ids that the log holds."""
    form = world.topic().deduplication.format
    return [form.sent(each.payload)[1] for each in world.log()._entries]


async def all_receipts(peer: Peer, count: int) -> list[tuple[int, bool]]:
    """(sequence id, stored just now)"""
    found: list[tuple[int, bool]] = []
    for _ in range(100):
        for sequence_id, ledger_id, entry_id in receipts(await peer.heard()):
            assert (ledger_id == NOWHERE) is (entry_id == NOWHERE)
            found.append((sequence_id, ledger_id != NOWHERE))
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} receipts of {count}")


async def connect(world: World, **fields: Any) -> tuple[Peer, int]:
    """A producer named p, and what it is told of earlier ones."""
    peer = world.peer()
    answer = await peer.produce(name="p", user_provided_producer_name=True, **fields)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    return peer, answer.producer_success.last_sequence_id


def test_repeats_are_told_so_in_their_turn_and_not_stored() -> None:
    async def scenario(world: World) -> None:
        peer, last = await connect(world)
        assert last == -1
        sent = [0, 1, 2, 1, 3, 3, 0, 4]
        peer.feed(
            b"".join(map(send, sent))
        )  # in one chunk, so some are repeats of what is under way
        found = await all_receipts(peer, len(sent))
        assert [each for each, _ in found] == sent
        assert [new for _, new in found] == [True, True, True, False, True, False, False, True]
        peer.feed(send(4) + send(5) + send(2) + send(5) + send(6))
        found = await all_receipts(peer, 5)
        assert found == [(4, False), (5, True), (2, False), (5, False), (6, True)]
        assert await ids(world) == list(range(7))

    run(scenario, **ON)


def test_without_the_policy_nothing_is_looked_at() -> None:
    async def scenario(world: World) -> None:
        peer, last = await connect(world)
        assert last == -1
        peer.feed(send(1) + send(1))
        assert await all_receipts(peer, 2) == [(1, True), (1, True)]
        assert DEDUPLICATION not in world.log().cursors.durable()

    run(scenario)


def test_nobody_hears_of_a_repeat_before_it_is_stored() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        world.log().held = True
        peer.feed(send(0))
        peer.feed(send(0) + send(1))
        assert receipts(await peer.heard()) == []
        world.log().release()
        assert await all_receipts(peer, 3) == [(0, True), (0, False), (1, True)]

    run(scenario, **ON)


def test_repeats_that_wait_count_as_bytes_under_way() -> None:
    """A client that sends one message again and again is not read while the first is stored."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        log = world.log()
        log.held = True
        sent = 0
        while peer.transport.reading:
            peer.feed(send(0))
            sent += 1
            assert sent < 100
        assert sent > 1
        log.release()
        assert len(await all_receipts(peer, sent)) == sent
        assert peer.transport.reading
        assert peer.session._unconfirmed_bytes == 0
        log.held = False
        peer.feed(send(0) + send(1) + send(0))
        await all_receipts(peer, 3)
        assert peer.session._unconfirmed_bytes == 0

    run(scenario, **ON, pending_publish_bytes_per_connection=5_000)


def test_a_repeat_of_what_fails_is_answered_by_nobody_and_stored_when_it_comes_again() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(send(0))
        await all_receipts(peer, 1)
        log = world.log()
        log.held = True
        peer.feed(send(1) + send(1) + send(0))
        log.failing = NotEnoughBookiesError("none is left")
        log.release()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        assert peer.session._unconfirmed_bytes == 0
        log.failing, log.held = None, False
        again, last = await connect(world, epoch=1)
        assert last == 0
        again.feed(send(1) + send(1) + send(0))
        assert await all_receipts(again, 3) == [(1, True), (1, False), (0, False)]
        assert await ids(world) == [0, 1]

    run(scenario, **ON)


def test_of_what_fails_half_way_that_is_known_which_is_stored() -> None:
    """What the rest of it would have been is stored when it comes again."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(send(1))
        assert await all_receipts(peer, 1) == [(1, True)]
        topic = world.topic()
        append = topic.publish

        def half(payloads: Any, done: AppendDone, content: Any = None) -> None:
            error = NotEnoughBookiesError("too few")
            kept = Content(content.messages[:1], content.publish_times_ms[:1])
            append(payloads[:1], lambda _, runs: done(error, runs), kept)

        topic.publish = half
        peer.feed(send(2) + send(3))
        await peer.heard()
        again, last = await connect(world)
        assert last == 2
        again.feed(send(2) + send(3))
        assert await all_receipts(again, 2) == [(2, False), (3, True)]
        assert await ids(world) == [1, 2, 3]

    run(scenario, **ON)


def test_what_a_lost_connection_left_under_way_is_waited_for() -> None:
    """A producer of the same name that begins anew: it is not the one that comes back."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        log = world.log()
        log.held = True
        peer.feed(send(0) + send(1))
        peer.lose()
        waiting = asyncio.ensure_future(connect(world))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        log.release()
        log.held = False
        again, last = await waiting
        assert last == 1
        again.feed(send(1) + send(2))
        assert await all_receipts(again, 2) == [(1, False), (2, True)]

    run(scenario, **ON)


def test_a_producer_that_comes_back_is_told_the_places_that_it_can_know() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(send(0) + send(1))
        await all_receipts(peer, 2)
        peer.lose()
        again, last = await connect(world, epoch=1)
        assert last == 1
        again.feed(send(1) + send(2) + send(0))
        assert await all_receipts(again, 3) == [(1, True), (2, True), (0, False)]
        assert await ids(world) == [0, 1, 2]

    run(scenario, **ON)


@pytest.mark.parametrize("stored", [True, False], ids=["snapshot", "log alone"])
def test_the_next_owner_knows_it_from_the_note_and_the_log_behind_it(stored: bool) -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        for n in range(25):
            peer.feed(send(n))
        await all_receipts(peer, 25)
        other = world.peer()
        await other.produce(name="q", user_provided_producer_name=True)
        other.feed(send(7, "q"))
        await all_receipts(other, 1)
        if not stored:
            world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        again, last = await connect(world)
        assert last == 24
        cursor = world.log().cursors.durable()[DEDUPLICATION]
        assert (cursor.mark_delete == world.log().positions.readable) is stored
        again.feed(send(24) + send(25))
        assert await all_receipts(again, 2) == [(24, False), (25, True)]
        other = world.peer()
        answer = await other.produce(name="q", user_provided_producer_name=True)
        assert answer.producer_success.last_sequence_id == 7

    run(scenario, **ON, deduplication_snapshot_entries=10)


def test_the_snapshot_follows_so_that_little_is_held_back() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        for n in range(25):
            peer.feed(send(n))
        await all_receipts(peer, 25)
        positions, cursor = world.log().positions, world.log().cursors.durable()[DEDUPLICATION]
        assert positions.entries_between(cursor.mark_delete, positions.readable) == 5
        world.topic().look()
        assert cursor.mark_delete == positions.readable
        # What others append is passed, too, unless something is under way that it may lie behind.
        log = world.log()
        log.append([b"\0" * 80], lambda *_: None)
        await asyncio.sleep(0.1)
        behind = positions.readable
        log.held = True
        peer.feed(send(25))
        world.topic().look()
        assert cursor.mark_delete < behind
        log.release()
        await all_receipts(peer, 1)
        log._confirm([bytes(100)], lambda *_: None)
        assert cursor.mark_delete < positions.readable
        world.topic().look()
        assert cursor.mark_delete == positions.readable

    run(scenario, **ON, deduplication_snapshot_entries=10)


def test_there_is_a_note_before_anything_is_published() -> None:
    """By it a log with a table keeps what the note does not speak of yet."""

    async def scenario(world: World) -> None:
        await connect(world)
        note = world.log().cursors.durable()[DEDUPLICATION].noted
        assert note is not None
        assert note.value

    run(scenario, **ON)


def test_what_is_deleted_is_not_stored_again() -> None:
    """After a crash only the note can tell of it: the entries are gone."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(b"".join(map(send, range(5))))
        await all_receipts(peer, 5)
        cursor = world.log().cursors.durable()[DEDUPLICATION]

        class Front:
            offset = 0

            async def delete_before(self, _offset: int) -> int:
                assert cursor.waits == 1, "it is durable before they go"
                assert cursor.mark_delete == world.log().positions.readable
                return 5

        world.log().front = Front()
        await delete_records(world.topic(), -1)
        world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        again, last = await connect(world)
        assert last == 4
        again.feed(send(4) + send(5))
        assert await all_receipts(again, 2) == [(4, False), (5, True)]

    run(scenario, **ON)


def test_what_is_deleted_before_a_producer_has_come_is_not_stored_again() -> None:
    """The last owner crashed before it could write a note: the next one reads what it deletes."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(b"".join(map(send, range(5))))
        await all_receipts(peer, 5)
        world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        topic = await world.services.topics.get(NAME, create=False)
        cursor = world.log().cursors.durable()[DEDUPLICATION]
        assert cursor.mark_delete < world.log().positions.readable

        class Front:
            offset = 0

            async def delete_before(self, offset: int) -> int:
                assert cursor.mark_delete == world.log().positions.readable
                return offset

        world.log().front = Front()
        assert await delete_records(topic, -1) == 5
        topic.deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        again, last = await connect(world)
        assert last == 4
        again.feed(send(4) + send(5))
        assert await all_receipts(again, 2) == [(4, False), (5, True)]

    run(scenario, **ON)


def test_what_comes_while_the_note_is_stored_is_not_deleted() -> None:
    """The note does not have it, and nothing else would after a crash."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(b"".join(map(send, range(5))))
        await all_receipts(peer, 5)
        cursor, asked = world.log().cursors.durable()[DEDUPLICATION], list[int]()
        wait_stored, numbers = cursor.wait_stored, iter((5, 6))

        async def slow() -> None:
            await wait_stored()
            peer.feed(send(next(numbers)))
            await all_receipts(peer, 1)

        class Front:
            offset = 0

            async def delete_before(self, offset: int) -> int:
                asked.append(offset)
                return offset

        cursor.wait_stored = slow  # type: ignore[method-assign]
        world.log().front = Front()
        assert await delete_records(world.topic(), -1) == 5
        with pytest.raises(OffsetOutOfRangeError):
            await delete_records(world.topic(), 7)
        assert await delete_records(world.topic(), 3) == 3
        assert asked == [5, 3]
        assert await ids(world) == list(range(7))

    run(scenario, **ON)


def test_a_producer_is_remembered_for_a_while_after_it_left() -> None:
    """However long it was connected without a word: it may have a message in doubt."""

    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(send(0))
        await all_receipts(peer, 1)
        for leaves in (False, True):
            for _ in range(3):
                await asyncio.sleep(4)
                peer.pong()
                world.topic().look()
            if leaves:
                peer.lose()
                await asyncio.sleep(8)
                world.topic().look()
        again, last = await connect(world)
        assert last == 0
        again.feed(send(0) + send(1))
        assert await all_receipts(again, 2) == [(0, False), (1, True)]
        again.lose()
        await asyncio.sleep(11)
        world.topic().look()
        assert (await connect(world))[1] == -1, "nobody is remembered for ever"

    run(scenario, **ON, deduplication_inactive_ms=10_000)


@pytest.mark.parametrize("stored", [True, False], ids=["snapshot", "log alone"])
def test_all_chunks_of_a_message_are_stored_and_none_of_them_twice(stored: bool) -> None:
    """They bear one id."""

    async def scenario(world: World) -> None:
        def chunk(sequence_id: int, number: int) -> bytes:
            fields = {"uuid": f"p-{sequence_id}", "num_chunks_from_msg": 3, "chunk_id": number}
            data = entry("p", sequence_id, total_chunk_msg_size=3, **fields)
            return send_frame(1, sequence_id, data)

        peer, _ = await connect(world)
        peer.feed(send(0) + chunk(1, 0) + chunk(1, 1) + chunk(1, 2) + send(2))
        assert [new for _, new in await all_receipts(peer, 5)] == [True] * 5
        peer.feed(chunk(1, 0) + chunk(1, 1) + chunk(1, 2) + chunk(3, 0) + chunk(3, 1))
        found = [new for _, new in await all_receipts(peer, 5)]
        assert found == [False, False, False, True, True]
        # Its last chunk was never sent: it is not there, and is sent again as a whole.
        if not stored:
            world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        again, last = await connect(world)
        assert last == 2
        again.feed(chunk(3, 0) + chunk(3, 1) + chunk(3, 2) + chunk(3, 2))
        assert [new for _, new in await all_receipts(again, 4)] == [True, True, True, False]

    run(scenario, **ON)


@pytest.mark.parametrize(
    ("inside", "highest"),
    [((3, 4, 5, 6, 7, 8, 9), 0), ((3, 4, 5, 6, 7, 8, 9), 9), ((3, 4, 9), 9)],
    ids=["first id only", "highest id", "with gaps"],
)
def test_a_batch_counts_up_to_its_last_message(inside: tuple[int, ...], highest: int) -> None:
    async def scenario(world: World) -> None:
        def frame() -> bytes:
            return send_frame(1, 3, batch_of("p", *inside, highest=highest), len(inside))

        peer, _ = await connect(world)
        peer.feed(frame() + frame())
        assert await all_receipts(peer, 2) == [(3, True), (3, False)]
        peer.feed(send(9) + send(10))
        assert await all_receipts(peer, 2) == [(9, False), (10, True)]
        world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        _, last = await connect(world)
        assert last == 10

    run(scenario, **ON)


@pytest.mark.parametrize(
    "singles", [(None, None, None), (None, 1, 2), (7, 8, 9), (0, 2, 4), (0, 0, 0)], ids=str
)
def test_no_more_is_taken_for_sent_than_a_batch_says(singles: tuple[int | None, ...]) -> None:
    """Batches that are numbered themselves, whatever is in them: each is stored."""

    async def scenario(world: World) -> None:
        def frame(number: int) -> bytes:
            parts = []
            for each in singles:
                single = SingleMessageMetadata(payload_size=1)
                if each is not None:
                    single.sequence_id = each
                head = single.SerializeToString()
                parts.append(len(head).to_bytes(4, "big") + head + b"x")
            data = entry("p", number, b"".join(parts), num_messages_in_batch=len(singles))
            return send_frame(1, number, data, len(singles))

        peer, _ = await connect(world)
        peer.feed(b"".join(frame(number) for number in (0, 1, 2, 1)))
        assert [new for _, new in await all_receipts(peer, 4)] == [True, True, True, False]

    run(scenario, **ON)


@pytest.mark.parametrize("says_highest", [True, False])
def test_batches_by_key_lose_nothing_though_their_ids_interleave(says_highest: bool) -> None:
    async def scenario(world: World) -> None:
        def frame(key: str, *inside: int) -> bytes:
            highest = inside[-1] if says_highest else 0
            return send_frame(1, inside[0], batch_of("p", *inside, highest=highest, key=key), 3)

        peer, _ = await connect(world)
        peer.feed(frame("a", 0, 2, 8) + frame("b", 1, 4, 5) + frame("c", 3, 6, 7) + send(9))
        assert [new for _, new in await all_receipts(peer, 4)] == [True] * 4
        peer.feed(frame("b", 1, 4, 5) + frame("c", 3, 6, 7))
        assert [new for _, new in await all_receipts(peer, 2)] == [False] * 2

    run(scenario, **ON)


def test_a_batch_that_is_there_in_part_is_refused_and_its_producer_told_why() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await connect(world)
        peer.feed(send(3) + send_frame(1, 2, batch_of("p", 2, 3, 4), 3) + send(5))
        assert await peer.kinds() == ["SEND_RECEIPT", "CLOSE_PRODUCER"]
        answer = await peer.produce(name="p", epoch=1, user_provided_producer_name=True)
        assert answer.error.error == ServerError.PRODUCER_FENCED
        assert "last sequence id is 3" in answer.error.message
        assert await ids(world) == [3]
        _, last = await connect(world)
        assert last == 3

    run(scenario, **ON)


def test_it_is_turned_on_and_off_while_producers_are_connected() -> None:
    async def scenario(world: World) -> None:
        policies = world.broker.control.policies
        peer, _ = await connect(world)
        peer.feed(send(0))
        await all_receipts(peer, 1)
        await policies.set_topic(NAME, "deduplication", True)
        assert (await peer.next()).type == BaseCommand.CLOSE_PRODUCER
        peer, last = await connect(world, epoch=1)
        assert last == -1  # what was there before it was turned on is not known
        peer.feed(send(1) + send(1))
        assert await all_receipts(peer, 2) == [(1, True), (1, False)]
        assert list(world.topic().subscriptions) == []
        await policies.set_topic(NAME, "deduplication", False)
        assert (await peer.next()).type == BaseCommand.CLOSE_PRODUCER
        peer, last = await connect(world, epoch=2)
        assert last == -1
        peer.feed(send(1, "q") + send(1, "q"))
        assert await all_receipts(peer, 2) == [(1, True), (1, True)]
        assert DEDUPLICATION not in world.log().cursors.durable()

    run(scenario)


def test_a_topic_that_is_opened_after_it_was_turned_off_forgets() -> None:
    async def scenario(world: World) -> None:
        policies = world.broker.control.policies
        await policies.set_topic(NAME, "deduplication", True)
        peer, _ = await connect(world)
        peer.feed(send(0))
        await all_receipts(peer, 1)
        assert await world.services.topics.unload(NAME)
        await policies.set_topic(NAME, "deduplication", False)
        topic = await world.services.topics.get(NAME, create=False)
        assert DEDUPLICATION in world.log().cursors.durable()
        topic.look()
        await asyncio.sleep(1)
        assert DEDUPLICATION not in world.log().cursors.durable()

    run(scenario)


def test_its_cursor_is_no_subscription() -> None:
    async def scenario(world: World) -> None:
        await connect(world)
        peer = world.peer()
        answer = await peer.subscribe(DEDUPLICATION)
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert await world.services.topics.unload(NAME)
        topic = await world.services.topics.get(NAME, create=False)
        assert list(topic.subscriptions) == []

    run(scenario, **ON)


def test_a_log_that_may_show_later_what_it_refused_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.services.topics.get(NAME, create=True)
        world.log().owns_sequences = True
        peer = world.peer()
        answer = await peer.produce(name="p")
        assert answer.error.error == ServerError.NOT_ALLOWED
        assert "on partitions" in answer.error.message

    run(scenario, **ON)


def test_staged_writes_and_batches_of_kafka_are_passed_over() -> None:
    async def scenario(world: World) -> None:
        await connect(world)
        log = world.log()
        log.append(
            [entry("staged:query:1:2", 99), b"\0" * 80, b"", message(b"x", 5)], lambda *_: None
        )
        await asyncio.sleep(0)
        world.topic().deduplication.snapshot = lambda **_: None  # type: ignore
        assert await world.services.topics.unload(NAME)
        peer = world.peer()
        answer = await peer.produce(name="wire", user_provided_producer_name=True)
        assert answer.producer_success.last_sequence_id == 5
        assert len(world.topic().deduplication._marks or ()) == 1

    run(scenario, **ON)
