"""A bookie over TCP, in BookKeeper's protocol (works against BookKeeper's own bookies too).

As BookKeeper's clients do, two connections, each made when it is first needed: version 2, cheap,
for adds, plain reads and batch reads; version 3 for what version 2 lacks (last add confirmed) and
for what must not be mistaken for something else (fencing reads of one entry, adds of a recovery or
with deferred sync).
``v3_only`` leaves the first out. Why it is split so: ``docs/adr/0020-two-channels-per-bookie.md``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from magnetar.env.network.connections import Connections
from magnetar.env.tasks import TaskScope, fails
from magnetar.ledger.bookies import AddDone, AddFlag, LacReply, ReadFlag
from magnetar.ledger.connections.add_frames import AddFrames
from magnetar.ledger.connections.channel import Address, Channel, ConnectionOptions, Resolve
from magnetar.ledger.connections.channel_v2 import V2Channel
from magnetar.ledger.connections.channel_v3 import V3Channel
from magnetar.model.errors import MagnetarError, NoEntryError, NoLedgerError, ProtocolError
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.wire.bookie import availability, v3
from magnetar.wire.bookie.messages import Read, WriteLac

_long = struct.Struct(">q").unpack_from
_BY_TXN = int(AddFlag.RECOVERY | AddFlag.DEFERRED_SYNC)
_EXPLICIT_LAC_AT = 8
_ENTRY_LAC_AT = 16
V3_READS_AT_ONCE = 64
"""Of a batch read where there is no version 2: it has no batch reads."""


def fixed_address(host: str, port: int) -> Resolve:
    """For a bookie whose address is known and stays."""

    async def resolve(bookie_id: BookieId) -> Address:
        return host, port

    return resolve


class BookieConnection:
    """``ledger.bookies.BookieClient`` over TCP.

    ``resolve`` says where the bookie listens, before every attempt to connect; ``frames`` is
    shared by the connections that a writer writes to, ``connections`` by all of a client.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ConnectionOptions | None = None,
        frames: AddFrames | None = None,
        connections: Connections | None = None,
    ) -> None:
        options = options or ConnectionOptions()
        connections = connections or Connections()
        self.bookie_id = bookie_id
        self._scope = TaskScope(f"bookie connection {bookie_id}", fails(self._task_failed))
        self._v2 = V2Channel(
            bookie_id, resolve, options, connections, self._scope, frames or AddFrames()
        )
        self._v3 = V3Channel(bookie_id, resolve, options, connections, self._scope)
        self._v3_only = options.v3_only
        self._read_timeout_s = options.read_timeout_s

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        channel = self._v3 if self._v3_only or flags & _BY_TXN else self._v2
        channel.add_entries(ledger_id, master_key, entry_ids, entries, flags, done)

    async def read_entry(
        self,
        ledger_id: int,
        entry_id: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> bytes:
        if not self._v3_only and not flags & ReadFlag.FENCE:
            return await self._v2.read_entry(ledger_id, entry_id, flags)
        answer = await self._read_v3(ledger_id, entry_id, flags, master_key)
        assert answer.body is not None
        return answer.body

    async def _read_v3(
        self, ledger_id: int, entry_id: int, flags: int, master_key: bytes
    ) -> v3.Answer:
        def encode(txn_id: int) -> bytes:
            return v3.encode_read(Read(txn_id, ledger_id, entry_id, flags, master_key))

        what = f"read of entry {ledger_id}:{entry_id}"
        answer = await self._v3.call(encode, what)
        if answer.body is None:
            raise NoEntryError(f"bookie {self.bookie_id}, {what}: an answer without the entry")
        return answer

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: ReadFlag = ReadFlag.NONE,
        master_key: bytes = b"",
    ) -> Sequence[bytes | memoryview]:
        if not self._v3_only:
            return await self._v2.read_batch(
                ledger_id, first_entry_id, max_entries, max_bytes, flags, master_key
            )
        entries = [await self.read_entry(ledger_id, first_entry_id, flags, master_key)]
        byte_count = len(entries[0])
        while len(entries) < max_entries and byte_count < max_bytes:
            following = first_entry_id + len(entries)
            room = (max_bytes - byte_count) // (byte_count // len(entries) or 1)
            count = max(1, min(max_entries - len(entries), room, V3_READS_AT_ONCE))
            found = await self._read_entries(ledger_id, following, count, flags, master_key)
            entries += found
            byte_count += sum(map(len, found))
            if len(found) < count:
                break  # the caller has what came before and asks again from there
        return entries

    async def _read_entries(
        self, ledger_id: int, first: int, count: int, flags: ReadFlag, master_key: bytes
    ) -> list[bytes]:
        """``count`` reads at once; what came before the first that was refused."""
        reads = [self.read_entry(ledger_id, first + i, flags, master_key) for i in range(count)]
        found: list[bytes] = []
        for entry in await asyncio.gather(*reads, return_exceptions=True):
            if isinstance(entry, MagnetarError):
                break
            if isinstance(entry, BaseException):
                raise entry
            found.append(entry)
        return found

    async def read_lac(
        self, ledger_id: int, flags: ReadFlag = ReadFlag.NONE, master_key: bytes = b""
    ) -> LacReply:
        if flags & ReadFlag.FENCE:
            return await self._fence(ledger_id, flags, master_key)
        what = f"read of the last add confirmed of ledger {ledger_id}"
        try:
            answer = await self._v3.call(lambda txn_id: v3.encode_read_lac(txn_id, ledger_id), what)
        except NoEntryError:
            return LacReply(NO_ENTRY, None)
        return self._lac_reply(answer.body, answer.last_entry, NO_ENTRY)

    async def _fence(self, ledger_id: int, flags: int, master_key: bytes) -> LacReply:
        """A fenced ledger without entries answers "no entry" or "no ledger"."""
        try:
            answer = await self._read_v3(ledger_id, NO_ENTRY, flags, master_key)
        except (NoEntryError, NoLedgerError):
            return LacReply(NO_ENTRY, None)
        known = NO_ENTRY if answer.max_lac is None else answer.max_lac
        return self._lac_reply(None, answer.body, known)

    def _lac_reply(
        self, explicit_lac: bytes | None, last_entry: bytes | None, known: int
    ) -> LacReply:
        lac = known
        try:
            if explicit_lac is not None:
                lac = max(lac, _long(explicit_lac, _EXPLICIT_LAC_AT)[0])
            if last_entry is not None:
                lac = max(lac, _long(last_entry, _ENTRY_LAC_AT)[0])
        except struct.error as error:
            raise ProtocolError(
                f"bookie {self.bookie_id} answered with an entry or LAC that is too short"
            ) from error
        return LacReply(lac, last_entry, explicit_lac)

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        await self._v3.call(
            lambda txn_id: v3.encode_write_lac(WriteLac(txn_id, ledger_id, lac, master_key, body)),
            f"write of the last add confirmed of ledger {ledger_id}",
        )

    async def wait_lac(self, ledger_id: int, previous_lac: int, timeout_s: float) -> LacReply:
        timeout_ms = max(1, int(timeout_s * 1000))

        def encode(txn_id: int) -> bytes:
            return v3.encode_read(
                Read(txn_id, ledger_id, NO_ENTRY, 0, b"", previous_lac, timeout_ms)
            )

        what = f"wait for the last add confirmed of ledger {ledger_id}"
        try:
            answer = await self._v3.call(encode, what, timeout_s + self._read_timeout_s)
        except (NoEntryError, NoLedgerError):
            return LacReply(NO_ENTRY, None)
        known = NO_ENTRY if answer.max_lac is None else answer.max_lac
        return self._lac_reply(None, answer.body, known)

    @property
    def session(self) -> int:
        return self._v3.connection_count

    async def force_ledger(self, ledger_id: int) -> None:
        """Returns when every add that the bookie has answered is durable there."""
        await self._v3.call(
            lambda txn_id: v3.encode_force_ledger(txn_id, ledger_id), f"force of {ledger_id}"
        )

    async def list_entries(self, ledger_id: int) -> list[availability.Group]:
        """Which entries of the ledger the bookie holds; see ``wire.bookie.availability``."""
        answer = await self._v3.call(
            lambda txn_id: v3.encode_list_entries(txn_id, ledger_id),
            f"list of entries of ledger {ledger_id}",
        )
        return availability.decode(answer.body or b"")

    async def disk_space(self) -> tuple[int, int]:
        """(total bytes, free bytes) of the bookie's ledger disks."""
        answer = await self._v3.call(v3.encode_get_info, "bookie info")
        return answer.total_bytes, answer.free_bytes

    def _task_failed(self, task: str, error: BaseException) -> None:
        for channel in (self._v2, self._v3):
            channel.task_failed(error)

    async def close(self) -> None:
        channels: tuple[Channel, ...] = (self._v2, self._v3)
        for channel in channels:
            channel.close()
        await self._scope.close()
