"""Appending to the last ledger of a chain, and going on to the next one.

The transitions are data: ``appender_states.TRANSITIONS``, shown in docs/machines.md. While OPEN an
append goes to the ledger at once; in all other states but LOST it waits for the next one.

``close`` refuses appends in any state, waits until nothing is open and closes the ledger.

``terminate`` is a change of ledgers without a next one: what was sent has its outcome, the ledger
is closed, and only then the record says that nothing comes any more. Once that was tried, no append
is sent to a ledger before it is known to be stored: it may be, and whoever opens the log next
believes the record.

Rules:

* Outcomes come in the order of the appends, also those of refused ones.
* When a ledger fails (too few bookies) it is closed at what is confirmed, by recovery if need
  be. What is in it then is answered so; the rest is in no ledger and goes to the next one, in
  order, before anything that came later. So a failed ledger costs no error, no reordering and no
  duplicate, unless closing fails too, or the next ledgers fail as well
  (``FRUITLESS_LEDGERS_MAX``): then everything open fails.
* One callback per ``append``; nothing per entry.
* An entry's header says which messages it holds (``stamping``). What goes from a failed ledger to
  the next one gets new headers there: offsets have no gap.

Why: docs/adr/0051-a-failed-ledger-costs-no-error.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.managed.appender_states import NEXT, AppenderEvent, AppenderState
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.gone import open_needed
from magnetar.log.managed.ledgers import (
    ChainReader,
    ChainWriter,
    LedgerAppendDone,
    Ledgers,
)
from magnetar.log.managed.open_appends import OpenAppend, OpenAppends
from magnetar.log.managed.stamping import HEADER_BYTES, LedgerStamps, extent_of, stamped
from magnetar.log.managed.tail_cache import LogTail
from magnetar.log.policy import LogPolicy
from magnetar.log.seam import AppendDone, Buffer, Content
from magnetar.model.errors import (
    EntryTooLargeError,
    LedgerError,
    LedgerFencedError,
    LogClosedError,
    LogFencedError,
    LogTerminatedError,
    MagnetarError,
    NoSpaceError,
)
from magnetar.model.ids import Position
from magnetar.model.ledger import LOG_KEY
from magnetar.wire.pulsar.broker_metadata import TIME_MS_MAX

log = structlog.get_logger(__name__)

FRUITLESS_LEDGERS_MAX = 2
LEDGERS_MANY: Final = 1000
"""A log that has so many rolls by what is configured, whatever its topic says of smaller ones."""
OPEN_ATTEMPTS = 4
OPEN_RETRY_FIRST_S = 0.1  # tripled after each attempt


_OPEN: Final = AppenderState.OPEN  # a member looked up in its enum is a call


@dataclass(frozen=True, slots=True)
class AppenderEvents:
    """What the log wants to know; called on the loop. ``grew``: the chain's end has moved."""

    grew: Callable[[], None]
    lost: Callable[[LogFencedError], None]
    rolled: Callable[[], None]


class _OpenLedger:
    """The ledger that takes appends. ``answered`` is what its writer calls."""

    __slots__ = (
        "answered",
        "append",
        "created_ms",
        "ledger_id",
        "next_entry_id",
        "payload_bytes",
        "payload_offset",
        "recovering",
        "stamps",
        "writer",
    )

    def __init__(
        self,
        writer: ChainWriter,
        created_ms: int,
        first_offset: int,
        answered: Callable[[_OpenLedger, MagnetarError | None, int, int, int], None],
    ) -> None:
        self.writer = writer
        self.append = writer.append
        self.next_entry_id = self.payload_bytes = (
            0  # as the writer has them; it is asked per append
        )
        self.created_ms = created_ms
        self.ledger_id = writer.ledger_id
        self.stamps = LedgerStamps(first_offset)
        self.payload_offset = writer.digest.payload_offset + HEADER_BYTES
        self.recovering = False  # by us, so that its writer is fenced, which then says nothing
        self.answered: LedgerAppendDone = partial(answered, self)

    def end(self) -> None:
        """It is closed, nothing more is appended: ``answered`` has it, which would be a cycle."""
        del self.answered


