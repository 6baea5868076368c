"""The log of commands: a list of ledgers, each written by one replica, and a snapshot before them.

* The list is kept in the metadata store under the log's name, and changed by compare-and-set only.
  Of two replicas that take over at once, one is refused.
* Only the last ledger is open. To take over is to *recover* it: that fences it, so that its old
  writer confirms nothing any more, then completes and closes it with every confirmed entry.
* A ledger that has become long is closed and the next begun (*rolled*). Then the state up to its
  end is written as a snapshot, in a ledger of its own; when that is named, the ledgers before it
  go. The order is what makes it safe: snapshot stored, then named, then the list shortened, then
  ledgers deleted. Whatever ends in between leaves data that is not needed, and never lacks any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from magnetar.ledger import (
    BadVersionError,
    LedgerClient,
    LedgerIds,
    LedgerWriter,
    NoSuchLedgerError,
)
from replicated_kv.state import Command, Position, Store

FOLLOW_S = 0.1
"""Between looks for the next ledger, when the last one is closed."""
READ_ENTRIES = 1000
READ_BYTES = 1 << 20


class Log:
    """``store`` is what the log's commands are applied to. One of ``follow`` and writing at a
    time."""

    def __init__(self, client: LedgerClient, name: str, entries_per_ledger: int) -> None:
        self.store = Store()
        self._client = client
        self._application = {"application": b"replicated-kv", "log": name.encode()}
        self._ledgers = client.ledger_list(name)
        # Two numbers: the snapshot's ledger, and the last ledger of the log that it covers.
        self._snapshots = client.ledger_list(f"{name}-snapshot")
        self._entries_per_ledger = entries_per_ledger
        self._writer: LedgerWriter | None = None
        self._snapshot: asyncio.Task[None] | None = None

    # -- reading: standby and observer --------------------------------------------------------

    async def follow(self) -> None:
        """Apply what is confirmed, for ever. Nothing is fenced, and nobody is disturbed."""
        while True:
            with suppress(NoSuchLedgerError):  # deleted meanwhile: a snapshot covers it
                listed = await self._ledgers.read()
                await self._restore(listed)
                for ledger_id in self._to_come(listed):
                    await self._follow_ledger(ledger_id)
            await asyncio.sleep(FOLLOW_S)

    def _to_come(self, listed: LedgerIds) -> list[int]:
        return [each for each in listed.ledger_ids if each >= self.store.position.ledger_id]

    def _next_of(self, ledger_id: int) -> int:
        at = self.store.position
        return at.entry_id + 1 if at.ledger_id == ledger_id else 0

    async def _follow_ledger(self, ledger_id: int) -> None:
        async with await self._client.open_no_recovery(ledger_id) as tail:
            async for entry in tail.follow(self._next_of(ledger_id), READ_ENTRIES, READ_BYTES):
                self._apply(Position(ledger_id, entry.entry_id), bytes(entry.payload))

    def _apply(self, position: Position, entry: bytes) -> None:
        self.store.apply(position, Command.decode(entry))

    async def _restore(self, listed: LedgerIds) -> None:
        """Begin with the snapshot, if ledgers that we have not read are gone. Of the list and the
        snapshot's name the list is read first: ledgers leave it after the snapshot was named."""
        named = (await self._snapshots.read()).ledger_ids
        if not named or self.store.position.ledger_id in listed.ledger_ids:
            return
        reader = await self._client.open_no_recovery(named[0])
        entries: list[bytes] = []
        while len(entries) <= reader.last_add_confirmed:
            some = await reader.read(len(entries), READ_ENTRIES, READ_BYTES)
            entries += [bytes(entry.payload) for entry in some]
        found = Store.load(entries)
        if found.position > self.store.position:
            self.store = found

    # -- writing: the active replica ----------------------------------------------------------

    async def take_over(self) -> None:
        """Become the writer. When this returns, no other replica can confirm anything, and the
        store has everything that was confirmed. Raises ``BadVersionError`` when another takes over
        at the same time, ``LedgerError``, ``MetadataError``."""
        listed = await self._ledgers.read()
        await self._restore(listed)
        for ledger_id in self._to_come(listed):
            reader = await self._client.open(ledger_id)  # fences the one that is open
            while self._next_of(ledger_id) <= reader.last_add_confirmed:
                first = self._next_of(ledger_id)
                for entry in await reader.read(first, READ_ENTRIES, READ_BYTES):
                    self._apply(Position(ledger_id, entry.entry_id), bytes(entry.payload))
        await self._begin(listed)

    async def _begin(self, listed: LedgerIds) -> None:
        """The next ledger, ours. It is named before anything is written to it."""
        writer = await self._client.create(self._application)
        try:
            await self._ledgers.write((*listed.ledger_ids, writer.ledger_id), listed.version)
        except BadVersionError:
            await writer.close()
            await self._client.delete(writer.ledger_id)
            raise
        self._writer = writer

    async def append(self, commands: Sequence[Command]) -> Position:
        """Log them, then apply them; returns the position of the last. One call at a time, so that
        commands are applied in the order of the log. Raises ``LedgerFencedError`` or
        ``LedgerClosedError`` when another replica has taken over; whatever it raises, it is not
        known whether the commands are in the log."""
        writer = self._writer
        assert writer is not None, "take over first"
        first = await writer.add([command.encode() for command in commands])
        for entry_id, command in enumerate(commands, first):
            self.store.apply(Position(writer.ledger_id, entry_id), command)
        if self.store.position.entry_id + 1 >= self._entries_per_ledger:
            await self._roll(writer)
        return self.store.position

    async def _roll(self, writer: LedgerWriter) -> None:
        await writer.close()
        await self._begin(await self._ledgers.read())
        if self._snapshot is None or self._snapshot.done():
            # As it is now: up to the end of the ledger that was closed, and no further.
            work = self._write_snapshot(self.store.dump(), self.store.position.ledger_id)
            self._snapshot = asyncio.create_task(work)

    async def _write_snapshot(self, entries: Sequence[bytes], covered: int) -> None:
        """Store the state up to the end of ledger ``covered``, and delete what it makes needless.
        Right also if another replica has taken over meanwhile: the ledger is closed, and its
        entries are what they are. A younger snapshot is never replaced by an older one."""
        before = await self._snapshots.read()
        if before.ledger_ids and before.ledger_ids[1] >= covered:
            return
        writer = await self._client.create({**self._application, "snapshot": b"%d" % covered})
        await writer.add(entries)
        await writer.close()
        try:
            await self._snapshots.write((writer.ledger_id, covered), before.version)
        except BadVersionError:
            await self._client.delete(writer.ledger_id)
            return
        gone = await self._shorten(covered)
        for ledger_id in (*gone, *before.ledger_ids[:1]):
            await self._client.delete(ledger_id, missing_ok=True)

    async def _shorten(self, covered: int) -> list[int]:
        """Take the ledgers up to ``covered`` off the list."""
        while True:
            listed = await self._ledgers.read()
            gone = [each for each in listed.ledger_ids if each <= covered]
            try:
                await self._ledgers.write(listed.ledger_ids[len(gone) :], listed.version)
                return gone
            except BadVersionError:
                continue  # somebody has begun a ledger meanwhile

    async def give_up(self) -> None:
        """Write no more. The ledger is left as it is: whoever takes over closes it."""
        writer, self._writer = self._writer, None
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.cancel()
            await asyncio.wait([snapshot])
        if writer is not None:
            await writer.abandon()
