"""What the connections of a process share: the buffer they read into, the memory that their
unfinished frames and what they have not read yet may take together, and how many of them there may
be (``descriptors.py``).

A connection holds no buffer of its own while it has nothing partial: reading and the handling of
what was read are one call of the event loop, so that one buffer serves all. What is left of a
frame, or of a chunk that has to wait, is kept by the connection (``framed.py``). Frames of up to
``SMALL_FRAME_BYTES`` are always taken; larger ones come out of one budget (``frame_budget.py``).
"""

from __future__ import annotations

import asyncio
import mmap
import sys
from typing import Final, Protocol

import structlog

from magnetar.env.loop_turns import LoopLine
from magnetar.env.network.frame_budget import FrameBudget
from magnetar.env.network.kept_buffers import KeptBuffers
from magnetar.env.network.refusals import Refusals
from magnetar.env.network.send_budget import SendBudget
from magnetar.env.network.turn_end import TurnEnd

log = structlog.get_logger(__name__)

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
SMALL_FRAME_BYTES: Final = 8 * 1024
"""Frames of up to this need no part of the budget, so that requests, receipts and heartbeats go on
when it is used up."""

SPARE_BYTES_MAX: Final = 16 << 20
"""Buffers of large frames that are kept for the next ones."""

PARTIAL_FRAME_BYTES_MAX: Final = 128 << 20
UNSENT_BYTES_MAX: Final = 256 << 20
PATIENCE_S: Final = 5.0
"""How long a large frame may be under way while others wait for its memory."""

SAY_AGAIN_S: Final = 30.0
REFUSED_SAY_AGAIN_S: Final = 10.0


class Receiver(Protocol):
    """What is known of a connection here."""

    def __hash__(self) -> int: ...

    def receive_granted(self) -> None:
        """It may hold what it asked for."""
        ...

    def receive_refused(self, why: str) -> None:
        """It must let go of its partial frame, and end."""
        ...


