"""Finding entries by what their headers say: message offsets and publish times.

In a ledger both grow with the entry: the index of the last message, and the greatest publish time
so far. So each question is a bisection over the ledgers' records, then one over the entries of one
ledger, reading about log2(entries) of them (16 of 50 000).

Rules:

* A ledger whose entries are one message each needs no reading for offsets.
* A ledger without headers (written before them) is searched for a time entry by entry.
* A ledger that is trimmed while it is searched, or of which entries are deleted: the search begins
  again.
* An entry that is lost (no copy is sound) hinders no search for others: what its header said is
  told by the next one that can be read, ``LOST_MAX`` behind it at most. Its messages are all that
  lie before that one's. Else nobody could go on behind it: a search for the next entry meets it.
* Of what was deleted nothing is read. The first entry that is left may be found for a time that
  only a deleted one had reached: headers say the greatest time so far.

Why no index of times is kept: docs/adr/0056-offsets-in-headers.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.stamping import header_of
from magnetar.log.seam import Buffer
from magnetar.model.entry import Entry
from magnetar.model.errors import EntryDamagedError, LogError, NoEntryError, ProtocolError
from magnetar.model.ids import Position
from magnetar.wire.kafka.batches import is_batch, read_batch_header
from magnetar.wire.pulsar.broker_metadata import TIME_MS_MAX, BrokerMetadata
from magnetar.wire.pulsar.metadata import batch_size, publish_time_ms

T = TypeVar("T")

SCAN_ENTRIES = 500
SCAN_BYTES = 4 << 20
LOST_MAX = 1000
"""Entries that are lost one behind the other, which a search passes over."""


class _TrimmedError(Exception):
    """What was searched is gone."""


class HeaderRead(Protocol):
    """``ReadableLog.read``."""

    def __call__(
        self, start: Position, max_entries: int, max_bytes: int, /
    ) -> Awaitable[list[Entry]]: ...


class HeaderSearch:
    """Searches one log."""

    def __init__(self, chain: Chain, read: HeaderRead) -> None:
        self._chain = chain
        self._read = read

    async def _whole(self, search: Callable[[], Awaitable[T]]) -> T:
        """``search``, again as long as what it searches goes meanwhile. Raises ``LogError``: it
        does not find what is there."""
        while True:
            first = self._chain.first
            try:
                return await search()
            except _TrimmedError as error:
                if self._chain.first == first:  # it would not end: reads may answer at once
                    raise LogError(
                        f"a search misses an entry from {first} on, and none was deleted: {error}"
                    ) from error

    # -- offsets ------------------------------------------------------------------------------

    async def offset_of(self, position: Position) -> int:
        """See ``log.seam.Positions``."""
        return await self._whole(lambda: self._offset_of(position))

    async def _offset_of(self, position: Position) -> int:
        chain = self._chain
        at = chain.settle(position)
        if at > chain.confirmed:
            return chain.end_offset
        info = chain.info(at.ledger_id)
        assert info is not None, f"{at} is held"
        if at.entry_id == 0 or chain.uniform(info):
            return info.first_offset + at.entry_id
        if at == chain.first:
            return chain.first_message  # what is before it was deleted, and is not read
        return (await self._header(info.ledger_id, at.entry_id - 1)).last_offset + 1

    async def position_of(self, offset: int) -> Position:
        """See ``log.seam.Positions``."""
        return await self._whole(lambda: self._position_of(offset))

    async def _position_of(self, offset: int) -> Position:
        chain = self._chain
        if offset < chain.first_message:
            return chain.first
        info = chain.holder(offset)
        if info is None:
            return chain.next_position(chain.confirmed)
        if chain.uniform(info):
            return Position(info.ledger_id, offset - info.first_offset)
        return await self._bisect(info, lambda header: header.last_offset >= offset)

    # -- times --------------------------------------------------------------------------------

    async def first_at(self, time_ms: int) -> Position:
        """See ``log.seam.ReadableLog``."""
        return await self._whole(lambda: self._first_at(min(time_ms, TIME_MS_MAX)))

    async def _first_at(self, time_ms: int) -> Position:
        chain = self._chain
        beyond = chain.next_position(chain.confirmed)  # what comes while it reads was not looked at
        for info in list(chain.ledgers):
            last = chain.last_entry(info.ledger_id)
            if last < 0 or Position(info.ledger_id, last) < chain.first:
                continue  # it is empty, or was deleted
            if 0 < info.greatest_ms < time_ms:
                continue
            if info.closed and info.greatest_ms == 0:
                found = await self._scan(info, last, time_ms)
                if found is not None:
                    return found
                continue
            if not info.closed:
                header = await self._header(info.ledger_id, last)
                if header.greatest_ms < time_ms:
                    continue
            return await self._bisect(info, lambda header: header.greatest_ms >= time_ms)
        return beyond

    async def _scan(self, info: LedgerInfo, last: int, time_ms: int) -> Position | None:
        """The first entry of a ledger without headers that says it was published by then."""
        at = first = self._first_of(info)
        while at <= last:
            found = await self._read(Position(info.ledger_id, at), SCAN_ENTRIES, SCAN_BYTES)
            if not found:
                self._gone()  # with all that was behind it
            for entry in found:
                if entry.ledger_id != info.ledger_id:
                    return None if at > first else self._gone()
                if _published_ms(entry) >= time_ms:
                    return entry.position
                at = entry.entry_id + 1
        return None

    @staticmethod
    def _gone() -> None:
        raise _TrimmedError("the ledger that was scanned is gone")

    def _first_of(self, info: LedgerInfo) -> int:
        """The first entry of the ledger that is left."""
        first = self._chain.first
        return first.entry_id if first.ledger_id == info.ledger_id else 0

    # -- reading headers ----------------------------------------------------------------------

    async def _bisect(
        self, info: LedgerInfo, reached: Callable[[BrokerMetadata], bool]
    ) -> Position:
        """The first entry of the ledger whose header has ``reached`` what is wanted; its last
        one has."""
        low, high = self._first_of(info), self._chain.last_entry(info.ledger_id)
        while low < high:
            middle = (low + high) // 2
            if reached(await self._header(info.ledger_id, middle)):
                high = middle
            else:
                low = middle + 1
        return Position(info.ledger_id, low)

    async def _header(self, ledger_id: int, entry_id: int) -> BrokerMetadata:
        try:
            return (await self._entry(ledger_id, entry_id))[1]
        except (EntryDamagedError, NoEntryError):
            if Position(ledger_id, entry_id) < self._chain.first:
                raise _TrimmedError(f"entry {entry_id} of ledger {ledger_id} is gone") from None
            return await self._header_behind(ledger_id, entry_id)

    async def _header_behind(self, ledger_id: int, lost_id: int) -> BrokerMetadata:
        """What the header of a lost entry may have said at most, by the next one that is not."""
        chain = self._chain
        stop_id = min(chain.last_entry(ledger_id) + 1, lost_id + LOST_MAX)
        for entry_id in range(lost_id + 1, stop_id):
            try:
                entry, header = await self._entry(ledger_id, entry_id)
            except (EntryDamagedError, NoEntryError):
                continue
            last_offset = header.last_offset - message_count(entry.payload)
            return header._replace(last_offset=last_offset)
        info = chain.info(ledger_id)
        if info is None:
            raise _TrimmedError(f"ledger {ledger_id} is gone")
        if stop_id <= chain.last_entry(ledger_id):
            raise EntryDamagedError(
                f"entries {ledger_id}:{lost_id} to {ledger_id}:{stop_id - 1} are lost, and so it "
                "is not known which messages lie around them"
            )
        end_offset = info.first_offset + info.messages if info.closed else chain.end_offset
        return BrokerMetadata(-1, end_offset - 1, info.greatest_ms or TIME_MS_MAX)

    async def _entry(self, ledger_id: int, entry_id: int) -> tuple[Entry, BrokerMetadata]:
        position = Position(ledger_id, entry_id)
        found = await self._read(position, 1, 1)
        if not found or (found[0].ledger_id, found[0].entry_id) != position:
            raise _TrimmedError(f"entry {position} is not what is read there")
        header = header_of(found[0])
        if header is None:
            raise LogError(f"entry {position} has no header, and the ledger's record says it has")
        return found[0], header


def message_count(payload: Buffer) -> int:
    """How many messages an entry has, whose header says the last one's offset."""
    if is_batch(payload):
        return read_batch_header(payload).last_offset_delta + 1
    return batch_size(payload)


def _published_ms(entry: Entry) -> int:
    try:
        return publish_time_ms(entry.payload)
    except ProtocolError:
        return -1  # dispatch leaves it out as well
