"""What a reader that plans is told of a log in the answer to GET_LAST_MESSAGE_ID."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.model.errors import EntryDamagedError, NoEntryError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, LogExtent, LogHold, LogQuestion
from tests.interop.pulsar.wire import send_frame
from tests.unit.protocols.pulsar.harness import Peer, World, batch, run


def question(asked: LogQuestion | None = None) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id = 1
    command.getLastMessageId.request_id = 3
    if asked is not None:
        command.getLastMessageId.log_question.CopyFrom(asked)
    return command


async def told(peer: Peer, asked: LogQuestion | None = None) -> LogExtent:
    answer = await peer.ask(question(asked))
    assert answer.type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, answer
    return answer.getLastMessageIdResponse.log_extent


async def reader_of(world: World) -> Peer:
    """Ledger 1 holds five batches of three messages each, ledger 2 two."""
    peer = Peer(world, hello=True)
    await peer.produce()
    await peer.subscribe()
    for number in range(7):
        peer.feed(send_frame(1, 3 * number, batch(3), 3))
    await peer.heard()
    return peer


def places(found: object) -> list[tuple[int, int, int, int]]:
    return [(p.ledger_id, p.entry_id, p.batch_index, p.offset) for p in found]  # type: ignore[attr-defined]


def test_nothing_is_told_that_was_not_asked() -> None:
    async def scenario(world: World) -> None:
        extent = await told(await reader_of(world))
        assert (extent.first_offset, extent.end_offset) == (0, 21)
        assert not extent.ledgers
        assert not extent.of_offsets

    run(scenario)


def test_ledgers() -> None:
    async def scenario(world: World) -> None:
        peer = await reader_of(world)
        extent = await told(peer, LogQuestion(ledgers=True))
        assert [(one.ledger_id, one.entries, one.closed) for one in extent.ledgers] == [
            (1, 5, True),
            (2, 2, False),
        ]
        for first_id, last_id, ids in ((2, 9, [2]), (0, 1, [1]), (3, 9, [])):
            asked = LogQuestion(ledgers=True, first_ledger_id=first_id, last_ledger_id=last_id)
            assert [one.ledger_id for one in (await told(peer, asked)).ledgers] == ids
        assert extent.ledgers[0].stored_bytes * 2 == extent.ledgers[1].stored_bytes * 5
        for one in extent.ledgers:
            assert 0 < one.least_ms <= one.greatest_ms

    run(scenario)


def test_offsets_are_places_and_places_are_offsets() -> None:
    async def scenario(world: World) -> None:
        peer = await reader_of(world)
        asked = LogQuestion(offsets=[0, 4, 14, 15, 20, 21, 1000])
        found = places((await told(peer, asked)).of_offsets)
        end = (2, 2, 0, 21)
        assert found == [
            (1, 0, 0, 0), (1, 1, 1, 4), (1, 4, 2, 14), (2, 0, 0, 15), (2, 1, 2, 20), end, end,
        ]  # fmt: skip
        back = LogQuestion()
        for ledger_id, entry_id, batch_index, _ in found:
            back.places.add(ledger_id=ledger_id, entry_id=entry_id, batch_index=batch_index)
        back.places.add(ledger_id=-1, entry_id=-1)
        back.places.add(ledger_id=1, entry_id=5)  # after the last of a ledger
        back.places.add(ledger_id=1, entry_id=0, batch_index=-1)  # as the id of one without a batch
        offsets = [offset for *_, offset in places((await told(peer, back)).of_places)]
        assert offsets == [0, 4, 14, 15, 20, 21, 21, 0, 15, 0]

    run(scenario)


def test_times() -> None:
    async def scenario(world: World) -> None:
        found = (await told(await reader_of(world), LogQuestion(times_ms=[0, 1, 2]))).of_times
        assert places(found) == [(1, 0, 0, 0), (1, 0, 0, 0), (2, 2, 0, 21)]

    run(scenario)


def test_a_question_that_is_too_long_is_refused() -> None:
    async def scenario(world: World) -> None:
        peer = await reader_of(world)
        answer = await peer.ask(question(LogQuestion(offsets=range(101))))
        assert answer.type == BaseCommand.ERROR
        assert "101 places of a log in one question; at most 100" in answer.error.message

    run(scenario)


def test_a_reader_holds_the_log_and_lets_it_go() -> None:
    async def scenario(world: World) -> None:
        peer = await reader_of(world)
        asked = LogQuestion(hold=LogHold(holder="r", ledger_id=1, for_ms=500), ledgers=True)
        extent = await told(peer, asked)
        assert extent.held_ms == 500
        assert len(extent.ledgers) == 2
        assert [hold[:2] for hold in world.log().holds.all()] == [("r", 1)]
        asked = LogQuestion(hold=LogHold(holder="r", ledger_id=0, for_ms=0))
        assert (await told(peer, asked)).held_ms == 0
        assert world.log().holds.all() == ()
        assert not (await told(peer)).HasField("held_ms")

    run(scenario)


def test_what_a_reader_waits_for_in_vain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last entry, too: where the log ends does not depend on it."""
    monkeypatch.setattr("magnetar.topics.consuming.feed.RETRY_DELAY_S", 0.02)

    async def scenario(world: World) -> None:
        peer = await reader_of(world)
        assert not (await told(peer)).HasField("unread")
        log = world.log()
        log.cached = False
        for error, lost in (
            (EntryDamagedError("no replica has a sound copy of entry 1:0"), True),
            (NoEntryError("no replica has entry 1:0"), True),
        ):
            log.failing = error
            peer.flow(10)
            await asyncio.sleep(0.1)
            answer = await peer.ask(question())
            reply = answer.getLastMessageIdResponse
            last = reply.last_message_id
            assert (last.ledgerId, last.entryId, last.batch_index) == (2, 1, -1)
            unread = reply.log_extent.unread
            assert (unread.ledger_id, unread.entry_id, unread.why, unread.lost) == (
                1, 0, str(error), lost,
            )  # fmt: skip
            assert (unread.behind_ledger_id, unread.behind_entry_id) == (1, 1)
        log.failing = None
        await asyncio.sleep(0.1)
        assert await peer.entries()
        assert not (await told(peer)).HasField("unread")

    run(scenario)
