"""What one attempt of a task writes: entries for topics, kept in memory while they are few, else in
a ledger of the attempt's own.

Rules: an attempt is offered only when its ledger is closed, so that what is committed is what it
wrote; the ledger's last entry is its directory. An attempt that fails offers nothing, and its
ledger is somebody else's to delete (``collecting``): the process that wrote it may be gone.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Final

from magnetar.model.errors import StagedWriteError
from magnetar.staging.commit_rules import Offer
from magnetar.staging.records import (
    INLINE,
    LEDGER_KEY,
    Origin,
    Source,
    encode_directory,
    encode_origin,
)
from magnetar.staging.seams import Buffer, StagedLedgers, StagedLedgerWriter

INLINE_TASK_BYTES_MAX: Final = 64 << 10
"""What a task may hand to the driver instead of writing a ledger."""


class StagedLedger:
    """A staged ledger being written, and its directory."""

    def __init__(self, writer: StagedLedgerWriter) -> None:
        self._writer = writer
        self._next = 0
        self._runs: dict[str, dict[int, list[tuple[int, int]]]] = {}

    @classmethod
    async def create(cls, ledgers: StagedLedgers, origin: Origin) -> StagedLedger:
        return cls(await ledgers.create({LEDGER_KEY: encode_origin(origin)}))

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    async def add(self, topic: str, part: int, payloads: Sequence[Buffer]) -> None:
        """Append; returns when they are confirmed. One call at a time."""
        first, count = self._next, len(payloads)
        self._next += count
        runs = self._runs.setdefault(topic, {}).setdefault(part, [])
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
        await self._writer.add(payloads)

    async def finish(self) -> None:
        """Write the directory and close: nothing is added after it, by anybody."""
        await self._writer.add([encode_directory(self._runs)])
        await self._writer.close()

    async def abandon(self) -> None:
        await self._writer.abandon()


class StagedWriter:
    """One attempt. Of its topics' entries each has a number, from 0, per topic (``entries_of``):
    whoever builds an entry puts it into the entry's metadata (``marks``)."""

    def __init__(
        self,
        ledgers: StagedLedgers,
        origin: Origin,
        inline_bytes_max: int = INLINE_TASK_BYTES_MAX,
    ) -> None:
        self.origin = origin
        self._ledgers = ledgers
        self._inline_bytes_max = inline_bytes_max
        self._kept: dict[str, list[bytes]] = {}
        self._kept_bytes = 0
        self._entries: dict[str, int] = {}
        self._messages: dict[str, int] = {}
        self._ledger: StagedLedger | None = None

    def entries_of(self, topic: str) -> int:
        """How many entries the topic has so far: the number of the next."""
        return self._entries.get(topic, 0)

    def keep_nowait(self, topic: str, payloads: Sequence[Buffer], messages: int) -> bool:
        """As ``add``, if all of the attempt's entries are few enough to be kept: False if they are
        not, and nothing was done. Not while ``add`` is under way."""
        kept_bytes = self._kept_bytes + sum(map(len, payloads))
        if self._ledger is not None or kept_bytes > self._inline_bytes_max:
            return False
        self._count(topic, len(payloads), messages)
        self._kept_bytes = kept_bytes
        self._kept.setdefault(topic, []).extend(map(bytes, payloads))
        return True

    def add(
        self, topic: str, payloads: Sequence[Buffer], messages: int
    ) -> Coroutine[object, object, None]:
        """Entries for a topic, which hold that many messages together. Ends when they are
        confirmed, or kept; one at a time. They are counted when it is called, not when it is
        begun: the next are built meanwhile, in another thread."""
        if self.keep_nowait(topic, payloads, messages):
            return _kept()
        self._count(topic, len(payloads), messages)
        return self._append(topic, payloads)

    async def _append(self, topic: str, payloads: Sequence[Buffer]) -> None:
        if self._ledger is None:
            self._ledger = await StagedLedger.create(self._ledgers, self.origin)
            for name, kept in self._kept.items():
                await self._ledger.add(name, self.origin.part, kept)
            self._kept.clear()
        await self._ledger.add(topic, self.origin.part, payloads)

    def _count(self, topic: str, entries: int, messages: int) -> None:
        self._entries[topic] = self.entries_of(topic) + entries
        self._messages[topic] = self._messages.get(topic, 0) + messages

    def offer_nowait(self) -> Offer | None:
        """As ``finish``, if everything was kept; else None."""
        return self._offer(INLINE) if self._ledger is None else None

    async def finish(self) -> Offer:
        """Everything is confirmed, and the ledger, if there is one, closed."""
        if self._ledger is None:
            return self._offer(INLINE)
        await self._ledger.finish()
        return self._offer(self._ledger.ledger_id)

    def _offer(self, ledger_id: int) -> Offer:
        part = self.origin.part
        shares = {
            topic: Source(
                part, ledger_id, entries, self._messages[topic], tuple(self._kept.get(topic, ()))
            )
            for topic, entries in self._entries.items()
        }
        return Offer(part, shares)

    async def abandon(self) -> None:
        """The attempt failed."""
        if self._ledger is not None:
            await self._ledger.abandon()


async def _kept() -> None:
    """There is nothing to wait for."""


async def spill(ledgers: StagedLedgers, origin: Origin, offers: Sequence[Offer]) -> list[Offer]:
    """``offers`` with what they hold themselves put into one ledger, the driver's."""
    ledger = await StagedLedger.create(ledgers, origin)
    spilled = []
    for offer in offers:
        shares = {}
        for topic, source in offer.shares.items():
            if source.ledger_id == INLINE and source.entries:
                if len(source.data) != source.entries:
                    raise StagedWriteError(f"part {offer.part} says {source.entries} entries")
                await ledger.add(topic, offer.part, source.data)
                source = source._replace(ledger_id=ledger.ledger_id, data=())
            shares[topic] = source
        spilled.append(Offer(offer.part, shares))
    await ledger.finish()
    return spilled
