"""The entries of a staged ledger that are one topic's, read by whoever takes them in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import structlog

from magnetar.model.errors import NoSuchLedgerError, StagedWriteError
from magnetar.staging.grants import is_staged
from magnetar.staging.records import INLINE, Directory, Source, decode_directory
from magnetar.staging.seams import Buffer, ReadableStagedLedgers, StagedLedgerReader

log = structlog.get_logger(__name__)

ENTRIES_AT_ONCE: Final = 1000
BYTES_AT_ONCE: Final = 1 << 20
DIRECTORY_BYTES_MAX: Final = 64 << 20
KEPT_MAX: Final = 32
"""Open ledgers with their directories: a ledger has a share for each of its topics, and they are
read one after the other, or at once."""


class StagedReading:
    """Reads staged ledgers; shared by the topics of a broker."""

    def __init__(self, ledgers: ReadableStagedLedgers) -> None:
        self.ledgers = ledgers
        self._kept: OrderedDict[int, tuple[StagedLedgerReader, Directory]] = OrderedDict()

    async def entries(
        self, topic: str, source: Source, first: int
    ) -> AsyncGenerator[Sequence[Buffer], None]:
        """The payloads of ``source`` from its entry number ``first`` on, in order, some at a time.
        Raises ``StagedWriteError`` if they are not what the commit says, ``LedgerError``,
        ``NoEntryError``."""
        if source.ledger_id == INLINE:
            yield list(source.data[first:])
            return
        reader, directory = await self._opened(source.ledger_id)
        runs = directory.get(topic, {}).get(source.part, ())
        if sum(count for _, count in runs) != source.entries:
            raise StagedWriteError(
                f"ledger {source.ledger_id} holds other entries for {topic} (part {source.part}) "
                f"than the {source.entries} that were committed"
            )
        for start, count in runs:
            skipped = min(first, count)
            first -= skipped
            at, stop = start + skipped, start + count
            while at < stop:
                found = await reader.read(at, min(ENTRIES_AT_ONCE, stop - at), BYTES_AT_ONCE)
                yield [entry.payload for entry in found]
                at += len(found)

    async def _opened(self, ledger_id: int) -> tuple[StagedLedgerReader, Directory]:
        kept = self._kept.get(ledger_id)
        if kept is None:
            # What is read is appended at once, and somebody waits for it: if it rested while
            # entries are added, as catch-up readers do, it would rest for its own.
            reader = await self.ledgers.open_no_recovery(ledger_id, urgent=True)
            last = reader.last_add_confirmed
            if not is_staged(reader.metadata):
                raise StagedWriteError(f"ledger {ledger_id} was committed and is no staged one")
            if not reader.closed or last < 0:
                raise StagedWriteError(
                    f"ledger {ledger_id} was committed and is not closed, or is empty"
                )
            (entry,) = await reader.read(last, 1, DIRECTORY_BYTES_MAX)
            kept = reader, decode_directory(ledger_id, bytes(entry.payload))
            self._kept[ledger_id] = kept
        self._kept.move_to_end(ledger_id)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return kept

    async def delete(self, ledger_id: int) -> None:
        """No error if it is gone. A ledger that is no staged one is left alone: records are
        written by clients, and what they name is deleted by us."""
        self._kept.pop(ledger_id, None)
        try:
            metadata = await self.ledgers.read_metadata(ledger_id)
        except NoSuchLedgerError:
            return
        if not is_staged(metadata):
            log.warning("a record names a ledger that is no staged one", ledger=ledger_id)
            return
        await self.ledgers.delete(ledger_id, missing_ok=True)
