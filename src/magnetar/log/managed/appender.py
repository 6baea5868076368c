"""Appending to the last ledger of a chain, and going on to the next one.

States::

    IDLE     no ledger        append: queue, start -> OPENING
    OPENING  a task closes (or recovers) the former ledger and creates the next
                              append: queue;  done -> OPEN (or IDLE, nothing queued);
                              failed for good -> everything open fails, IDLE
    OPEN     a ledger         append: to the ledger;  full -> ROLLING;  failed -> OPENING
    ROLLING  a full ledger    append: queue;  all confirmed -> OPENING;  failed -> OPENING
    CLOSING  as the state it was, refusing appends;  nothing open -> CLOSED
    LOST     another broker owns the log: everything open and every append fails

Rules:

* Outcomes come in the order of the appends, also those of refused ones.
* When a ledger fails (too few bookies) it is closed at what is confirmed, by recovery if need
  be. What is in it then is answered so; the rest is in no ledger and goes to the next one, in
  order, before anything that came later. So a failed ledger costs no error, no reordering and no
  duplicate, unless closing fails too, or the next ledgers fail as well
  (``FRUITLESS_LEDGERS_MAX``): then everything open fails.
* Appends that must wait are copied, and bounded in bytes; past the bound they are refused until
  the queue has emptied, so that none overtakes a refused one from the same burst.
* One callback per ``append``; nothing per entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.ledgers import Ledgers, LedgerWriter
from magnetar.log.managed.rules import RollRule
from magnetar.log.managed.tail_cache import LogTail
from magnetar.log.seam import AppendDone, Buffer
from magnetar.model.errors import (
    LedgerFencedError,
    LogClosedError,
    LogError,
    LogFencedError,
    MagnetarError,
)

log = structlog.get_logger(__name__)

FRUITLESS_LEDGERS_MAX = 2
OPEN_ATTEMPTS = 4
OPEN_RETRY_FIRST_S = 0.1  # tripled after each attempt


class AppenderState(Enum):
    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    ROLLING = "rolling"
    LOST = "lost"


class _Append:
    """One ``append``, or what is open of it. ``payloads`` are own copies while it is queued;
    ``count`` of them are open, the first of those with the id ``first``; ``size`` is the bytes
    of all. With ``refusal`` it is there to be failed in its turn."""

    __slots__ = ("count", "done", "entries", "first", "payloads", "refusal", "size")

    def __init__(
        self,
        done: AppendDone,
        payloads: Sequence[Buffer],
        count: int,
        size: int,
        refusal: MagnetarError | None = None,
    ) -> None:
        self.done = done
        self.payloads = payloads
        self.count = count
        self.size = size
        self.refusal = refusal
        self.first = -1
        self.entries: Sequence[bytes] = ()


@dataclass(slots=True)
class AppenderEvents:
    """What the log wants to know; called on the loop."""

    confirmed: Callable[[], None]
    lost: Callable[[LogFencedError], None]
    rolled: Callable[[], None]


class _OpenLedger:
    """The ledger that takes appends, and those under way in it. ``answered`` is what its writer
    calls."""

    __slots__ = ("answered", "created_ms", "ledger_id", "payload_offset", "sent", "writer")

    def __init__(
        self,
        writer: LedgerWriter,
        created_ms: int,
        answered: Callable[[_OpenLedger, MagnetarError | None, int, int, int], None],
    ) -> None:
        self.writer = writer
        self.created_ms = created_ms
        self.ledger_id = writer.ledger_id
        self.payload_offset = writer.digest.payload_offset
        self.answered: AppendDone = partial(answered, self)
        self.sent: deque[_Append] = deque()


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
        rule: RollRule,
        queue_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.state = AppenderState.IDLE
        self.pending_bytes = 0
        self._name = store.name
        self._store = store
        self._chain = store.chain
        self._ledgers = ledgers
        self._tail = tail
        self._scope = scope
        self._events = events
        self._rule = rule
        self._queue_bytes_max = queue_bytes_max
        self._now_ms = now_ms
        self._ledger: _OpenLedger | None = None
        self._queue: deque[_Append] = deque()
        self._queue_bytes = 0
        self._overflowed = False
        self._failed: _OpenLedger | None = None  # to be closed before the next is created
        self._fruitless = 0  # ledgers in a row that failed before they confirmed anything
        self._hopeless: MagnetarError | None = None  # too many of them: what to tell
        self._refusal: MagnetarError | None = None
        self._settled: list[asyncio.Future[None]] = []

    @property
    def writer(self) -> LedgerWriter | None:
        """The open ledger's writer, for reading from it."""
        return None if self._ledger is None else self._ledger.writer

    # -- appending ----------------------------------------------------------------------------

    def append(self, payloads: Sequence[Buffer], done: AppendDone) -> None:
        ledger = self._ledger
        if self._refusal is not None:
            self._refuse(payloads, done, self._refusal)
        elif self.state is AppenderState.OPEN and ledger is not None:
            size = sum(map(len, payloads))
            self.pending_bytes += size
            self._send(ledger, _Append(done, payloads, len(payloads), size))
        else:
            self._enqueue(payloads, done)

    def _send(self, ledger: _OpenLedger, item: _Append) -> None:
        writer = ledger.writer
        item.first = first = writer.last_add_pushed + 1
        ledger.sent.append(item)
        item.entries = entries = writer.append(item.payloads, ledger.answered)
        if not entries:  # the writer has failed; ``answered`` will hear of it
            item.payloads = [bytes(payload) for payload in item.payloads]
            return
        item.payloads = ()
        offset = ledger.payload_offset
        stored_bytes = item.size + item.count * offset
        self._tail.add(ledger.ledger_id, first, entries, stored_bytes, offset)
        if self._rule.full(first + item.count, writer.length):
            self.state = AppenderState.ROLLING

    def _enqueue(self, payloads: Sequence[Buffer], done: AppendDone) -> None:
        size = sum(map(len, payloads))
        if self._overflowed or self._queue_bytes + size > self._queue_bytes_max:
            self._overflowed = True
            error = LogError(
                f"log {self._name} is changing ledgers and {self._queue_bytes} bytes wait "
                "already; send again later"
            )
            self._refuse(payloads, done, error)
        else:
            copies = [bytes(payload) for payload in payloads]
            self._queue.append(_Append(done, copies, len(copies), size))
            self._queue_bytes += size
            self.pending_bytes += size
        if self.state is AppenderState.IDLE:
            self._begin_opening()

    def _refuse(self, payloads: Sequence[Buffer], done: AppendDone, error: MagnetarError) -> None:
        """Fail an append after all that came before it."""
        if self._queue:
            self._queue.append(_Append(done, (), len(payloads), 0, refusal=error))
        elif self._ledger is not None and self._ledger.sent:
            self._ledger.sent.append(_Append(done, (), len(payloads), 0, refusal=error))
        else:
            asyncio.get_running_loop().call_soon(done, error, -1, -1, len(payloads))

    # -- outcomes -----------------------------------------------------------------------------

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
        self._chain.confirm(first + count - 1)
        self._confirm(ledger.sent, ledger_id, first, count)
        self._events.confirmed()
        if not ledger.sent:
            if self.state is AppenderState.ROLLING:
                self._begin_opening()
            self._check_settled()

    def _confirm(self, sent: deque[_Append], ledger_id: int, first: int, count: int) -> None:
        """Tell the oldest append that ``count`` of its payloads are confirmed."""
        item = sent[0]
        assert item.first == first, f"confirmed {first}, expected {item.first}"
        assert count <= item.count
        item.first += count
        item.count -= count
        if item.count == 0:
            sent.popleft()
            self.pending_bytes -= item.size
        item.done(None, ledger_id, first, count)
        while sent and sent[0].refusal is not None:
            self._fail(sent.popleft(), None)

    def _fail(self, item: _Append, error: MagnetarError | None) -> None:
        self.pending_bytes -= item.size
        error = item.refusal or error
        assert error is not None
        item.done(error, -1, -1, item.count)

    def _fail_all(self, error: MagnetarError) -> None:
        """Fail everything open, in order."""
        items: list[_Append] = []
        for ledger in (self._failed, self._ledger):
            if ledger is not None:
                items += ledger.sent
                ledger.sent.clear()
        items += self._queue
        self._queue.clear()
        self._queue_bytes = 0
        self._overflowed = False
        for item in items:
            self._fail(item, error)

    def _ledger_failed(self, ledger: _OpenLedger, error: MagnetarError) -> None:
        self._ledger = None
        self._failed = ledger
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
        self._begin_opening()

    def lose(self, error: LogFencedError) -> None:
        """Another broker owns the log: fail everything, now and later. Idempotent."""
        if self.state is AppenderState.LOST:
            return
        self.state = AppenderState.LOST
        self._refusal = error
        self._fail_all(error)
        self._ledger = None
        self._failed = None
        self._check_settled()
        self._events.lost(error)

    # -- changing ledgers ---------------------------------------------------------------------

    def _begin_opening(self) -> None:
        self.state = AppenderState.OPENING
        self._scope.spawn(self._open_next(), f"open-ledger/{self._name}")

    async def _open_next(self) -> None:
        try:
            await self._with_retries()
        except LogFencedError as error:
            self.lose(error)
        except MagnetarError as error:
            self._give_up(error)
        self._check_settled()

    def _give_up(self, error: MagnetarError) -> None:
        """Fail everything open; the next append tries again."""
        self._fruitless, self._hopeless = 0, None
        if self.state is not AppenderState.LOST:
            self.state = AppenderState.IDLE
            self._fail_all(error)

    async def _with_retries(self) -> None:
        delay_s = OPEN_RETRY_FIRST_S
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            try:
                await self._change_ledger()
            except LogFencedError:
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
        if not self._queue:
            await self._store.save()
            if not self._queue:
                if self.state is not AppenderState.LOST:
                    self.state = AppenderState.IDLE
                self._rolled()
                return
        await self._create()
        self._rolled()

    async def _finish_former(self) -> None:
        """Close the ledger that was full or failed, by recovery if its writer cannot."""
        if self._ledger is not None:
            self._failed, self._ledger = self._ledger, None  # until it is closed
        ledger = self._failed
        if ledger is None:
            return
        try:
            closed = await ledger.writer.close()
            last, stored_bytes = closed.last_entry_id, closed.length
        except LedgerFencedError as error:
            raise self._lost_to(error) from error
        except MagnetarError as error:
            log.warning("ledger not closed, recovering it", log=self._name, error=str(error))
            reader = await self._ledgers.open(ledger.ledger_id)
            last, stored_bytes = reader.last_add_confirmed, reader.length
        if self._failed is ledger:  # not lost meanwhile
            self._failed = None
            self._settle(ledger, last, stored_bytes)

    def _settle(self, ledger: _OpenLedger, last: int, stored_bytes: int) -> None:
        """The former ledger is closed at ``last``: answer what is in it, queue what is not."""
        self._store.close_last(self._now_ms(), last + 1, stored_bytes)
        sent = ledger.sent
        while sent and (sent[0].refusal is not None or sent[0].first <= last):
            item = sent[0]
            if item.refusal is not None:
                self._fail(sent.popleft(), None)
            else:
                found = min(item.count, last - item.first + 1)
                self._confirm(sent, ledger.ledger_id, item.first, found)
        self._requeue(ledger)
        self._events.confirmed()

    def _lost_to(self, error: MagnetarError) -> LogFencedError:
        return LogFencedError(f"log {self._name} belongs to another broker now: {error}")

    def _requeue(self, ledger: _OpenLedger) -> None:
        offset = ledger.payload_offset
        for item in reversed(ledger.sent):
            if item.refusal is None:
                if item.entries:
                    open_entries = item.entries[len(item.entries) - item.count :]
                    item.payloads = [memoryview(entry)[offset:] for entry in open_entries]
                    item.entries = ()
                self._queue_bytes += item.size
            self._queue.appendleft(item)
        ledger.sent.clear()

    async def _create(self) -> None:
        writer = await self._ledgers.create(custom={"magnetar-log": self._name.encode()})
        now_ms = self._now_ms()
        try:
            await self._store.save(LedgerInfo(writer.ledger_id, created_ms=now_ms))
        except MagnetarError:
            self._store.leave(writer.ledger_id)  # whether or not the record names it
            raise
        if self.state is AppenderState.LOST:
            return
        self._ledger = _OpenLedger(writer, now_ms, self._answered)
        self.state = AppenderState.OPEN
        self._drain(self._ledger)

    def _drain(self, ledger: _OpenLedger) -> None:
        while self._queue and self.state is AppenderState.OPEN:
            item = self._queue.popleft()
            if item.refusal is None:
                self._queue_bytes -= item.size
                self._send(ledger, item)
            elif ledger.sent:
                ledger.sent.append(item)
            else:
                self._fail(item, None)
        if not self._queue:
            self._overflowed = False

    def _rolled(self) -> None:
        if self._chain.ledgers:
            self._events.rolled()

    def tick(self) -> None:
        """Some time has passed: is the ledger too old?"""
        ledger = self._ledger
        if ledger is None or self.state is not AppenderState.OPEN:
            return
        age_ms = self._now_ms() - ledger.created_ms
        if self._rule.old(ledger.writer.last_add_pushed + 1, age_ms):
            self.state = AppenderState.ROLLING
            if not ledger.sent:
                self._begin_opening()

    # -- ending -------------------------------------------------------------------------------

    def _check_settled(self) -> None:
        if self._settled and not self._busy():
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _busy(self) -> bool:
        sent = self._ledger is not None and bool(self._ledger.sent)
        return sent or bool(self._queue) or self.state is AppenderState.OPENING

    async def close(self) -> None:
        """Refuse appends from now on, finish what is open, close the ledger."""
        if self._refusal is None:
            self._refusal = LogClosedError(f"log {self._name} is closed")
        while self._busy():
            waiter = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter
        if self.state is not AppenderState.LOST and (self._ledger or self._failed):
            self.state = AppenderState.OPENING
            try:
                await self._finish_former()
                await self._store.save()
            finally:
                self.state = AppenderState.IDLE
