"""A connection of length-prefixed frames, in the shape that the hot path asks for.

Both Pulsar's and BookKeeper's protocols (and Kafka's) prefix each frame with a big-endian
``uint32`` length. This base class

* reads into one buffer of its own, and hands *all* whole frames of a received chunk to
  ``frames_received`` in one call. The views are valid during that call only; whoever keeps bytes
  copies them (once);
* collects what is written during a loop turn and writes it once, at the end of the turn;
* bounds a frame: a length past ``frame_bytes_max`` is a ``ProtocolError`` before a byte of it is
  buffered. The buffer grows for a large frame and shrinks back after it;
* turns a ``ProtocolError`` out of ``frames_received`` into ``protocol_failed`` and a close: bad
  bytes end their connection and nothing else.

Subclasses implement ``frames_received`` and may override the hooks below it. They are called on
the event loop only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import TypeAlias

import structlog

from magnetar.model.errors import MagnetarError, ProtocolError

log = structlog.get_logger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview

_unpack_size = struct.Struct(">I").unpack_from

LENGTH_BYTES = 4
"""Before each frame, its body's length."""

RECEIVE_BUFFER_BYTES = 256 * 1024
JOIN_BYTES_MAX = 64 * 1024
"""Outgoing parts below this size on average are joined (a short copy beats many iovecs)."""


class FramedConnection(asyncio.BufferedProtocol):
    """One side of a framed TCP connection; see the module's text for the rules."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray(RECEIVE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0  # first byte not handed out yet
        self._end = 0  # first free byte
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._loop = asyncio.get_running_loop()
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

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """Handle what can be handled of ``view[start:end]`` without the bounds of its frames;
        returns where that ends. For protocols with long runs of small frames of one size: finding
        bounds costs as much as decoding them. Raises as ``frames_received``."""
        return start

    def connected(self) -> None:
        """The connection is up; ``transport`` and ``peer`` are set."""

    def disconnected(self, error: Exception | None) -> None:
        """The connection is gone, whoever ended it. Called once."""

    def writable_changed(self) -> None:
        """``writable`` has changed: the peer reads too slowly, or has caught up."""

    def protocol_failed(self, error: ProtocolError) -> None:
        """The peer broke the protocol; a last frame may be written, then the connection closes."""

    # -- writing ------------------------------------------------------------------------------

    def write(self, part: Buffer) -> None:
        """Queue ``part``; everything queued in a loop turn leaves in one write at its end."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(part)
        self._out_bytes += len(part)

    def write_parts(self, parts: Sequence[Buffer], byte_count: int) -> None:
        """As ``write`` for several parts whose sizes add up to ``byte_count``."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
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
        return self._end - self._start

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
        elif byte_count // len(parts) < JOIN_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

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
        self.connected()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._out_bytes = 0
        self.disconnected(exc)

    def pause_writing(self) -> None:
        self.writable = False
        self.writable_changed()

    def resume_writing(self) -> None:
        self.writable = True
        self.writable_changed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            self._start = self.run_received(self._view, self._start, self._end)
            bounds = self._whole_frames()
            if bounds:
                self.frames_received(self._view, bounds)
        except ProtocolError as error:
            self._fail(error)
            return
        except MagnetarError:
            self.abort()
            raise
        self._make_room()

    def _whole_frames(self) -> list[tuple[int, int]]:
        """The bounds of every whole frame in the buffer; moves ``_start`` past them."""
        bounds = []
        view, start, end = self._view, self._start, self._end
        while end - start >= 4:
            (size,) = _unpack_size(view, start)
            if size > self._frame_bytes_max:
                raise ProtocolError(
                    f"frame of {size} bytes from {self.peer}; the largest allowed is "
                    f"{self._frame_bytes_max} (is the peer speaking another protocol?)"
                )
            stop = start + 4 + size
            if stop > end:
                break
            bounds.append((start + 4, stop))
            start = stop
        self._start = start
        return bounds

    def _make_room(self) -> None:
        """Move a partial frame to the front; grow for a large one, shrink back after it."""
        start, end = self._start, self._end
        left = end - start
        if left == 0:
            self._start = self._end = 0
            if len(self._buffer) > RECEIVE_BUFFER_BYTES * 4:
                self._replace_buffer(RECEIVE_BUFFER_BYTES, b"")
            return
        need = RECEIVE_BUFFER_BYTES
        if left >= 4:
            need = max(need, 4 + int.from_bytes(self._view[start : start + 4], "big"))
        if need > len(self._buffer):
            self._replace_buffer(need + RECEIVE_BUFFER_BYTES, self._view[start:end])
        elif start > 0 and (start >= left or len(self._buffer) - end < RECEIVE_BUFFER_BYTES // 4):
            self._view[:left] = self._view[start:end]  # the two may overlap
            self._start, self._end = 0, left

    def _replace_buffer(self, size: int, keep: Buffer) -> None:
        buffer = bytearray(size)
        buffer[: len(keep)] = keep
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, len(keep)

    def _fail(self, error: ProtocolError) -> None:
        log.warning("connection closed: protocol error", peer=self.peer, error=str(error))
        self.protocol_failed(error)
        self.close()

    def eof_received(self) -> bool:
        return False
