"""The one writer of a ledger: gives ids, builds entries, sends them, confirms in order.

The append path is plain calls: ``append`` builds entries; what a turn of the loop has appended goes
down to ``BookieClient.add_entries`` of each slot at its end, in one call; the bookies' ``done``
comes back through the quorum write machine to each append's own ``done``. No task, future or
coroutine per entry or per append.

Invariants:

* Appends are answered in the order they came, each payload once.
* An append is confirmed when it and all before it are durable on ``Qa`` bookies that the metadata
  names for it (``quorum_write``).
* A failed append ends the writer: later appends fail with the same error, so nothing is ever
  confirmed after a hole. ``close`` still closes the ledger at the LAC, unless it was lost.
* The bytes of an entry are built once and kept until it is confirmed, to be sent again.
* A bookie has ``add_timeout_ms`` to answer; it is then taken for failed (``ensemble_change``).
  When nothing is confirmed for ``add_timeout_ms`` after a failure, the writer gives up.

``append`` is for owners that bound what is pending themselves (``pending_bytes``); ``add`` waits
while ``writer_pending_bytes_max`` are unconfirmed. Copies that wait for one bookie are bounded by
its connection; past that it is taken for failed, and what it is missing is noted
(``mending``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import structlog

from magnetar.env.tasks import TaskScope, fails
from magnetar.ledger.bookies import AddFlag, BookieClient
from magnetar.ledger.catalog.stored_ledger import StoredLedger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.add_deadlines import AddDeadlines
from magnetar.ledger.writing.appends import Append, AppendDone, pieces
from magnetar.ledger.writing.bounded_adds import BoundedAdds
from magnetar.ledger.writing.deferred_sync import DeferredSync
from magnetar.ledger.writing.ensemble_change import EnsembleChange
from magnetar.ledger.writing.lac_announcer import LacAnnouncer
from magnetar.ledger.writing.quorum_write import FailureKind, FailureVerdict, QuorumWrite, Resend
from magnetar.model.errors import (
    BadRequestError,
    BookieUnavailableError,
    BookieVersionError,
    EntryTooLargeError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MagnetarError,
    UnauthorizedError,
)
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from magnetar.model.ledger import LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest

log = structlog.get_logger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview

SEND_BYTES = 256 << 10
"""What a turn of the loop appends is sent at its end, or when it has come to this."""


class _Channel:
    """A slot's bookie, and where its answers come in: those that do not move the LAC, two of
    three, touch nothing of the writer but this and the machine."""

    __slots__ = ("client", "deferred", "epoch", "machine", "slot", "writer")

    def __init__(self, writer: LedgerWriter, client: BookieClient, slot: int) -> None:
        self.writer = writer
        self.client = client
        self.slot = slot
        self.machine = writer._machine
        self.epoch = self.machine.epoch(slot)
        self.deferred = writer._deferred

    def answered(self, error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        """``AddDone`` of the adds of this epoch."""
        if error is not None:
            self.writer._bookie_failed(self.slot, self.epoch, error)
            return
        if self.deferred is not None:
            lost = self.deferred.acknowledged(self.slot)
            if lost is not None:
                self.writer.fail(lost)
                return
        machine = self.machine
        before = machine.last_add_confirmed
        if machine.acknowledged(self.slot, entry_ids, self.epoch) != before:
            self.writer.confirm()


class LedgerWriter:
    """Appends to one open ledger. Made by ``LedgerClient.create``; use on one event loop only.

    ``flags`` RECOVERY writes again what a recovery has found; ``first_lac`` and ``length`` are
    then where it begins.
    """

    # With a thousand ledgers written to in turn, memory that is not in the cache is most of an
    # answer's cost: slots take a quarter off it (an instance dictionary lies in four places).
    __slots__ = (
        "__weakref__",
        "_adds",
        "_announcer",
        "_change",
        "_channels",
        "_closed",
        "_confirmed_length",
        "_context",
        "_deadlines",
        "_deferred",
        "_digest",
        "_drained",
        "_durable",
        "_ended",
        "_error",
        "_first_lac",
        "_flags",
        "_length",
        "_loop",
        "_machine",
        "_payload_bytes_max",
        "_pending",
        "_pool",
        "_scope",
        "_stored",
        "_timeout_s",
        "_trouble_since_s",
        "_turn_end",
        "_uniform",
        "_unsent",
        "_unsent_bytes",
        "_watched",
        "ledger_id",
    )

    def __init__(
        self,
        stored: StoredLedger,
        context: LedgerContext,
        *,
        flags: AddFlag = AddFlag.NONE,
        first_lac: int = NO_ENTRY,
        length: int = 0,
    ) -> None:
        metadata = stored.metadata
        self.ledger_id: LedgerId = metadata.ledger_id
        self._stored = stored
        self._context = context
        self._pool = context.pool
        self._turn_end = context.turn_end
        self._flags = int(flags)  # operators of an enum have no place on the add path
        self._timeout_s = context.config.add_timeout_ms / 1000
        self._digest = EntryDigest(metadata.digest_type, metadata.ledger_id, metadata.password)
        self._payload_bytes_max = context.config.payload_bytes_max
        self._length = length
        self._confirmed_length = length
        self._pending: deque[Append] = deque()
        self._unsent: list[bytes] = []  # the last of what is pending
        self._unsent_bytes = 0
        self._error: MagnetarError | None = None  # why the writer failed
        self._ended: MagnetarError | None = None  # what later appends are told
        self._closed: LedgerMetadata | None = None
        self._drained: asyncio.Event | None = None
        self._trouble_since_s: float | None = None
        self._watched = False
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope(f"ledger-{metadata.ledger_id}", fails(self._task_failed))
        size = metadata.ensemble_size
        self._machine = QuorumWrite(size, metadata.write_quorum, metadata.ack_quorum, first_lac)
        self._uniform = size == metadata.write_quorum
        self._deadlines = AddDeadlines(self._machine, size, self._timeout_s)
        self._change = EnsembleChange(self._machine, stored, context, self._scope)
        self._adds: BoundedAdds | None = None  # made by the first ``add``: logs append
        self._deferred = self._deferred_sync() if flags & AddFlag.DEFERRED_SYNC else None
        self._channels: list[_Channel | None] = [self._channel(slot) for slot in range(size)]
        self._durable = self._deferred or self._machine  # whose LAC counts
        recovers = bool(flags & AddFlag.RECOVERY)
        self._first_lac = first_lac if recovers else None
        interval_s = 0 if recovers else context.config.explicit_lac_interval_ms / 1000
        self._announcer = LacAnnouncer(context, interval_s, self._scope)

    def _deferred_sync(self) -> DeferredSync:
        log.warning(
            "deferred sync: a power cut loses entries that were not forced",
            ledger=self.ledger_id,
        )
        clients = [self._pool.client(bookie_id) for bookie_id in self._change.bookies]
        return DeferredSync(self.metadata, self._machine, clients, self._timeout_s)

    # -- what an owner asks -------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as last written by this writer."""
        return self._stored.metadata

    @property
    def digest(self) -> EntryDigest:
        return self._digest

    @property
    def last_add_pushed(self) -> int:
        """The id of the last entry appended, -1 for none."""
        return self._machine.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last entry confirmed, -1 for none."""
        return self._durable.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to ``last_add_pushed``."""
        return self._length

    @property
    def pending_bytes(self) -> int:
        """Payload bytes appended and not yet confirmed."""
        return 0 if self._error is not None else self._length - self._confirmed_length

    @property
    def error(self) -> MagnetarError | None:
        """Why the writer failed; None while it works, and after a clean close."""
        return self._error

    def reader(self) -> LedgerReader:
        """Reads the ledger up to what is confirmed now, while this writer goes on."""
        context = self._context
        return LedgerReader(
            self.metadata, self.last_add_confirmed, self._pool, context.config, context.policy
        )

    async def add(self, payloads: Sequence[Buffer]) -> EntryId:
        """Append in order, at least one payload; returns the id of the first (the others follow)
        once all are confirmed. Waits for room first; calls keep their order.

        Raises ``EntryTooLargeError`` (nothing is appended, the writer goes on), and what ends a
        writer: ``LedgerFencedError``, ``LedgerClosedError``, ``NotEnoughBookiesError``,
        ``MetadataError``.
        """
        assert payloads
        self._check_sizes(payloads)
        if self._adds is None:
            most = self._context.config.writer_pending_bytes_max
            self._adds = BoundedAdds(self.append, most)
        return await self._adds.add(payloads)

    async def force(self) -> None:
        """Of a ledger with deferred sync: make durable, and confirm, what was answered so far.
        Any other ledger has nothing to force. Raises ``LedgerError``."""
        if self._deferred is None:
            return
        if self._error is not None:
            raise self._error
        try:
            await self._deferred.force(self._confirmed_length)
        except LedgerError as error:
            self.fail(error)
            raise
        self._announcer.confirmed(self)

    def lac_asked_for(self) -> tuple[EntryId, bytes] | None:
        """For a bookie that asks on behalf of a reader: the LAC and what carries it; None if there
        is none, or LACs are not told."""
        lac = self.last_add_confirmed
        if lac < 0 or not self._announcer.tells:
            return None
        return lac, self._digest.build_lac(lac)

    # -- append -------------------------------------------------------------------------------

    def _lac_to_tell(self) -> EntryId:
        """The LAC that entries carry. A recovery tells the one it began with: what it confirms
        may be on replacements that only its close names, and would be skipped, on too few of the
        bookies that the metadata names, by a recovery that comes after it."""
        return self._durable.last_add_confirmed if self._first_lac is None else self._first_lac

    def append(
        self, payloads: Sequence[Buffer], done: AppendDone, prefixes: Sequence[bytes] = ()
    ) -> list[bytes]:
        """Append in order, at least one payload; see ``AppendDone``.

        ``payloads`` (views of bytes) are copied before this returns; ``prefixes``, if given, are
        put before them, one each, so that a caller who adds a header copies nothing. Never
        blocks; ``done`` is never called from inside (what it raises goes to the loop's exception
        handler). Returns
        the whole entries as built, the very objects that the bookies get (not to be changed; for
        caches); nothing when the writer has ended. Raises ``EntryTooLargeError``: nothing was
        appended.
        """
        assert payloads
        if self._ended is not None:
            self._loop.call_soon(done, self._ended, -1, -1, len(payloads))
            return []
        machine, before = self._machine, self._length
        first = machine.last_add_pushed + 1
        entries, length = self._digest.build_run(
            first, self._lac_to_tell(), before, payloads, prefixes
        )
        if length - before > self._payload_bytes_max:
            self._check_sizes(payloads)
        machine.pushed(len(entries))
        self._length = length
        self._pending.append(Append(first, machine.last_add_pushed, entries, length, done))
        if not self._watched:
            self._watch()
        if not self._unsent:
            self._turn_end.call(self._send)
        self._unsent += entries
        self._unsent_bytes += length - before
        if self._unsent_bytes >= SEND_BYTES:
            self._send()
        return entries

    def _check_sizes(self, payloads: Sequence[Buffer]) -> None:
        """A bookie breaks the connection over a frame that is too long, and with it fails every
        other ledger on it: such an entry must not be sent."""
        largest = max(map(len, payloads))
        if largest > self._payload_bytes_max and self._first_lac is None:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: a payload has {largest} bytes; accepted: at most "
                f"{self._payload_bytes_max} (ledger.payload_bytes_max). Split it"
            )

    def _send(self) -> None:
        """Send what this turn of the loop has appended to every slot that is up, one call each:
        appends of many connections cost the bookies no more than one."""
        entries, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if not entries:
            return  # sent, or failed, in the meantime
        end = self._machine.last_add_pushed + 1
        entry_ids = range(end - len(entries), end)
        ledger_id, key, flags = self.ledger_id, self._digest.master_key, self._flags
        for slot, channel in enumerate(self._channels):
            if channel is None:
                continue
            client = channel.client
            if self._uniform:
                client.add_entries(ledger_id, key, entry_ids, entries, flags, channel.answered)
                continue
            own = self._machine.stripe(slot, entry_ids)
            if own:
                first = entry_ids[0]
                picked = [entries[entry_id - first] for entry_id in own]
                client.add_entries(ledger_id, key, own, picked, flags, channel.answered)

    def _channel(self, slot: int) -> _Channel:
        return _Channel(self, self._pool.client(self._change.bookies[slot]), slot)

    # -- answers ------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Answer the appends that the LAC has passed, in order."""
        lac = self._machine.last_add_confirmed
        pending, ledger_id = self._pending, self.ledger_id
        if self._trouble_since_s is not None:
            self._trouble_since_s = self._loop.time() if self._machine.down_slots() else None
        try:
            while pending and (batch := pending[0]).last <= lac:
                pending.popleft()
                self._confirmed_length = batch.length
                first = batch.first_open
                batch.done(None, ledger_id, first, batch.last + 1 - first)
            if pending and pending[0].first_open <= lac:
                self._confirm_part(pending[0], lac)
        except Exception as error:  # noqa: BLE001 - an owner's own; the others get their answers
            self._done_failed(error)
            self._loop.call_soon(self.confirm)
            return
        if not pending:
            self._announcer.confirmed(self)
            if self._drained is not None:
                self._drained.set()

    def _confirm_part(self, batch: Append, lac: EntryId) -> None:
        first, end = batch.first_open, lac + 1
        batch.first_open = end
        entries = batch.entries[first - batch.base : end - batch.base]
        self._confirmed_length += sum(map(len, entries))
        self._confirmed_length -= len(entries) * self._digest.payload_offset
        batch.done(None, self.ledger_id, first, end - first)

    # -- faults -------------------------------------------------------------------------------

    def _bookie_failed(self, slot: int, epoch: int, error: MagnetarError) -> None:
        verdict = self._machine.failed(slot, epoch, failure_kind(error))
        if verdict is FailureVerdict.STOP:
            self.fail(self._refusal(slot, error))
        elif verdict is FailureVerdict.CHANGE and self._deferred is not None:
            self.fail(self._deferred.broken(self._change.bookies[slot], error))
        elif verdict is FailureVerdict.CHANGE:
            now_s = self._loop.time()
            if self._trouble_since_s is None:
                self._trouble_since_s = now_s
            self._channels[slot] = None
            self._change.bookie_failed(self, slot, error, now_s)

    def _refusal(self, slot: int, error: MagnetarError) -> LedgerError:
        bookie_id = self._change.bookies[slot]
        if isinstance(error, FencedError):
            return LedgerFencedError(
                f"ledger {self.ledger_id} is fenced on {bookie_id}: another client recovers it, "
                "or has deleted it; write to a new ledger"
            )
        return LedgerError(f"ledger {self.ledger_id}: {bookie_id} refused an entry: {error}")

    def send_again(self, resend: Resend) -> None:
        """Send the unconfirmed entries of a slot that was replaced or is tried again."""
        self._send()  # to the others; this slot's are all in ``resend``
        slot = resend.slot
        self._channels[slot] = channel = self._channel(slot)
        self._deadlines.sent_again(slot, self._loop.time())
        key = self._digest.master_key
        for entry_ids, entries in pieces(resend.entry_ids, self._pending):
            channel.client.add_entries(
                self.ledger_id, key, entry_ids, entries, self._flags, channel.answered
            )
        if not self._watched:
            self._watch()

    def fail(self, error: MagnetarError) -> None:
        """End the writer: every pending append fails, later ones fail at once. Idempotent."""
        if self._error is None:
            log.warning("ledger writer failed", ledger=self.ledger_id, error=str(error))
            self._end(error)

    def _end(self, error: MagnetarError) -> None:
        self._error = self._ended = error
        self._stop()
        self._unsent.clear()
        while self._pending:  # in place: ``confirm`` may be in the middle of it
            batch = self._pending.popleft()
            count = batch.base + len(batch.entries) - batch.first_open
            try:
                batch.done(error, -1, -1, count)
            except Exception as failure:  # noqa: BLE001 - an owner's own, as in ``confirm``
                self._done_failed(failure)
        if self._drained is not None:
            self._drained.set()

    def _done_failed(self, error: Exception) -> None:
        """A ``done`` has raised: told as the loop tells of any callback. It must not end the
        bookie's connection, which it came through, nor keep anybody else waiting."""
        message = f"ledger {self.ledger_id}: the done of an append raised"
        self._loop.call_exception_handler({"message": message, "exception": error})

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.fail(LedgerError(f"ledger {self.ledger_id}: {name} failed: {error!r}"))

    def _stop(self) -> None:
        self._machine.stop()
        self._announcer.stop()
        self._watched = False

    # -- deadlines ----------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look for late bookies from now on, until no answer is awaited."""
        self._watched = True
        self._deadlines.begin(self._loop.time())
        self._context.deadlines.call_later(self._timeout_s / 4, self._tick)

    def _tick(self) -> None:
        if not self._watched:  # it was stopped
            return
        if not self._awaited():  # nearly always
            self._watched, self._trouble_since_s = False, None
            return
        self._context.deadlines.call_later(self._timeout_s / 4, self._tick)
        now_s = self._loop.time()
        for slot in self._deadlines.late_slots(now_s):
            error = BookieUnavailableError(
                f"{self._change.bookies[slot]} did not answer an add of ledger {self.ledger_id} "
                f"within {self._timeout_s:g} s"
            )
            self._bookie_failed(slot, self._machine.epoch(slot), error)
        if not self._pending:
            self._trouble_since_s = None
        elif self._trouble_since_s is None:  # a failure of before this was appended
            self._trouble_since_s = now_s if self._machine.down_slots() else None
        elif now_s - self._trouble_since_s >= self._timeout_s:
            self.fail(self._change.no_replacement_error())

    def _awaited(self) -> bool:
        machine, slots = self._machine, range(len(self._channels))
        return bool(self._pending) or any(machine.up(s) and machine.awaits(s) for s in slots)

    # -- close --------------------------------------------------------------------------------

    async def close(self) -> LedgerMetadata:
        """Wait for what is pending, then close the ledger at the LAC; returns its metadata.

        Appends fail with ``LedgerClosedError`` from now on. After a failed append the ledger is
        closed before it. Idempotent. Raises ``LedgerFencedError`` or ``LedgerClosedError`` when
        another client has taken the ledger and closed it elsewhere, ``NoSuchLedgerError`` when it
        was deleted, ``MetadataError`` when the store stays away (half a minute, twice that if a
        bookie is being replaced): close it again, or leave it to a recovery. Of a ledger with
        deferred sync also what ``force`` raises; closed again it ends with what was forced.
        """
        if self._ended is None:
            self._ended = LedgerClosedError(
                f"ledger {self.ledger_id} was closed here; append to a new ledger"
            )
        await self.wait_confirmed()
        if self._closed is None and self._error is None:
            await self.force()
        async with self._change.lock:
            self._stop()
            if self._closed is None:
                deferred = self._deferred
                length = self._confirmed_length if deferred is None else deferred.length
                self._closed = await self._stored.close(self.last_add_confirmed, length)
                self._hand_over()
        await self._scope.close()
        self._let_go()
        return self._closed

    def _hand_over(self) -> None:
        """What was confirmed without a bookie is its due; a bookie that is only late may have
        answered by the time that is looked at."""
        for slot, bookie_id in enumerate(self._change.bookies):
            if self._machine.lacking(slot):
                wait_s = self._timeout_s if self._machine.up(slot) else 0.0
                look = partial(self._note_missing, slot, bookie_id)
                self._context.mender.look_later(wait_s, look)

    def _note_missing(self, slot: int, bookie_id: BookieId) -> None:
        self._context.mender.note_missing(bookie_id, self.ledger_id, self._machine.lacking(slot))

    async def abandon(self) -> None:
        """Stop without closing the ledger: pending appends fail, metadata stays as it is. For an
        owner that has lost the ledger, or gives it up to a recovery. Idempotent."""
        if self._error is None:
            self._end(LedgerClosedError(f"ledger {self.ledger_id} was given up by its writer"))
        await self._scope.close()
        self._let_go()

    def _let_go(self) -> None:
        """Nothing more is sent: what leads back here would be a cycle for each ledger."""
        self._channels = [None] * len(self._channels)

    async def wait_confirmed(self) -> None:
        """Wait until nothing is pending: all is confirmed, or has failed."""
        while self._pending:
            if self._drained is None:
                self._drained = asyncio.Event()
            self._drained.clear()
            await self._drained.wait()


def failure_kind(error: MagnetarError) -> FailureKind:
    """What a bookie's error means to a writer."""
    if isinstance(error, FencedError):
        return FailureKind.FENCED
    if isinstance(error, UnauthorizedError | BadRequestError | BookieVersionError):
        return FailureKind.REFUSED
    return FailureKind.UNAVAILABLE
