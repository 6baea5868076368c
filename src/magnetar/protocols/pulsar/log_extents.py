"""What GET_LAST_MESSAGE_ID says of a topic's log beyond Pulsar's own answer

That is from where to where it reaches, and what else a reader that plans asks (``LogQuestion``): it
plans by offsets, times and ledgers without reading entries. Everything of one answer is of one log.
Bounded: ``QUESTIONS_MAX`` of a kind, as each costs some reads of headers.

The fields: docs/formats/pulsar-protocol.md.
"""

from __future__ import annotations

from typing import Final

from magnetar.log.policy import UNLIMITED
from magnetar.log.seam import LogStats, ReadableLog, TableMark, TakenLedger
from magnetar.model.errors import NotAllowedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.consuming.feed import Unread
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.pulsar_pb2 import LogExtent, LogPlace, LogQuestion

QUESTIONS_MAX: Final = 100


async def fill_log_extent(
    extent: LogExtent, source: ReadableLog, question: LogQuestion, last: Position
) -> None:
    """Say how far ``source`` reaches, and what ``question`` asks. ``last``: the last entry that
    consumers get; what lies behind it (of transactions) is not counted. Raises as
    ``ReadableLog.read``, and ``NotAllowedError`` for a question that is too long."""
    asked = max(len(question.offsets), len(question.places), len(question.times_ms))
    if asked > QUESTIONS_MAX:
        raise NotAllowedError(f"{asked} places of a log in one question; at most {QUESTIONS_MAX}")
    positions = source.positions
    first_offset = await positions.offset_of(EARLIEST)
    behind = last < positions.readable
    end_offset = await positions.offset_of(positions.next_position(last)) if behind else -1
    stats = source.stats()  # what follows is of one moment
    extent.first_offset = first_offset
    extent.trimmed_ledger_id, extent.trimmed_entry_id = stats.trimmed
    if stats.created_ms:
        extent.created_ms = stats.created_ms
    extent.end_offset = end_offset if behind else positions.end_offset
    extent.numbered_by_offset = not stats.on_ledgers
    if stats.table is not None:
        extent.table = stats.table.where
    if question.ledgers:
        _fill_ledgers(extent, stats, question)
    await _answer_places(extent, source, question)


def fill_unread(extent: LogExtent, unread: Unread | None) -> None:
    """Say what a consumer waits for that cannot be read, if anything: it may be lost."""
    if unread is None:
        return
    told = extent.unread
    told.ledger_id, told.entry_id = unread.place
    told.behind_ledger_id, told.behind_entry_id = unread.behind
    told.why, told.lost = unread.why, unread.lost


async def fill_given(extent: LogExtent, topic: SubscribableTopic, question: LogQuestion) -> None:
    """Say what of a stretch of the log consumers get, if that is asked: a reader has come past it,
    and wants to know whether anything was left out. Raises as ``ReadableLog.read``."""
    if not question.HasField("given"):
        return
    first, stop = question.given.first, question.given.stop
    begin = Position(first.ledger_id, first.entry_id)
    if begin.ledger_id < 0:
        begin = topic.readable.positions.first
    found = await topic.given_between(begin, Position(stop.ledger_id, stop.entry_id))
    extent.given.any, extent.given.undecided = found.any, found.undecided
    extent.given.sought_to.ledger_id, extent.given.sought_to.entry_id = found.sought_to


async def hold_log(extent: LogExtent, topic: SubscribableTopic, question: LogQuestion) -> None:
    """Hold what a reader is going to read against trimming, if it asks for that. Raises as
    ``Holds.take``, and ``NotAllowedError`` where another broker owns the log."""
    if not question.HasField("hold"):
        return
    if not isinstance(topic, Topic):
        raise NotAllowedError(f"topic {topic.name} is held at its owner: look it up, and ask there")
    asked, log = question.hold, topic.log
    if asked.for_ms == 0:
        await log.holds.release(asked.holder)
    else:
        await log.holds.take(asked.holder, asked.ledger_id, asked.for_ms)
    extent.held_ms = asked.for_ms


async def note_table(topic: SubscribableTopic, question: LogQuestion) -> None:
    """Note what is said of the log's table, if anything is. Raises as ``TabledLedgers`` does, and
    ``NotAllowedError`` where another broker owns the log."""
    if not question.HasField("table"):
        return
    if not isinstance(topic, Topic):
        raise NotAllowedError(f"topic {topic.name}: its table is told of at its owner: look it up")
    told, tabled = question.table, topic.log.tabled
    if told.detach:
        await tabled.detach(told.where)
        return
    if tabled.mark is None and told.HasField("problem"):
        return  # of a job that has not attached it yet: then nothing waits for its table
    if tabled.mark is None or told.HasField("kept_ms") or told.HasField("kept_bytes"):
        kept_ms = told.kept_ms if told.HasField("kept_ms") else UNLIMITED
        kept_bytes = told.kept_bytes if told.HasField("kept_bytes") else UNLIMITED
        await tabled.attach(TableMark(told.where, kept_ms, kept_bytes))
    if told.HasField("gone_ledger_id"):
        await tabled.forget(told.where, told.gone_ledger_id, lost=told.lost)
    if told.rewritten:
        tabled.rewritten(told.where)
    if told.HasField("problem"):
        tabled.note_problem(told.where, told.problem)
    taken = [TakenLedger(each.ledger_id, each.entries, each.messages) for each in told.taken]
    await tabled.take(told.where, taken)


def _fill_ledgers(extent: LogExtent, stats: LogStats, question: LogQuestion) -> None:
    first_id = question.first_ledger_id
    last_id = question.last_ledger_id if question.HasField("last_ledger_id") else None
    for each in stats.ledgers:
        if each.ledger_id >= first_id and (last_id is None or each.ledger_id <= last_id):
            extent.ledgers.add(
                ledger_id=each.ledger_id,
                entries=each.entries,
                stored_bytes=each.stored_bytes,
                closed=each.state == "closed",
                least_ms=each.least_ms,
                greatest_ms=each.greatest_ms,
                stored=each.stored,
                messages=each.messages,
            )


async def _answer_places(extent: LogExtent, source: ReadableLog, question: LogQuestion) -> None:
    positions = source.positions
    for offset in question.offsets:
        entry = await positions.position_of(offset)
        first = await positions.offset_of(entry)
        # Before the log's start there is nothing, and after its end nothing yet.
        within = offset - first if first <= offset < positions.end_offset else 0
        _fill(extent.of_offsets.add(), entry, within, first + within)
    for place in question.places:
        position = Position(place.ledger_id, place.entry_id)
        entry = EARLIEST if position.ledger_id < 0 else position
        first = await positions.offset_of(entry)
        index = max(0, place.batch_index)  # -1 in ids of messages that are entries of their own
        _fill(extent.of_places.add(), position, index, first + index)
    for time_ms in question.times_ms:
        entry = await source.first_at(time_ms)
        _fill(extent.of_times.add(), entry, 0, await positions.offset_of(entry))


def _fill(place: LogPlace, entry: Position, batch_index: int, offset: int) -> None:
    place.ledger_id, place.entry_id = entry
    place.batch_index = batch_index
    place.offset = offset
