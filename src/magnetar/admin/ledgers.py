"""``LedgerService``: what REST asks about ledgers, entries and bookies.

It looks at what bookies hold, and fences nothing.

Of an open ledger the entries after the last confirmed one are shown too: the last message of an
idle topic is among them, because an entry tells only that those before it are confirmed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from magnetar.admin.views import (
    BookieView,
    EntryView,
    FragmentView,
    LedgerView,
    MessageMetadataView,
    WaitingSpaceView,
)
from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BookieError,
    LedgerError,
    MetadataFormatError,
    NoLedgerError,
    NoSuchLedgerError,
    ProtocolError,
)
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.model.space import WaitingSpace
from magnetar.wire.pulsar.metadata import entry_metadata

READ_BYTES_MAX = 8 << 20
UNREADABLE = "UNREADABLE"
"""The state of a ledger whose metadata are not what they should be."""


class LedgerService:
    """The ledgers and bookies of a cluster. ``local`` are the bookies of this process, and what
    waits on their disks."""

    def __init__(
        self,
        manager: LedgerManager,
        pool: BookiePool,
        config: LedgerConfig,
        local: Mapping[BookieId, Callable[[], WaitingSpace]],
    ) -> None:
        self._manager = manager
        self._pool = pool
        self._config = config
        self._local = local

    async def ledgers(self, after: int, limit: int) -> list[LedgerView]:
        found: list[LedgerView] = []
        async for ledger_id in self._manager.iterate():
            if ledger_id <= after:
                continue
            try:
                found.append(await self.ledger(ledger_id))
            except NoSuchLedgerError:
                continue  # deleted meanwhile
            except MetadataFormatError:  # of that one alone; whoever asks for it is told why
                found.append(_unreadable(ledger_id))
            if len(found) >= limit:
                break
        return found

    async def ledger(self, ledger_id: int) -> LedgerView:
        metadata, _version = await self._manager.read(ledger_id)
        return _ledger(metadata)

    async def entries(self, ledger_id: int, first: int, count: int) -> list[EntryView]:
        metadata, _version = await self._manager.read(ledger_id)
        last = metadata.last_entry_id if metadata.closed else await self._last_held(metadata)
        if first > last:
            return []
        reader = LedgerReader(metadata, last, self._pool, self._config)
        found = await reader.read(first, count, READ_BYTES_MAX)
        return [_entry(each) for each in found]

    async def _last_held(self, metadata: LedgerMetadata) -> int:
        """The highest entry that a bookie of an open ledger holds; -1 if none does. Raises
        ``LedgerError`` when none of them answers."""
        last, refusals = NO_ENTRY, []
        for bookie_id in metadata.fragments[-1].bookies:
            try:
                reply = await self._pool.client(bookie_id).read_lac(metadata.ledger_id)
            except NoLedgerError:
                continue
            except BookieError as error:
                refusals.append(f"{bookie_id}: {error}")
                continue
            if reply.last_entry is not None:
                last = max(last, int.from_bytes(reply.last_entry[8:16], "big"))
        if len(refusals) == len(metadata.fragments[-1].bookies):
            raise LedgerError(
                f"no bookie of ledger {metadata.ledger_id} answers ({'; '.join(refusals)}); "
                "bring one back"
            )
        return last

    async def bookies(self) -> list[BookieView]:
        available = await self._pool.available()
        every = sorted({*available, *self._local})
        return [
            BookieView(
                bookie_id=each,
                available=each in available,
                local=each in self._local,
                waiting_space=_waiting(self._local[each]()) if each in self._local else None,
            )
            for each in every
        ]


def _waiting(space: WaitingSpace) -> WaitingSpaceView:
    return WaitingSpaceView(
        byte_count=space.byte_count,
        deleted_ledgers=space.ledgers,
        next_look=datetime.fromtimestamp(space.next_look_ms / 1000, UTC).isoformat(
            timespec="seconds"
        ),
    )


def _unreadable(ledger_id: int) -> LedgerView:
    """A ledger of which nothing is known but that there is one."""
    return LedgerView(
        ledger_id=ledger_id,
        state=UNREADABLE,
        ensemble_size=0,
        write_quorum=0,
        ack_quorum=0,
        digest="",
        last_entry_id=NO_ENTRY,
        length=0,
        created_ms=0,
        custom={},
        fragments=[],
    )


def _ledger(metadata: LedgerMetadata) -> LedgerView:
    return LedgerView(
        ledger_id=metadata.ledger_id,
        state=metadata.state.name,
        ensemble_size=metadata.ensemble_size,
        write_quorum=metadata.write_quorum,
        ack_quorum=metadata.ack_quorum,
        digest=metadata.digest_type.name,
        last_entry_id=metadata.last_entry_id,
        length=metadata.length,
        created_ms=metadata.ctime_ms,
        custom={key: value.decode("utf-8", "backslashreplace") for key, value in metadata.custom},
        fragments=[
            FragmentView(first_entry_id=each.first_entry_id, bookies=list(each.bookies))
            for each in metadata.fragments
        ],
    )


def _entry(entry: Entry) -> EntryView:
    payload = bytes(entry.payload)
    return EntryView(
        ledger_id=entry.ledger_id,
        entry_id=entry.entry_id,
        last_add_confirmed=int.from_bytes(entry.data[16:24], "big", signed=True),
        payload=base64.b64encode(payload).decode(),
        payload_bytes=len(payload),
        message=_message(payload),
    )


def _message(payload: bytes) -> MessageMetadataView | None:
    """The payload's message metadata; None when it is no message (a cursor's record, say)."""
    try:
        found = entry_metadata(payload)
    except ProtocolError:
        return None
    return MessageMetadataView(
        producer_name=found.producer_name,
        sequence_id=found.sequence_id,
        publish_time_ms=found.publish_time_ms,
        event_time_ms=found.event_time_ms,
        key=found.partition_key or "",
        messages=found.num_messages,
        compression=found.compression.name,
        uncompressed_bytes=found.uncompressed_size,
        properties=dict(found.properties),
        body=base64.b64encode(payload[found.data_start :]).decode(),
    )
