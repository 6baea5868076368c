"""One client's connection to the bookie: requests in, answers out, bounds on both.

Rules:

* A connection speaks version 3 until a frame is not of version 3; from then on version 2. A
  request is answered in the version it came in.
* The adds of a chunk go to the storage core in one call, by runs of one ledger, but not past what
  was asked between them; their answers leave in one piece, with everything else that is answered in
  the same loop turn.
* A read that the core has at hand is answered in the same call; all else that takes time goes
  through one bounded queue, served by a few workers. Fencing and high priority go first.
* Bounds: adds under way (bytes, number) and a peer that does not read its answers stop the
  reading of the connection; a full queue is answered with "too many requests".
* A frame begun must be finished within ``frame_timeout_s``.
* Bytes that are no request end the connection, and only it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import structlog

from magnetar.bookie.core import BookieCore
from magnetar.bookie.serving.answers import Answers, Buffer, V2Answers, V3Answers
from magnetar.bookie.serving.lac_watch import LacWatch
from magnetar.bookie.storage.entry_runs import EntryRuns
from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import FREE_REASON, LENGTH_BYTES, FramedConnection
from magnetar.env.tasks import TaskScope, fails
from magnetar.model.errors import (
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from magnetar.model.ids import NO_ENTRY
from magnetar.wire.bookie import availability, v2, v3
from magnetar.wire.bookie.messages import (
    READ_FENCE,
    READ_HIGH_PRIORITY,
    AddRun,
    Auth,
    BatchRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    Refused,
    Request,
    WriteLac,
)

log = structlog.get_logger(__name__)

BUSY: Final = FREE_REASON
"""Why a connection is not read: adds under way, or answers that the peer does not take."""


_URGENT: Final = READ_FENCE | READ_HIGH_PRIORITY


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one connection."""

    frame_bytes_max: int = 5 * (1 << 20) + (64 << 10)
    frame_timeout_s: float = 60.0
    add_bytes_max: int = 32 << 20
    adds_max: int = 50_000
    queued_requests_max: int = 4096
    workers_max: int = 16
    long_polls_max: int = 1000
    unsent_bytes_max: int = 8 << 20


Queued: TypeAlias = (
    Read | BatchRead | WriteLac | ReadLac | ForceLedger | ListEntries | GetBookieInfo
)


