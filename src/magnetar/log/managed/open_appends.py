"""The appends of a log that are not answered yet, in their order.

An append is *sent* (in the ledger that is open, or that failed and is not settled) or *waiting*
(for the next ledger; all of these came after all that are sent). Refused appends stand in the
same order until their turn comes.

A ledger confirms an append in parts; where they lie is collected here (``OpenAppend.runs``), so
that nobody above knows of parts.

Invariants: every append is answered exactly once, in the order of the appends; what waits is
copied, and bounded in bytes (or one append).

Why one answer per append: docs/adr/0055-whole-append-answers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.log.seam import AppendDone, Buffer, Content, Run
from magnetar.model.errors import LogError, MagnetarError

_NOTHING = Content((), ())
_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor


class OpenAppend:
    """One ``append``, or what is open of it. ``payloads`` are own copies while it waits;
    ``count`` of them are open, the first of those with the id ``first``; the others lie in
    ``runs``; ``size`` is the bytes of all. With ``refusal`` it is there to be failed in its
    turn."""

    __slots__ = (
        "content",
        "count",
        "done",
        "end_offset",
        "entries",
        "first",
        "payloads",
        "refusal",
        "runs",
        "size",
    )

    def __init__(
        self,
        done: AppendDone,
        payloads: Sequence[Buffer],
        count: int,
        size: int,
        content: Content,
        refusal: MagnetarError | None = None,
    ) -> None:
        self.content = content
        self.end_offset = -1  # of the message after it, once it is sent
        self.done = done
        self.payloads = payloads
        self.count = count
        self.size = size
        self.refusal = refusal
        self.first = -1
        self.entries: Sequence[bytes] = ()
        self.runs: tuple[Run, ...] = ()

    def offset_after(self, count: int) -> int:
        """The offset of the message after the next ``count`` open payloads."""
        beyond = self.count - count
        return self.end_offset - sum(self.content.messages[-beyond:] if beyond else ())

    def confirmed(self, run: Run) -> None:
        """The next open payloads lie there."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.ledger_id == run.ledger_id:
            joined = last._replace(entries=last.entries + run.entries)
            self.runs = (*self.runs[:-1], joined)
        else:
            self.runs = (*self.runs, run)
        self.first += run.entries
        self.count -= run.entries


class OpenAppends:
    """What is open of the appends of log ``name``; at most ``waiting_bytes_max`` wait."""

    def __init__(self, name: str, waiting_bytes_max: int) -> None:
        self.pending_bytes = 0
        self.sent: deque[OpenAppend] = deque()
        self._waiting: deque[OpenAppend] | None = None  # made when a ledger is changed
        self._waiting_bytes = 0
        self._waiting_bytes_max = waiting_bytes_max
        self._overflowed = False
        self._name = name

    def __bool__(self) -> bool:
        return bool(self.sent) or bool(self._waiting)

    @property
    def any_waiting(self) -> bool:
        return bool(self._waiting)

    # -- coming in ----------------------------------------------------------------------------

    def wait(self, payloads: Sequence[Buffer], done: AppendDone, content: Content) -> None:
        """Keep an append for the next ledger; one alone fits, whatever its size. Once one does
        not fit, none is taken until those that wait are sent, so that none overtakes it."""
        size = sum(map(len, payloads))
        waiting = self._waiting_bytes
        if self._overflowed or (waiting > 0 and waiting + size > self._waiting_bytes_max):
            self._overflowed = True
            error = LogError(
                f"log {self._name} is changing ledgers and {waiting} bytes wait "
                "already; send again later"
            )
            self.refuse(done, error)
            return
        copies = [bytes(payload) for payload in payloads]
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(OpenAppend(done, copies, len(copies), size, content))
        self._waiting_bytes += size
        self.pending_bytes += size

    def refuse(self, done: AppendDone, error: MagnetarError) -> None:
        """Fail an append after all that came before it."""
        refused = OpenAppend(done, (), 0, 0, _NOTHING, error)
        if self._waiting:
            self._waiting.append(refused)
        elif self.sent:
            self.sent.append(refused)
        else:
            asyncio.get_running_loop().call_soon(done, error, ())

    def next_waiting(self) -> OpenAppend | None:
        """The next append to send to a new ledger; the caller puts it into ``sent``."""
        while self._waiting:
            item = self._waiting.popleft()
            if item.refusal is None:
                self._waiting_bytes -= item.size
                return item
            if self.sent:
                self.sent.append(item)
            else:
                self._fail(item, item.refusal)
        self._waiting = None  # a topic in use would keep an empty one, of 760 bytes, for ever
        self._overflowed = False
        return None

    # -- outcomes -----------------------------------------------------------------------------

    def confirm(self, ledger_id: int, first: int, count: int) -> None:
        """``count`` payloads of the oldest append, from id ``first`` on, are confirmed."""
        sent = self.sent
        item = sent[0]
        assert item.first == first, f"confirmed {first}, expected {item.first}"
        run = _new(Run, (ledger_id, first, count))
        if count == item.count and not item.runs:  # nearly always
            runs: tuple[Run, ...] = (run,)
        else:
            assert count <= item.count
            item.confirmed(run)
            if item.count > 0:
                return
            runs = item.runs
        sent.popleft()
        self.pending_bytes -= item.size
        item.done(None, runs)
        if sent and sent[0].refusal is not None:
            self._fail_refused()

    def _fail_refused(self) -> None:
        while self.sent and (error := self.sent[0].refusal) is not None:
            self._fail(self.sent.popleft(), error)

    def settle(self, ledger_id: int, last: int, payload_offset: int) -> None:
        """The ledger is closed at ``last``: what is sent up to there is confirmed, the rest is in
        no ledger and waits again, before all that waits."""
        self._fail_refused()
        while self.sent and self.sent[0].first <= last:
            item = self.sent[0]
            self.confirm(ledger_id, item.first, min(item.count, last - item.first + 1))
        for item in reversed(self.sent):
            if item.refusal is None:
                self._waiting_bytes += item.size
            messages, times_ms, stamp, _ = item.content
            item.content = Content(messages[-item.count :], times_ms[-item.count :], stamp)
            if item.entries:
                open_entries = item.entries[len(item.entries) - item.count :]
                item.payloads = [memoryview(entry)[payload_offset:] for entry in open_entries]
                item.entries = ()
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.appendleft(item)
        self.sent.clear()

    def fail_all(self, error: MagnetarError) -> None:
        """Fail everything open, in order."""
        items = [*self.sent, *(self._waiting or ())]
        self.sent.clear()
        self._waiting = None
        self._waiting_bytes = 0
        self._overflowed = False
        for item in items:
            self._fail(item, item.refusal or error)

    def _fail(self, item: OpenAppend, error: MagnetarError) -> None:
        self.pending_bytes -= item.size
        item.done(error, item.runs)
