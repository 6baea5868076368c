"""The version 2 channel: adds and plain reads, matched on ledger and entry.

Only requests whose twins are interchangeable go here. An answer of version 2 names no request, so
a fencing read could be taken for answered by the answer to a plain one, and a recovery's add by
the refusal of the fenced writer's: both go over version 3. Batch reads are the exception: their
answers name the request, so they may fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Generic, TypeVar

from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import Buffer
from magnetar.env.tasks import TaskScope
from magnetar.ledger.bookies import AddDone
from magnetar.ledger.connections.add_frames import AddFrames
from magnetar.ledger.connections.channel import Channel, ConnectionOptions, Expired, Resolve
from magnetar.ledger.connections.pending_adds import PendingAdds
from magnetar.model.errors import BookieUnavailableError, MagnetarError
from magnetar.model.ids import BookieId
from magnetar.speedups import decode_add_answers
from magnetar.speedups.pure.adds import AddedRun
from magnetar.wire.bookie import v2
from magnetar.wire.bookie.messages import BatchRead
from magnetar.wire.bookie.status import v2_error

T = TypeVar("T")


class Call(Generic[T]):
    """A request that somebody awaits; times are the loop's."""

    __slots__ = ("answer", "deadline_s", "sent_at_s")

    def __init__(self, answer: asyncio.Future[T], sent_at_s: float, deadline_s: float) -> None:
        self.answer = answer
        self.sent_at_s = sent_at_s
        self.deadline_s = deadline_s

    def resolve(self, value: T) -> None:
        if not self.answer.done():
            self.answer.set_result(value)

    def fail(self, error: MagnetarError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class V2Channel(Channel):
    """See the module's text."""

    def __init__(
        self,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ConnectionOptions,
        connections: Connections,
        scope: TaskScope,
        frames: AddFrames,
    ) -> None:
        super().__init__(bookie_id, resolve, options, connections, scope)
        self._frames = frames
        self._turn: list[Buffer] = []  # frames of adds, for the end of this turn of the loop
        self._turn_bytes = 0
        self._unsent_bytes = 0  # with the turn's
        self._deadline_s = 0.0  # of the turn's adds
        self._adds = PendingAdds()
        self._reads: dict[tuple[int, int], deque[Call[bytes]]] = {}
        self._read_count = 0
        self._batch_reads: dict[int, Call[v2.Entries]] = {}
        self._request_id = 0

    @property
    def has_pending(self) -> bool:
        return bool(self._adds or self._reads or self._batch_reads)

    # -- requests -----------------------------------------------------------------------------

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: AddDone,
    ) -> None:
        """As ``BookieClient.add_entries``."""
        frames, byte_count = self._frames.encode(master_key, entries, flags)
        if not self._turn:
            self._begin_turn()
        unsent = self._unsent_bytes
        if unsent and unsent + byte_count > self.options.unsent_bytes_max:
            refusal = self.refusal(byte_count) or self.too_slow(unsent)
            self._loop.call_soon(done, refusal, tuple(entry_ids))
            return
        self._unsent_bytes = unsent + byte_count
        self._turn_bytes += byte_count
        self._turn += frames
        self._adds.add(ledger_id, (entry_ids, done, self._deadline_s))

    def _begin_turn(self) -> None:
        """The first add of a turn of the loop: look at connection, bounds and clock for all of
        them. For each add of many ledgers that was a microsecond, three times per entry."""
        self._loop.call_soon(self._end_turn)
        self._deadline_s = self._loop.time() + self.options.add_timeout_s
        self._turn_bytes = 0
        self._unsent_bytes = self.unsent_bytes
        if self.refusal(0) is not None:
            self._unsent_bytes = self.options.unsent_bytes_max + 1  # each add is told why

    def _end_turn(self) -> None:
        """One write for the adds of all ledgers."""
        turn, self._turn = self._turn, []
        self._frames.forget()
        if turn:
            self.send(turn, self._turn_bytes, now=True)

    async def read_entry(self, ledger_id: int, entry_id: int, flags: int) -> bytes:
        """As ``BookieClient.read_entry``, without fencing."""
        self._check_bound()
        frame = v2.encode_read(ledger_id, entry_id, flags, b"")
        call: Call[bytes] = self._call()
        self._reads.setdefault((ledger_id, entry_id), deque()).append(call)
        self._read_count += 1
        self.send((frame,), len(frame))
        return await call.answer

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int,
        master_key: bytes,
    ) -> v2.Entries:
        """As ``BookieClient.read_batch``."""
        self._check_bound()
        self._request_id += 1
        request_id = self._request_id
        frame_bytes = min(max_bytes + v2.BATCH_ANSWER_BYTES, self.options.frame_bytes_max)
        max_entries = min(max_entries, 2**31 - 1)
        frame = v2.encode_batch_read(
            BatchRead(
                request_id, ledger_id, first_entry_id, flags, master_key, max_entries, frame_bytes
            )
        )
        call: Call[v2.Entries] = self._call()
        self._batch_reads[request_id] = call
        self.send((frame,), len(frame))
        return await call.answer

    def _check_bound(self) -> None:
        """Raises ``BookieUnavailableError`` if no further read can be sent."""
        refusal = self.refusal(0)
        count = self._read_count + len(self._batch_reads)
        if refusal is None and count >= self.options.calls_max:
            refusal = self.unavailable(f"{count} reads are unanswered already")
        if refusal is not None:
            raise refusal

    def _call(self) -> Call[T]:
        now_s = self._loop.time()
        deadline_s = now_s + self.options.read_timeout_s
        return Call(self._loop.create_future(), now_s, deadline_s)

    # -- answers ------------------------------------------------------------------------------

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """Add answers, the many; whatever else is among them comes to ``frames_received``."""
        runs, end = decode_add_answers(view, start, end)
        self._adds_answered(runs)
        return end

    def _adds_answered(self, runs: Sequence[AddedRun]) -> None:
        answered = self._adds.answered
        for ledger_id, code, entry_ids in runs:
            error = self._add_error(ledger_id, code) if code else None
            for done, answered_ids in answered(ledger_id, entry_ids):
                done(error, answered_ids)

    def frames_received(
        self, view: memoryview, bounds: Sequence[tuple[int, int]], stays: bool
    ) -> None:
        for answer in v2.decode_answers(view, bounds, stays):
            if isinstance(answer, v2.V2AddAnswers):
                self._adds_answered((answer,))
            elif isinstance(answer, v2.ReadAnswer):
                self._read_answered(answer)
            elif isinstance(answer, v2.BatchReadAnswer):
                self._batch_answered(answer)

    def _add_error(self, ledger_id: int, code: int) -> MagnetarError | None:
        return v2_error(code, f"bookie {self.bookie_id}, adds to ledger {ledger_id}")

    def _read_answered(self, answer: v2.ReadAnswer) -> None:
        key = (answer.ledger_id, answer.entry_id)
        calls = self._reads.get(key)
        if calls is None:
            return  # late
        call = calls.popleft()
        self._read_count -= 1
        if not calls:
            del self._reads[key]
        what = f"bookie {self.bookie_id}, read of entry {answer.ledger_id}:{answer.entry_id}"
        error = v2_error(answer.code, what)
        if error is None:
            call.resolve(answer.entry)
        else:
            call.fail(error)

    def _batch_answered(self, answer: v2.BatchReadAnswer) -> None:
        call = self._batch_reads.pop(answer.request_id, None)
        if call is None:
            return  # late
        error = v2_error(answer.code, f"bookie {self.bookie_id}, batch read")
        if error is None:
            call.resolve(answer.entries)
        else:
            call.fail(error)

    # -- failures -----------------------------------------------------------------------------

    def fail_pending(self, error: BookieUnavailableError) -> None:
        calls: list[Call[bytes] | Call[v2.Entries]] = list(self._batch_reads.values())
        for waiting in self._reads.values():
            calls.extend(waiting)
        self._reads.clear()
        self._read_count = 0
        self._batch_reads.clear()
        self._turn.clear()
        self._turn_bytes = 0
        for call in calls:
            call.fail(error)
        for done, entry_ids in self._adds.drain():
            done(error, entry_ids)

    def expire(self, now_s: float) -> list[Expired]:
        timeout_s = self.options.add_timeout_s
        error = self.unavailable(f"no answer to an add in {timeout_s * 1000:.0f} ms")
        expired = [
            Expired(deadline_s - timeout_s, partial(done, error, entry_ids))
            for (done, entry_ids), deadline_s in self._adds.expired(now_s)
        ]
        timeout_ms = self.options.read_timeout_s * 1000
        error = self.unavailable(f"no answer to a read in {timeout_ms:.0f} ms")
        for call in self._expired_reads(now_s):
            expired.append(Expired(call.sent_at_s, partial(call.fail, error)))
        return expired

    def _expired_reads(self, now_s: float) -> list[Call[bytes] | Call[v2.Entries]]:
        expired: list[Call[bytes] | Call[v2.Entries]] = []
        for request_id, batch_call in list(self._batch_reads.items()):
            if batch_call.deadline_s <= now_s:
                expired.append(self._batch_reads.pop(request_id))
        for key, calls in list(self._reads.items()):
            while calls and calls[0].deadline_s <= now_s:
                expired.append(calls.popleft())
                self._read_count -= 1
            if not calls:
                del self._reads[key]
        return expired