class Connections:
    """Given to every connection of a process by whoever accepts or makes it.

    ``partial_frame_bytes_max``: of all connections together, besides ``SMALL_FRAME_BYTES`` each.
    ``unsent_bytes_max``: of what their peers do not read (``send_budget.py``).
    ``connections_max``: how many there may be; those past it are closed as they come.
    """

    def __init__(
        self,
        partial_frame_bytes_max: int = PARTIAL_FRAME_BYTES_MAX,
        patience_s: float = PATIENCE_S,
        connections_max: int = sys.maxsize,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        self.view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        """Where to read. What is in it is of use until the call that hands it out returns."""
        self.turn_end = TurnEnd()
        """Where what was written is sent: sixty receipts to as many clients are one wake-up."""
        self.line = LoopLine()
        """For what takes several turns of the loop, of all connections."""
        self.refusals = Refusals()
        self.tight = False
        """A large frame has to wait; kept as an attribute for the path of every read."""
        self._budget: FrameBudget[Receiver] = FrameBudget(partial_frame_bytes_max, patience_s)
        self._spare: dict[int, list[memoryview]] = {}  # by size
        self._spare_bytes = 0
        self.kept_buffers = KeptBuffers()
        """For connections that ``keep_frames``."""
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None
        self._said_s = float("-inf")
        self._sending: SendBudget[Receiver] = SendBudget(unsent_bytes_max)
        self._unsent_said_s = float("-inf")
        self.turn_bytes = self._sending.turn_bytes
        """Unsent bytes after which a connection is given no more in this turn of the loop."""
        self.high_bytes = self._sending.high_bytes
        """Unsent bytes that make a connection slow, where that is less than its own mark."""
        self.connections_max = connections_max
        self.count = 0
        """Connections that are open now, and handshakes of TLS: each has a descriptor."""
        self._handshakes = 0
        self.refused = 0
        """Connections that were closed as they came, since the start."""
        self._refused_unsaid = 0
        self._refused_said_s = float("-inf")

    # -- how many -----------------------------------------------------------------------------

    def enter(self, peer: str, shaken: bool = False) -> bool:
        """A connection is made; False: there are too many, close it at once. One that has entered
        must ``leave``. ``shaken``: by a handshake, which has a place until it ends."""
        others = self.count - 1 if shaken and self._handshakes else self.count
        if others >= self.connections_max:
            self.say_refused(
                peer,
                f"{others} are open in this process, and the rest of its file descriptors is "
                "kept for storage; raise the limit on open files (ulimit -n, LimitNOFILE)",
            )
            return False
        self.count += 1
        return True

    def leave(self) -> None:
        self.count -= 1

    def begin_handshake(self, peer: str) -> bool:
        """As ``enter``, for what is no connection yet; ``end_handshake`` in place of ``leave``."""
        entered = self.enter(peer)
        self._handshakes += entered
        return entered

    def end_handshake(self) -> None:
        self._handshakes -= 1
        self.leave()

    def say_refused(self, peer: str, why: str) -> None:
        """A connection is closed as it comes, because of ``why``; one line now and then for many
        of them."""
        self.refused += 1
        self._refused_unsaid += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refused_said_s >= REFUSED_SAY_AGAIN_S:
            log.warning("connections refused", count=self._refused_unsaid, last=peer, reason=why)
            self._refused_said_s, self._refused_unsaid = now_s, 0

    # -- buffers ------------------------------------------------------------------------------

    def lend(self, byte_count: int) -> memoryview:
        """A buffer of that size, for ``take_back``. What was in it before is still there: memory
        that has just been used is faster than fresh, which has to be cleared."""
        spare = self._spare.get(byte_count)
        if spare:
            self._spare_bytes -= byte_count
            return spare.pop()
        # Mapped by itself, not from the heap: memory is taken as bytes arrive, and goes back to
        # the kernel with its frame, whatever lies beside it.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return memoryview(mmap.mmap(-1, byte_count, flags=flags))

    def take_back(self, buffer: memoryview) -> None:
        size = len(buffer)
        while self._spare and self._spare_bytes + size > SPARE_BYTES_MAX:
            self._drop_spare()
        if size <= SPARE_BYTES_MAX:
            self._spare.setdefault(size, []).append(buffer)
            self._spare_bytes += size

    def _drop_spare(self) -> None:
        """One of the size that was lent first; sizes that are not in use any more go so."""
        size, buffers = next(iter(self._spare.items()))
        if buffers:
            buffers.pop()
            self._spare_bytes -= size
        if not buffers:
            del self._spare[size]

    # -- what peers do not read ---------------------------------------------------------------

    @property
    def unread_bytes(self) -> int:
        """Held for slow readers."""
        return self._sending.held_bytes

    @property
    def unsent_bytes_max(self) -> int:
        return self._sending.bytes_max

    @property
    def unsent_left(self) -> bool:
        """There is memory for what more of them do not read."""
        return self._sending.left_bytes > 0

    @property
    def slow(self) -> int:
        """Connections whose peers do not keep up with reading."""
        return self._sending.slow

    def fell_behind(self, connection: Receiver, unsent_bytes: int) -> None:
        """``SendBudget.fell_behind``."""
        self._sending.fell_behind(connection, unsent_bytes)
        self._share_anew()
        now_s = asyncio.get_running_loop().time()
        if self._sending.left_bytes == 0 and now_s - self._unsent_said_s >= SAY_AGAIN_S:
            self._unsent_said_s = now_s
            log.warning(
                "memory for what clients do not read is used up; slow ones get little at a time",
                held_bytes=self._sending.held_bytes,
                slow=self._sending.slow,
                setting="connections.unsent_bytes_max",
            )

    def caught_up(self, connection: Receiver) -> None:
        """``SendBudget.caught_up``."""
        self._sending.caught_up(connection)
        self._share_anew()

    def _share_anew(self) -> None:
        self.turn_bytes, self.high_bytes = self._sending.turn_bytes, self._sending.high_bytes

    # -- the budget ---------------------------------------------------------------------------

    @property
    def partial_frame_bytes(self) -> int:
        """Held now, for large frames."""
        return self._budget.held_bytes

    @property
    def partial_frame_bytes_max(self) -> int:
        return self._budget.bytes_max

    @property
    def waiting(self) -> int:
        """Connections that are not read because the budget is used up."""
        return self._budget.waiting

    def claim(self, receiver: Receiver, arrived_bytes: int, wanted_bytes: int) -> bool:
        """``FrameBudget.ask``; what is refused is granted later through ``receive_granted``."""
        loop = asyncio.get_running_loop()
        granted = self._budget.ask(receiver, arrived_bytes, wanted_bytes, loop.time())
        self.tight = self._budget.tight
        if not granted:
            self._say_tight(loop.time())
            loop.call_soon(self._serve)  # not now: the caller has not kept its bytes yet
        return granted

    def release(self, receiver: Receiver) -> None:
        """It has no large partial frame any more. Idempotent."""
        self._budget.release(receiver)
        self.tight = self._budget.tight
        if self._budget.waiting:
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        for receiver in self._budget.serve(loop.time()):
            receiver.receive_granted()
        self.tight = self._budget.tight
        if self._budget.waiting and self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._refuse_overdue)

    def _refuse_overdue(self) -> None:
        self._timer = None
        for receiver in self._budget.overdue(asyncio.get_running_loop().time()):
            receiver.receive_refused(
                f"its frame was not finished within {self._patience_s:g} s while other connections "
                "waited for memory; raise connections.partial_frame_bytes_max, or send smaller "
                "messages"
            )
        self._serve()

    def _say_tight(self, now_s: float) -> None:
        if now_s - self._said_s < SAY_AGAIN_S:
            return
        self._said_s = now_s
        log.warning(
            "memory for unfinished frames is used up; connections with large ones wait",
            held_bytes=self._budget.held_bytes,
            bytes_max=self._budget.bytes_max,
            setting="connections.partial_frame_bytes_max",
        )
