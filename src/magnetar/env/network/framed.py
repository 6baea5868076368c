"""A connection of length-prefixed frames, in the shape that the hot path asks for.

Both Pulsar's and BookKeeper's protocols (and Kafka's) prefix each frame with a big-endian
``uint32`` length. This base class

* reads into the buffer that all connections share, and hands *all* whole frames of a received
  chunk to ``frames_received`` in one call. The views are valid during that call only; whoever
  keeps bytes copies them (once);
* keeps between reads what has arrived of a frame that is not whole yet, and nothing else: a
  connection without one holds no buffer (one that was stopped, see below, the rest of a chunk). A
  large frame gets a buffer of its own that grows with what has arrived, never with what was
  announced, and within the budget of all connections (``connections.py``); without room there,
  reading pauses until there is some. A connection whose large frames are what it has asked for
  may ``keep_frames``: whoever handles them keeps views instead of a copy;
* lets a subclass stop in the middle of a chunk (``stop_after``) when it has to pause, or has done
  enough for one turn of the loop (``give_way``): the frames
  after it are copied out of the shared buffer, at most one chunk of them, and come first when the
  connection goes on;
* collects what is written during a loop turn and writes it once, at the end of the turn;
* bounds a frame: a length past ``frame_bytes_max`` is a ``ProtocolError`` before more of it is
  kept;
* turns a ``ProtocolError`` out of ``frames_received`` into ``protocol_failed`` and a close: bad
  bytes end their connection and nothing else.

Subclasses implement ``frames_received`` and may override the hooks below it. They are called on
the event loop only.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import structlog

from magnetar.env.network.connections import SMALL_FRAME_BYTES, Connections
from magnetar.model.errors import MagnetarError, ProtocolError
from magnetar.speedups import find_frames

log = structlog.get_logger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview

_unpack_size = struct.Struct(">I").unpack_from

LENGTH_BYTES = 4
"""Before each frame, its body's length."""

JOIN_BYTES_MAX = 8 * 1024
"""Outgoing parts below this size on average are joined: a short copy beats many iovecs. By the
loop itself, over loopback, a write costs with parts of 8 KiB 311 us joined and 235 not of 1 MiB
(64 KiB: 216 and 173), and the same either way from 64 to 256 KiB; with parts of 512 bytes 115 and
158 of 256 KiB. What stands before them all is not counted: one large payload and its head are not
joined."""

TLS_HANDSHAKE: Final = 0x1603
"""How TLS begins (RFC 8446, 5.1: a record of a handshake, version 3.x). Read as a length it is some
370 MB, past any frame."""
CARRY_BYTES_MAX: Final = 128 * 1024
"""A partial frame of up to this is copied out of the shared buffer and back into it before the
next read, so that the frames after it come in with it; a larger one fills a buffer of its own."""

GROWTH: Final = 16
"""A frame's own buffer has room for this many times what has arrived, at most. Each growth copies
what is there: with 4, a stream of 4 MiB frames cost twice the time to receive. What peers can make
us hold for little is bounded by the budget that all of it comes out of."""

BUFFER_STEP_BYTES: Final = 64 * 1024
"""Sizes of such buffers are multiples of this, so that one serves the next frame too."""

WRITE_BYTES_HIGH: Final = 64 * 1024
WRITE_BYTES_LOW: Final = 16 * 1024
"""asyncio's own marks, for connections that set none."""

NO_ROOM: Final = 1
NO_TURN: Final = 2
FREE_REASON: Final = 4
"""Reasons for a pause (``pause``): two are this module's own, subclasses take bits from the third
on."""