class BookieSession(FramedConnection):
    """See the module's text. ``began`` is called once the connection is up, and ``ended`` once it
    is gone."""

    def __init__(
        self,
        core: BookieCore,
        limits: SessionLimits,
        connections: Connections,
        watch: LacWatch,
        scope: TaskScope,
        began: Callable[[BookieSession], None],
        ended: Callable[[BookieSession], None],
    ) -> None:
        super().__init__(limits.frame_bytes_max, connections)
        self._core = core
        self._limits = limits
        self._watch = watch
        self._scope = scope
        self._began = began
        self._ended = ended
        self._v3 = True
        self._answers: Answers = V3Answers()
        self._adds = 0
        self._add_bytes = 0
        self._queue: deque[tuple[Queued, Answers]] = deque()
        self._workers = 0
        self._long_polls = 0
        self._poll_answers = asyncio.Semaphore(limits.workers_max)
        self._drained = asyncio.Event()
        self._drained.set()
        self._frame_bytes = 0  # of whole frames received
        self._complained = False
        self._overdue_mark = (-1, 0.0)

    # -- the connection -----------------------------------------------------------------------

    def connected(self) -> None:
        assert self.transport is not None
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._began(self)

    def disconnected(self, error: Exception | None) -> None:
        self._queue.clear()
        self._drained.set()
        self._ended(self)

    def writable_changed(self) -> None:
        if self.writable:
            self._drained.set()
        else:
            self._drained.clear()
        self._steer_reading()

    def check_frame_deadline(self, now_s: float) -> None:
        """Called now and then: end the connection if one frame has been coming in too long
        (while it is read: what we leave in the socket is not the peer's delay)."""
        received, since_s = self._overdue_mark
        if not self.partial_frame_bytes or received != self._frame_bytes or self.paused:
            self._overdue_mark = (self._frame_bytes, now_s)
        elif now_s - since_s >= self._limits.frame_timeout_s:
            log.warning(
                "connection closed: a frame took too long",
                peer=self.peer,
                received_bytes=self.partial_frame_bytes,
                timeout_s=self._limits.frame_timeout_s,
            )
            self.abort()

    # -- requests -----------------------------------------------------------------------------

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """Version 2 finds its frames while it decodes them."""
        if self._v3:
            return start
        requests, stop = v2.decode_requests(view, start, end, self._limits.frame_bytes_max)
        self._frame_bytes += stop - start
        self._handle_all(requests)
        return stop

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        """As long as version 3 is spoken, and for the frames that end that."""
        requests, taken = v3.decode_requests(view, bounds)
        self._frame_bytes += bounds[-1][1] - bounds[0][0]
        self._handle_all(requests)
        if taken < len(bounds):
            self._v3, self._answers = False, V2Answers()
            start, end = bounds[taken][0] - LENGTH_BYTES, bounds[-1][1]
            self._handle_all(v2.decode_requests(view, start, end, end - start)[0])

    def _handle_all(self, requests: Sequence[Request]) -> None:
        runs: list[AddRun] = []
        for request in requests:
            if isinstance(request, AddRun):
                runs.append(request)
                continue
            if runs:  # before what was asked behind them
                self._add(runs)
                runs = []
            if isinstance(request, Read):
                self._read(request)
            elif isinstance(request, Auth):
                self.write(self._answers.auth(request))
            elif isinstance(request, Refused):
                self._refuse_bad(request)
            else:
                self._enqueue(request)
        if runs:
            self._add(runs)
        self._steer_reading()

    def _refuse_bad(self, request: Refused) -> None:
        if not self._complained:  # once per connection: a peer must not fill the log
            self._complained = True
            log.warning("request refused", peer=self.peer, error=str(request.error))
        self.write(self._answers.refused(request))

    def _add(self, runs: list[AddRun]) -> None:
        for run in runs:
            run.unanswered = count = len(run.entry_ids)
            self._adds += count
            self._add_bytes += run.byte_count
        if len(runs) > 1:
            self._core.add_runs(runs, partial(self._runs_added, self._answers))
            return
        (run,) = runs
        entry_ids = run.entry_ids
        done = partial(self._added, self._answers, run)
        self._core.add_entries(
            run.ledger_id, run.master_key, entry_ids, run.entries, run.flags, done
        )

    def _added(
        self,
        answers: Answers,
        run: AddRun,
        error: MagnetarError | None,
        entry_ids: Sequence[int],
    ) -> None:
        """These adds of ``run`` are to be answered, in the version they came in."""
        self.write(answers.adds(run, entry_ids, error))
        count = len(entry_ids)
        self._adds -= count
        run.unanswered -= count
        if not run.unanswered:
            self._add_bytes -= run.byte_count
        self._watch.changed(run.ledger_id)
        if self.paused & BUSY:
            self._steer_reading()

    def _runs_added(
        self,
        answers: Answers,
        error: MagnetarError | None,
        runs: Sequence[AddRun],
        entry_ids: Sequence[int],
    ) -> None:
        """As ``_added``, of one run these entries, or of all runs all."""
        if entry_ids:
            self._added(answers, runs[0], error, entry_ids)
            return
        self.write(answers.runs(runs, error))
        for run in runs:
            self._adds -= run.unanswered
            self._add_bytes -= run.byte_count
            run.unanswered = 0
            self._watch.changed(run.ledger_id)
        if self.paused & BUSY:
            self._steer_reading()

    def _steer_reading(self) -> None:
        """Stop reading the connection at a bound; go on at half of it."""
        limits = self._limits
        if not self.paused & BUSY:
            full = self._adds > limits.adds_max or self._add_bytes > limits.add_bytes_max
            if full or not self.writable:
                self.pause(BUSY)
        elif (
            self.writable
            and self._adds <= limits.adds_max // 2
            and self._add_bytes <= limits.add_bytes_max // 2
        ):
            self.resume(BUSY)

    def _read(self, request: Read) -> None:
        plain = not request.flags & READ_FENCE and request.entry_id >= 0
        if plain and request.previous_lac is None and not self._congested:
            entry = self._core.read_cached(request.ledger_id, request.entry_id)
            if entry is not None:
                self._write_all(self._answers.read(request, entry, None))
                return
        self._enqueue(request)

    # -- requests that take time --------------------------------------------------------------

    @property
    def _congested(self) -> bool:
        return not self.writable or self.unsent_bytes > self._limits.unsent_bytes_max

    def _enqueue(self, request: Queued) -> None:
        if isinstance(request, Read) and request.previous_lac is not None:
            self._start_long_poll(request)
            return
        if len(self._queue) >= self._limits.queued_requests_max:
            self._refuse(request, f"{len(self._queue)} requests wait on this connection")
            return
        urgent = isinstance(request, Read | BatchRead) and bool(request.flags & _URGENT)
        if urgent:
            self._queue.appendleft((request, self._answers))
        else:
            self._queue.append((request, self._answers))
        # All workers may be at slow reads: a fence must not wait for one of these to end.
        if self._workers < self._limits.workers_max and (
            urgent or self._workers < len(self._queue)
        ):
            self._workers += 1
            self._spawn(self._work(), "worker")

    def _refuse(self, request: Queued, reason: str) -> None:
        error = TooManyRequestsError(f"{reason}; try again later")
        self.write(self._answers.failed(request, error))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        self._scope.spawn(work, f"{name} of {self.peer}", fails(self._task_failed))

    def _task_failed(self, task: str, error: BaseException) -> None:
        """The peer must not wait for an answer that will not come."""
        self.abort()

    async def _work(self) -> None:
        """Serve the queue until it is empty."""
        try:
            while self._queue and not self.closed:
                if self._congested:
                    await self._let_leave()
                    continue
                await self._serve(*self._queue.popleft())
        finally:
            self._workers -= 1

    async def _let_leave(self) -> None:
        """This turn's answers, and then what the peer has not taken yet."""
        await asyncio.sleep(0)
        await self._drained.wait()

    async def _serve(self, request: Queued, answers: Answers) -> None:
        try:
            parts = await self._answer(request, answers)
        except MagnetarError as error:
            parts = (answers.failed(request, error),)
        self._write_all(parts)

    async def _answer(self, request: Queued, answers: Answers) -> Sequence[Buffer]:
        match request:
            case Read():
                return answers.read(request, await self._fetch(request), None)
            case BatchRead():
                return await self._batch_read(request)
            case WriteLac(ledger_id=ledger_id, lac=lac, master_key=key, body=body):
                await self._core.write_lac(ledger_id, key, lac, body)
                self._watch.changed(ledger_id)
                return (v3.encode_write_lac_answer(request),)
            case ReadLac(ledger_id=ledger_id):
                return (await self._read_lac(request),)
            case ForceLedger(ledger_id=ledger_id):
                await self._core.force(ledger_id)
                return (v3.encode_force_answer(request),)
            case ListEntries(ledger_id=ledger_id):
                held = availability.encode(await self._core.list_entries(ledger_id))
                return (v3.encode_list_answer(request, held),)
            case GetBookieInfo():
                info = self._core.info()
                return (v3.encode_info_answer(request, info.total_bytes, info.free_bytes),)

    async def _fetch(self, request: Read) -> bytes:
        """The entry of a read that is no long poll; fences first if asked to."""
        ledger_id, entry_id = request.ledger_id, request.entry_id
        if not request.flags & READ_FENCE:
            return await self._core.read_entry(ledger_id, entry_id, request.flags)
        if not request.master_key:
            raise UnauthorizedError(f"fencing read of ledger {ledger_id} without a master key")
        try:
            if entry_id >= 0:
                return await self._core.read_entry(
                    ledger_id, entry_id, request.flags, request.master_key
                )
            reply = await self._core.read_lac(ledger_id, request.flags, request.master_key)
        finally:
            self._watch.changed(ledger_id, fenced=True)
        if reply.last_entry is None:
            raise NoEntryError(f"ledger {ledger_id} is fenced and holds no entry here")
        return reply.last_entry

    async def _batch_read(self, request: BatchRead) -> Sequence[Buffer]:
        frame_bytes = self._limits.frame_bytes_max
        if request.max_bytes > 0:
            frame_bytes = min(frame_bytes, request.max_bytes)
        room = frame_bytes - v2.BATCH_ANSWER_BYTES
        count = request.max_entries if request.max_entries > 0 else 2**31 - 1
        try:
            found = await self._core.read_batch(
                request.ledger_id, request.entry_id, count, room, request.flags, request.master_key
            )
        finally:
            if request.flags & READ_FENCE:
                self._watch.changed(request.ledger_id, fenced=True)
        runs = found if isinstance(found, EntryRuns) else EntryRuns(found[:count])
        parts = runs.framed(room, v2.BATCH_HEAD_BYTES)
        assert isinstance(parts[0], bytearray)
        v2.put_batch_head(parts[0], request, sum(map(len, parts)))
        return parts

    async def _read_lac(self, request: ReadLac) -> bytes:
        reply = await self._core.read_lac(request.ledger_id)
        body = reply.explicit_lac
        if reply.last_entry is None and body is None:
            raise NoEntryError(f"ledger {request.ledger_id} has no entry and no LAC here")
        return v3.encode_read_lac_answer(request, body, reply.last_entry)

    # -- long polls ---------------------------------------------------------------------------

    def _start_long_poll(self, request: Read) -> None:
        if self._long_polls >= self._limits.long_polls_max:
            self._refuse(request, f"{self._long_polls} long polls wait on this connection")
            return
        self._long_polls += 1
        self._spawn(self._long_poll(request, self._answers), "long poll")

    async def _long_poll(self, request: Read, answers: Answers) -> None:
        try:
            lac = await self._wait_lac(request)
            async with self._poll_answers:
                while self._congested and not self.closed:
                    await self._let_leave()
                self._write_all(await self._poll_answer(request, answers, lac))
        except MagnetarError as error:
            self.write(answers.failed(request, error))
        finally:
            self._long_polls -= 1

    async def _wait_lac(self, request: Read) -> int:
        """Until the ledger's last add confirmed has moved, or the time is up; what it is."""
        ledger_id, previous = request.ledger_id, request.previous_lac
        assert previous is not None
        deadline_s = self._loop.time() + request.timeout_ms / 1000
        lac = await self._known_lac(ledger_id)
        while lac <= previous and not self.closed:
            left_s = deadline_s - self._loop.time()
            if left_s <= 0:
                break
            fenced = await self._watch.wait(ledger_id, left_s)
            lac = await self._known_lac(ledger_id)
            if fenced:
                break
        return lac

    async def _poll_answer(self, request: Read, answers: Answers, lac: int) -> Sequence[Buffer]:
        entry_id, previous = request.entry_id, request.previous_lac
        assert previous is not None
        if request.piggyback:
            if lac <= previous:
                return answers.read(request, None, lac)
            entry_id = previous + 1
        return answers.read(request, await self._piggyback(request, entry_id), lac)

    async def _known_lac(self, ledger_id: int) -> int:
        """-1 also if there is nothing of the ledger here: its first entry may be on its way."""
        try:
            return (await self._core.read_lac(ledger_id)).last_add_confirmed
        except NoLedgerError:
            return NO_ENTRY

    async def _piggyback(self, request: Read, entry_id: int) -> bytes | None:
        try:
            return await self._core.read_entry(request.ledger_id, entry_id)
        except NoEntryError:
            if request.piggyback:
                return None  # striping: another bookie of the ensemble has it
            raise

    def _write_all(self, parts: Sequence[Buffer]) -> None:
        self.write_parts(parts, sum(map(len, parts)))
