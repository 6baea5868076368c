"""``LedgerQueries`` over the ledger client: reads what is confirmed, fences nothing."""

from __future__ import annotations

import base64
from collections.abc import Collection

from magnetar.admin.views import (
    BookieView,
    EntryView,
    FragmentView,
    LedgerView,
    MessageMetadataView,
)
from magnetar.ledger.bookies import BookiePool
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerManager
from magnetar.model.entry import Entry
from magnetar.model.errors import NoSuchLedgerError, ProtocolError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.pulsar.metadata import entry_metadata

READ_BYTES_MAX = 8 << 20


class ClusterLedgers:
    """The ledgers and bookies of a cluster. ``local`` are the bookies of this process."""

    def __init__(
        self,
        manager: LedgerManager,
        client: LedgerClient,
        pool: BookiePool,
        local: Collection[BookieId],
    ) -> None:
        self._manager = manager
        self._client = client
        self._pool = pool
        self._local = frozenset(local)

    async def ledgers(self, after: int, limit: int) -> list[LedgerView]:
        found: list[LedgerView] = []
        async for ledger_id in self._manager.iterate():
            if ledger_id <= after:
                continue
            try:
                found.append(await self.ledger(ledger_id))
            except NoSuchLedgerError:
                continue  # deleted meanwhile
            if len(found) >= limit:
                break
        return found

    async def ledger(self, ledger_id: int) -> LedgerView:
        metadata, _version = await self._manager.read(ledger_id)
        return _ledger(metadata)

    async def entries(self, ledger_id: int, first: int, count: int) -> list[EntryView]:
        reader = await self._client.open_no_recovery(ledger_id)
        if first > reader.last_add_confirmed:
            return []
        found = await reader.read(first, count, READ_BYTES_MAX)
        return [_entry(each) for each in found]

    async def bookies(self) -> list[BookieView]:
        available = await self._pool.available()
        every = sorted({*available, *self._local})
        return [
            BookieView(bookie_id=each, available=each in available, local=each in self._local)
            for each in every
        ]


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