def own_buffer_bytes(frame_bytes: int, arrived_bytes: int) -> int:
    """The size of a buffer for a frame of which so much has arrived: the whole frame's, rounded
    up, or what ``GROWTH`` allows, rounded down to one of few sizes."""
    whole = -(-frame_bytes // BUFFER_STEP_BYTES) * BUFFER_STEP_BYTES
    most = max(GROWTH * arrived_bytes, BUFFER_STEP_BYTES)
    return whole if whole <= most else 1 << most.bit_length() - 1


_start_of = itemgetter(0)


class _Rest(NamedTuple):
    """Of a chunk, what was not handled: whole frames, then a part of one."""

    view: memoryview
    bounds: Sequence[tuple[int, int]]
    partial_start: int


class FramedConnection(asyncio.BufferedProtocol):
    """One side of a framed TCP connection; see the module's text for the rules."""

    def __init__(self, frame_bytes_max: int, connections: Connections) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._connections = connections
        self._shared_view = connections.view
        self._partial: bytes = b""  # of a frame, to be copied to the front of the shared buffer
        self._own: memoryview | None = None  # a large frame's buffer, in place of ``_partial``
        self._keeps = False
        self._kept = 0  # bytes of a partial frame, in ``_partial`` or ``_own``
        self._claims = False  # some of the budget is ours
        self._wanted = 0  # what we wait to hold
        self._frames_left = 0  # of the frames just given, those that ``stop_after`` left
        self._rest: _Rest | None = None  # comes before all that is still to be read
        self._entered = False
        self.paused = 0
        """Why the connection is not read: bits of ``pause``; 0 while it is."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._high_bytes, self._low_bytes = WRITE_BYTES_HIGH, WRITE_BYTES_LOW
        self._loop = asyncio.get_running_loop()
        self._at_turn_end = connections.turn_end.call
        # Of most protocols ``run_received`` does nothing; a call less for every read.
        self._takes_runs = type(self).run_received is not FramedConnection.run_received
        self.transport: asyncio.Transport | None = None
        self.peer = "not connected"
        self.writable = True
        self.closed = False

    # -- for subclasses -----------------------------------------------------------------------

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        """Handle whole frames: ``view[start:end]`` is a frame's body without its length prefix.

        Raise ``ProtocolError`` to end the connection.
        """
        raise NotImplementedError

    def keep_frames(self) -> None:
        """Large frames get buffers as large as they say that they are, within the budget, and that
        are theirs for as long as somebody has a view of them (``frames_stay``)."""
        self._keeps = True

    @property
    def frames_stay(self) -> bool:
        """For ``frames_received``: whether its view stays valid for whoever keeps a part of it."""
        return self._keeps and self._own is not None

    def stop_after(self, bounds: Sequence[tuple[int, int]], end: int) -> int:
        """For ``frames_received``, once the connection is paused: those of its ``bounds`` that lie
        after ``end`` come again when it is not paused any more. Returns how many."""
        assert self.paused, "nothing would make it go on"
        self._frames_left = len(bounds) - bisect_right(bounds, end, key=_start_of)
        return self._frames_left

    def give_way(self) -> None:
        """For ``frames_received``, before ``stop_after``: what is left of the chunk is handled when
        others have had their turns, and those of other connections that wait for that. Little
        frames cost what they cost: 256 KiB of them half a second."""
        self.pause(NO_TURN)
        self._connections.line.call(partial(self.resume, NO_TURN))

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """Handle what can be handled of ``view[start:end]`` without the bounds of its frames;
        returns where that ends. For protocols with long runs of small frames of one size: finding
        bounds costs as much as decoding them. Raises as ``frames_received``."""
        return start

    def connected(self) -> None:
        """The connection is up; ``transport`` and ``peer`` are set. Not called, and
        ``disconnected`` neither, for one that is refused since there are too many."""

    def disconnected(self, error: Exception | None) -> None:
        """The connection is gone, whoever ended it. Called once."""

    def writable_changed(self) -> None:
        """``writable`` has changed: the peer reads too slowly, or has caught up."""

    def protocol_failed(self, error: ProtocolError) -> None:
        """The peer broke the protocol; a last frame may be written, then the connection closes."""

    def admitted(self, sessions: int, sessions_max: int, setting: str, closing: bool) -> bool:
        """For ``connected`` of a server's clients, of which it has ``sessions``: False for one past
        the bound that ``setting`` gives, which is logged, or of a server that is closing; the
        connection is ended then."""
        if not closing and sessions < sessions_max:
            return True
        if not closing:
            self._connections.say_refused(self.peer, f"{setting} is {sessions_max}")
        self.abort()
        return False

    # -- writing ------------------------------------------------------------------------------

    def write(self, part: Buffer) -> None:
        """Queue ``part``; everything queued in a loop turn leaves in one write at its end."""
        if self.closed:
            return
        if not self._out:
            self._at_turn_end(self._flush)
        self._out.append(part)
        self._out_bytes += len(part)

    def write_parts(self, parts: Sequence[Buffer], byte_count: int) -> None:
        """As ``write`` for several parts whose sizes add up to ``byte_count``."""
        if self.closed:
            return
        if not self._out:
            self._at_turn_end(self._flush)
        self._out.extend(parts)
        self._out_bytes += byte_count

    def write_now(self, parts: Sequence[Buffer], byte_count: int) -> None:
        """As ``write_parts``, for a caller that has collected a turn already: whatever is queued
        leaves in one write, now."""
        if self.closed:
            return
        self._out.extend(parts)
        self._out_bytes += byte_count
        self._flush()

    @property
    def partial_frame_bytes(self) -> int:
        """Bytes received of a frame that is not whole yet."""
        return self._kept

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued here and in the transport."""
        transport = self.transport
        return self._out_bytes + (transport.get_write_buffer_size() if transport else 0)

    def _flush(self) -> None:
        parts = self._out
        if not parts or self.transport is None:
            return
        self._out = []
        byte_count, self._out_bytes = self._out_bytes, 0
        if self.closed:
            return
        if len(parts) == 1:
            self.transport.write(parts[0])
        elif byte_count < JOIN_BYTES_MAX * (len(parts) - 1):
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)
        if self._connections.high_bytes < self._high_bytes and self.writable:
            self._mind_others()

    def set_write_limits(self, high: int, low: int) -> None:
        """With more unsent bytes than ``high`` the connection is not ``writable`` until it is at
        ``low``; sooner when much is held for slow readers already. Requires a transport."""
        assert self.transport is not None
        self._high_bytes, self._low_bytes = high, low
        self.transport.set_write_buffer_limits(high=high, low=low)

    def _mind_others(self) -> None:
        """Take the mark that is left to each, if there is more than that to send."""
        high = self._connections.high_bytes
        assert self.transport is not None
        if self.transport.get_write_buffer_size() > high:
            self.transport.set_write_buffer_limits(high=high, low=high // 4)  # calls pause_writing

    def close(self) -> None:
        """Write what is queued, then close. Idempotent."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, dropping what is queued. Idempotent."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self.transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        by_tls = transport.get_extra_info("sslcontext") is not None
        self._entered = self._connections.enter(self.peer, by_tls)
        if self._entered:
            self.connected()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._out_bytes = 0
        self._connections.caught_up(self)
        self._forget_partial()
        self._rest = None
        if self._entered:
            self._connections.leave()
            self.disconnected(exc)

    def pause_writing(self) -> None:
        self.writable = False
        self._connections.fell_behind(self, self.unsent_bytes)
        self.writable_changed()

    def resume_writing(self) -> None:
        self.writable = True
        self._connections.caught_up(self)
        if self.transport is not None and not self.closed:
            self.transport.set_write_buffer_limits(high=self._high_bytes, low=self._low_bytes)
        self.writable_changed()

    def get_buffer(self, sizehint: int) -> memoryview:
        kept = self._kept
        if self._own is not None:
            return self._own[kept:]
        view = self._shared_view
        if self._connections.tight:  # what is read must be kept: take little of a large frame
            view[:kept] = self._partial
            return view[kept : kept + SMALL_FRAME_BYTES]
        if kept:
            view[:kept] = self._partial
            return view[kept:]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        view = self._shared_view if self._own is None else self._own
        end = self._kept + nbytes
        start = 0
        try:
            if self._takes_runs:
                start = self.run_received(view, 0, end)
            bounds: list[tuple[int, int]] = []
            if end - start >= LENGTH_BYTES:
                bounds, start = find_frames(view, start, end, self._frame_bytes_max)
                if end - start >= LENGTH_BYTES:
                    self._check_size(_unpack_size(view, start)[0])
            if bounds:
                self.frames_received(view, bounds)
        except MagnetarError as error:
            self._fail(error)
            return
        if self._frames_left:
            self._keep_frames(view, bounds, start, end)
        else:
            self._keep_partial(view, start, end, nbytes)

    def _keep_partial(self, view: memoryview, start: int, end: int, nbytes: int) -> None:
        """All frames before ``start`` are handled; ``nbytes`` have just come."""
        left = end - start
        if left <= SMALL_FRAME_BYTES and not self._claims and not self._connections.tight:
            self._partial = bytes(view[start:end]) if left else b""
            self._kept = left
        else:
            self._keep(view, start, end, nbytes)

    def _check_size(self, size: int) -> None:
        """Of a frame that is not whole."""
        if size > self._frame_bytes_max:
            if size >> 16 == TLS_HANDSHAKE:
                raise ProtocolError(
                    f"{self.peer} begins with TLS, which is not served here: connect by an address "
                    "without it (pulsar://, not pulsar+ssl://)"
                )
            raise ProtocolError(
                f"frame of {size} bytes from {self.peer}; the largest allowed is "
                f"{self._frame_bytes_max} (is the peer speaking another protocol?)"
            )

    # -- frames that wait ---------------------------------------------------------------------

    def _keep_frames(
        self, view: memoryview, bounds: Sequence[tuple[int, int]], start: int, end: int
    ) -> None:
        """Out of the shared buffer with the last of ``bounds`` and what follows them."""
        bounds = bounds[-self._frames_left :]
        self._frames_left = 0
        first = bounds[0][0] - LENGTH_BYTES
        bounds = [(begin - first, stop - first) for begin, stop in bounds]
        self._rest = _Rest(memoryview(bytes(view[first:end])), bounds, start - first)
        self._forget_partial()  # it is among the rest, or was the first of what is handled

    def _go_on(self) -> None:
        """Nothing pauses the connection: handle the rest of its last chunk, then read."""
        rest = self._rest
        if rest is None or self.paused or self.closed:
            return
        view, bounds, start = rest
        try:
            self.frames_received(view, bounds)
        except ProtocolError as error:
            self._fail(error)
            return
        except Exception:
            self.abort()  # as the transport does when ``buffer_updated`` raises; it is not there
            raise
        if self._frames_left:
            self._rest = rest._replace(bounds=bounds[-self._frames_left :])
            self._frames_left = 0
            return
        self._keep_partial(view, start, len(view), len(view) - start)
        self._rest = None  # not sooner: ``pause`` must know that the transport is not reading
        if not self.paused and not self.closed and self.transport is not None:
            self.transport.resume_reading()

    # -- partial frames -----------------------------------------------------------------------

    def _keep(self, view: memoryview, start: int, end: int, nbytes: int) -> None:
        """Keep ``view[start:end]``, part of a frame that is large, or may have to wait."""
        left = end - start
        size = LENGTH_BYTES + _unpack_size(view, start)[0] if left >= LENGTH_BYTES else 0
        connections = self._connections
        if size <= SMALL_FRAME_BYTES or (left <= SMALL_FRAME_BYTES and not connections.tight):
            self._carry(view, start, end)
            if self._claims:
                self._claims = False
                connections.release(self)
            return
        if self._own is not None and start == 0 and end < len(self._own):
            self._kept = end
            return
        # Carried only if as much has just come: else a peer that sends little at a time would
        # have us copy much each time.
        carry = left <= min(nbytes, CARRY_BYTES_MAX) and not connections.tight
        wanted = left if carry else own_buffer_bytes(size, size if self._keeps else left)
        self._claims = True
        if connections.claim(self, left, wanted):
            self._take(view, start, end, wanted)
            return
        self._wanted = wanted
        if self._own is None or start:
            self._carry(view, start, end)
        else:
            self._kept = end
        self.pause(NO_ROOM)

    def _carry(self, view: memoryview, start: int, end: int) -> None:
        self._partial = bytes(view[start:end])
        self._kept = end - start
        self._give_back()

    def _take(self, view: memoryview, start: int, end: int, wanted: int) -> None:
        """Hold ``wanted`` bytes, the first of which are ``view[start:end]``."""
        if wanted == end - start:
            self._carry(view, start, end)
            return
        connections = self._connections
        own = connections.kept_buffers.lend(wanted) if self._keeps else connections.lend(wanted)
        own[: end - start] = view[start:end]
        self._give_back()
        self._own, self._kept, self._partial = own, end - start, b""

    def _give_back(self) -> None:
        own, self._own = self._own, None
        if own is not None and not self._keeps:
            self._connections.take_back(own)

    def _forget_partial(self) -> None:
        self._partial, self._kept = b"", 0
        self._give_back()
        if self._claims:
            self._claims = False
            self._connections.release(self)

    def receive_granted(self) -> None:
        """There is room for what ``claim`` did not give; called by ``connections``."""
        if self.closed or not self._claims:
            return
        held = memoryview(self._partial) if self._own is None else self._own
        self._take(held, 0, self._kept, self._wanted)
        self.resume(NO_ROOM)

    def receive_refused(self, why: str) -> None:
        """This partial frame must go, and the connection with it; called by ``connections``."""
        log.warning("connection closed", peer=self.peer, reason=why)
        self._forget_partial()
        self.abort()

    # -- pauses -------------------------------------------------------------------------------

    def pause(self, reason: int) -> None:
        """Do not read until every reason (a bit) has been taken back. Idempotent."""
        reads = not self.paused and self._rest is None
        if reads and self.transport is not None and not self.closed:
            self.transport.pause_reading()
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Take a reason back. Idempotent."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        if self.paused or self.transport is None or self.closed:
            return
        if self._rest is None:
            self.transport.resume_reading()
        else:  # not now: the caller is in the middle of something
            self._loop.call_soon(self._go_on)

    def _fail(self, error: MagnetarError) -> None:
        """End the connection. Raises what is a fault of ours."""
        if not isinstance(error, ProtocolError):
            self.abort()
            raise error
        event = "connection closed: protocol error"
        self._connections.refusals.say(event, self.peer, warn=True, error=str(error))
        self.protocol_failed(error)
        self.close()

    def eof_received(self) -> bool:
        return False