class AppendBounds(NamedTuple):
    """``queue_bytes``: of all that waits for the next ledger; ``payload_bytes``: of one payload."""

    queue_bytes: int
    payload_bytes: int


class _AskedEnd(NamedTuple):
    """A log is to be terminated: what may still speak against it, and who waits for the outcome."""

    check: Callable[[], Awaitable[None]]
    done: asyncio.Future[None]


class Appender:
    """The writing end of one log."""

    def __init__(
        self,
        store: ChainStore,
        ledgers: Ledgers,
        tail: LogTail,
        scope: TaskScope,
        events: AppenderEvents,
        *,
        policy: LogPolicy,
        bounds: AppendBounds,
        now_ms: Callable[[], int],
    ) -> None:
        self.state = AppenderState.IDLE
        self._name = store.name
        self._store = store
        self._chain = store.chain
        self._ledgers = ledgers
        self._tail = tail
        self._scope = scope
        self._events = events
        self.policy = policy
        self._now_ms = now_ms
        self._open = OpenAppends(store.name, bounds.queue_bytes)
        self._payload_bytes_max = bounds.payload_bytes
        self._ledger: _OpenLedger | None = None
        self._former: _OpenLedger | None = None  # to be closed before the next is created
        self._fruitless = 0  # ledgers in a row that failed before they confirmed anything
        self._hopeless: MagnetarError | None = None  # too many of them: what to tell
        self._refusal: MagnetarError | None = None
        self._settled: list[asyncio.Future[None]] = []
        self._ending: _AskedEnd | None = None
        if store.terminated:
            self.state, self._refusal = AppenderState.TERMINATED, self._terminated()

    @property
    def writer(self) -> ChainWriter | None:
        """The open ledger's writer, for reading from it."""
        return None if self._ledger is None else self._ledger.writer

    @property
    def published_ms(self) -> tuple[int, int]:
        """The open ledger's least and greatest publish times: as ``LedgerStats`` has them."""
        if self._ledger is None or self._ledger.next_entry_id == 0:
            return 0, 0
        stamps = self._ledger.stamps
        return stamps.least_ms, stamps.greatest_ms

    @property
    def pending_bytes(self) -> int:
        return self._open.pending_bytes

    # -- appending ----------------------------------------------------------------------------

    def append(
        self, payloads: Sequence[Buffer], done: AppendDone, content: Content | None = None
    ) -> None:
        """As ``log.seam.WritableLog.append``."""
        count = len(payloads)
        if content is None:
            content = Content([1] * count, [self._now_ms()] * count)
        size = len(payloads[0]) if count == 1 else sum(map(len, payloads))
        if self._refusal is not None:
            self._open.refuse(done, self._refusal)
        elif size > self._payload_bytes_max and self._is_too_large(payloads):
            # In its turn: a writer that raises would leave it among what is sent, and every later
            # append would be told what became of the one before it.
            self._open.refuse(done, self._too_large(payloads))
        elif self.state is _OPEN and self._ledger is not None:
            self._open.pending_bytes += size
            self._send(self._ledger, OpenAppend(done, payloads, count, size, content))
        else:
            self._open.wait(payloads, done, content)
            if self.state is AppenderState.IDLE:
                self._begin_opening(AppenderEvent.APPENDED)

    def _is_too_large(self, payloads: Sequence[Buffer]) -> bool:
        return max(map(len, payloads)) > self._payload_bytes_max

    def _too_large(self, payloads: Sequence[Buffer]) -> EntryTooLargeError:
        return EntryTooLargeError(
            f"log {self._name}: a payload has {max(map(len, payloads))} bytes; accepted: at most "
            f"{self._payload_bytes_max} (ledger.payload_bytes_max). Split it"
        )

    def _send(self, ledger: _OpenLedger, item: OpenAppend) -> None:
        item.first = first = ledger.next_entry_id
        count = item.count
        self._open.sent.append(item)
        stamps = ledger.stamps
        next_offset, greatest_ms = stamps.next_offset, stamps.greatest_ms
        messages, times_ms, stamp, _ = item.content
        if count == 1:  # most appends
            (message_count,), (time_ms,) = messages, times_ms
            headers: Sequence[bytes] = (stamps.header(self._now_ms(), message_count, time_ms),)
        else:
            headers = stamps.headers(self._now_ms(), messages, times_ms)
            time_ms = min(times_ms, default=TIME_MS_MAX)
        if time_ms < stamps.least_ms:
            stamps.least_ms = time_ms
        item.end_offset = stamps.next_offset
        payloads = item.payloads
        if stamp is not None:
            stamp.base_offset, stamp.leader_epoch = next_offset, self._store.leader_epoch
            headers, payloads = stamped(headers[0], payloads[0], stamp)
        item.entries = entries = ledger.append(payloads, ledger.answered, headers)
        if not entries:  # the writer has failed; ``answered`` will hear of it
            stamps.next_offset, stamps.greatest_ms = next_offset, greatest_ms
            item.payloads = [bytes(payload) for payload in item.payloads]
            return
        item.payloads = ()
        offset = ledger.payload_offset
        self._tail.add(ledger.ledger_id, first, entries, item.size + count * offset, offset)
        ledger.next_entry_id = first + count
        ledger.payload_bytes += item.size + count * HEADER_BYTES
        roll = self.policy.roll
        if first + count >= roll.entries_max or ledger.payload_bytes >= roll.bytes_max:
            self._move(AppenderEvent.FULL)

    def _answered(
        self,
        ledger: _OpenLedger,
        error: MagnetarError | None,
        ledger_id: int,
        first: int,
        count: int,
    ) -> None:
        if ledger is not self._ledger:
            return  # it failed before; its appends are cared for
        if error is not None:
            self._ledger_failed(ledger, error)
            return
        oldest = self._open.sent[0]
        if count == oldest.count:  # nearly always
            end_offset = oldest.end_offset
        else:
            end_offset = oldest.offset_after(count)
        self._chain.confirm(first + count - 1, end_offset)
        self._events.grew()
        self._open.confirm(ledger_id, first, count)
        if not self._open.sent:
            if self.state is AppenderState.ROLLING:
                self._begin_opening(AppenderEvent.SETTLED)
            if self._settled:
                self._check_settled()

    def _ledger_failed(self, ledger: _OpenLedger, error: MagnetarError) -> None:
        self._ledger, self._former = None, ledger
        fruitless = ledger.writer.last_add_confirmed < 0
        self._fruitless = self._fruitless + 1 if fruitless else 0
        if self._fruitless >= FRUITLESS_LEDGERS_MAX:
            self._hopeless = error
        if isinstance(error, LedgerFencedError):
            self.lose(self._lost_to(error))
            return
        log.warning(
            "ledger failed, going on in another",
            log=self._name,
            ledger=ledger.ledger_id,
            error=str(error),
        )
        self._begin_opening(AppenderEvent.LEDGER_FAILED)

    def _lost_to(self, error: MagnetarError) -> LogFencedError:
        return LogFencedError(f"log {self._name} belongs to another broker now: {error}")

    def lose(self, error: LogFencedError) -> None:
        """Another broker owns the log: fail everything, now and later. Idempotent."""
        if self.state is AppenderState.LOST:
            return
        self._move(AppenderEvent.FENCED)
        self._refusal = error
        self._ledger = self._former = None
        self._open.fail_all(error)
        self._check_settled()
        self._ended(error)
        self._events.lost(error)

    def _give_up(self, error: MagnetarError) -> None:
        """Fail everything open; the next append tries again."""
        self._ended(error)
        self._fruitless, self._hopeless = 0, None
        if self.state is not AppenderState.LOST:
            self._move(AppenderEvent.GIVEN_UP)
            self._open.fail_all(error)

    # -- changing ledgers ---------------------------------------------------------------------

    def _move(self, event: AppenderEvent) -> None:
        self.state = NEXT[self.state, event]

    def _begin_opening(self, event: AppenderEvent) -> None:
        self._move(event)
        self._scope.spawn(self._open_next(), f"open-ledger/{self._name}")

    async def _open_next(self) -> None:
        try:
            await self._with_retries()
        except LogFencedError as error:
            self.lose(error)
        except MagnetarError as error:
            self._give_up(error)
        if self._ending is not None:
            self._begin_ending()  # it was asked for when the next ledger was on its way already
        self._check_settled()

    async def _with_retries(self) -> None:
        delay_s = OPEN_RETRY_FIRST_S
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            try:
                await self._change_ledger()
            except (LogFencedError, NoSpaceError):  # space does not come within moments
                raise
            except MagnetarError as error:
                if attempt == OPEN_ATTEMPTS or self.state is AppenderState.LOST:
                    raise
                log.warning("no ledger to append to yet", log=self._name, error=str(error))
                await asyncio.sleep(delay_s)
                delay_s *= 3
            else:
                return

    async def _change_ledger(self) -> None:
        await self._finish_former()
        if self._hopeless is not None:
            await self._store.save()
            self._give_up(self._hopeless)
            return
        if self._ending is not None or self._store.terminated:
            await self._end_log(self._ending)
            if self.state is not AppenderState.OPENING:
                return
        if not self._open.any_waiting:
            await self._store.save()
        if self.state is AppenderState.LOST:
            return
        if self._open.any_waiting:
            await self._create()
        else:
            self._move(AppenderEvent.NOTHING_WAITS)
        self._events.rolled()

    async def _finish_former(self) -> None:
        """Close the ledger that was full or failed, and settle what is in it."""
        if self._ledger is not None:
            self._former, self._ledger = self._ledger, None
        former = self._former
        if former is None:
            return
        last, stored_bytes, reader = await self._end(former)
        extent = former.stamps.extent
        if reader is not None or last != former.writer.last_add_pushed:
            # Not all that got a header is in it: the last entry that is says how far it goes.
            told = await extent_of(
                reader or former.writer.reader(),
                former.stamps.first_offset,
                last,
                f"log {self._name}, ledger {former.ledger_id}",
            )
            extent = told._replace(least_ms=extent.least_ms)
        if self._former is former:  # not lost meanwhile
            self._former = None
            before = self._chain.confirmed
            self._store.close_last(self._now_ms(), last + 1, stored_bytes, extent)
            if self._chain.confirmed > before:  # recovery found what nobody had confirmed
                self._events.grew()
            self._open.settle(former.ledger_id, last, former.payload_offset)
            former.end()

    async def _end(self, former: _OpenLedger) -> tuple[int, int, ChainReader | None]:
        """Close a ledger, by recovery if its writer cannot: its last entry, its bytes and, if it
        was recovered, a reader."""
        if not former.recovering:
            try:
                closed = await former.writer.close()
            except LedgerFencedError as error:
                raise self._lost_to(error) from error
            except MagnetarError as error:
                log.warning("ledger not closed, recovering it", log=self._name, error=str(error))
            else:
                return closed.last_entry_id, closed.length, None
        former.recovering = True
        reader = await open_needed(self._ledgers, self._name, former.ledger_id)
        end = Position(former.ledger_id, reader.last_add_confirmed)
        if end < self._chain.confirmed:
            # Given up at an operator's word, with what was served here: whoever opens the log next
            # begins with what is left.
            raise LogFencedError(
                f"log {self._name} ends at {end} since it was closed at a loss, before "
                f"{self._chain.confirmed}, which was confirmed here"
            )
        return reader.last_add_confirmed, reader.length, reader

    async def _create(self) -> None:
        about = {LOG_KEY: self._name.encode()}
        writer = await self._ledgers.create(custom=about, quorums=self.policy.quorums)
        if writer.ledger_id <= self._chain.last_ledger_id:
            raise LedgerError(
                f"new ledger {writer.ledger_id} is not after ledger {self._chain.last_ledger_id} "
                f"of log {self._name}: was the ledger id counter of the metadata root reset?"
            )
        now_ms, first_offset = self._now_ms(), self._chain.end_offset
        info = LedgerInfo(writer.ledger_id, created_ms=now_ms, first_offset=first_offset)
        try:
            await self._store.save(info)
        except LogFencedError:
            await self._store.discard(writer.ledger_id)
            raise
        except MagnetarError:
            self._store.leave(writer.ledger_id)  # whether or not the record names it
            raise
        if self.state is AppenderState.LOST:
            return
        self._ledger = _OpenLedger(writer, now_ms, first_offset, self._answered)
        self._move(AppenderEvent.CREATED)
        while self.state is AppenderState.OPEN and (item := self._open.next_waiting()) is not None:
            self._send(self._ledger, item)

    def tick(self) -> None:
        """Some time has passed: is the ledger too old?"""
        ledger = self._ledger
        if ledger is None or self.state is not AppenderState.OPEN:
            return
        age_ms = self._now_ms() - ledger.created_ms
        if self.policy.roll.old(ledger.next_entry_id, age_ms) or self._cut_smaller(ledger, age_ms):
            self._move(AppenderEvent.FULL)
            if not self._open.sent:
                self._begin_opening(AppenderEvent.SETTLED)

    def _cut_smaller(self, ledger: _OpenLedger, age_ms: int) -> bool:
        """Whether the topic wants a ledger that would grow on to end here."""
        few = len(self._chain.ledgers) < LEDGERS_MANY  # each is named in the log's one record
        said = self.policy.pieces
        return few and ledger.next_entry_id > 0 and said.over(ledger.payload_bytes, age_ms)

    # -- ending -------------------------------------------------------------------------------

    @property
    def terminated(self) -> bool:
        """As ``log.seam.LogEnd.terminated``."""
        return self.state is AppenderState.TERMINATED

    def _terminated(self) -> LogTerminatedError:
        return LogTerminatedError(f"log {self._name} is terminated: nothing more is appended to it")

    async def terminate(self, check: Callable[[], Awaitable[None]]) -> None:
        """As ``log.seam.Termination.terminate``."""
        if self.state is AppenderState.TERMINATED:
            return
        if self._refusal is not None:
            raise self._refusal
        assert self._ending is None
        ending = self._ending = _AskedEnd(check, asyncio.get_running_loop().create_future())
        self._begin_ending()
        await asyncio.shield(ending.done)

    def _begin_ending(self) -> None:
        if self.state is AppenderState.IDLE:
            self._begin_opening(AppenderEvent.ENDING)
        elif self.state is AppenderState.OPEN:
            self._move(AppenderEvent.ENDING)
            if not self._open.sent:
                self._begin_opening(AppenderEvent.SETTLED)

    async def _end_log(self, ending: _AskedEnd | None) -> None:
        """Nothing is under way, and no ledger is open. The log goes on if the check says so."""
        if ending is not None and not self._store.terminated:
            try:
                await ending.check()
            except MagnetarError as error:
                self._ended(error)
                return
            if self.state is AppenderState.LOST:
                return
        self._store.terminated = True
        await self._store.save()
        if self.state is AppenderState.LOST:
            return
        self._move(AppenderEvent.TERMINATED)
        self._refusal = self._refusal or self._terminated()
        self._open.fail_all(self._terminated())
        self._ended(None)
        self._events.grew()

    def _ended(self, error: MagnetarError | None) -> None:
        """Whoever had the log terminated is told what came of it."""
        ending, self._ending = self._ending, None
        if ending is None or ending.done.done():
            return
        if error is None:
            ending.done.set_result(None)
        else:
            ending.done.set_exception(error)

    def _busy(self) -> bool:
        return bool(self._open) or self.state is AppenderState.OPENING

    def _check_settled(self) -> None:
        if self._settled and not self._busy():
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def close(self) -> None:
        """Refuse appends from now on, finish what is open, close the ledger. The chain is to be
        saved after it."""
        if self._refusal is None:
            self._refusal = LogClosedError(f"log {self._name} is closed")
        while self._busy():
            waiter = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter
        if self.state is not AppenderState.LOST and (self._ledger or self._former):
            await self._finish_former()
