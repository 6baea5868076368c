"""A channel: one connection to a bookie, in one version of the protocol.

It connects when it is first used and again when it is used after a break; after a failed
attempt it fails at once until a bounded, doubling pause is over. What is sent before the
connection is up waits in the channel, bounded. When the connection breaks, everything unanswered
fails with ``BookieUnavailableError``. Time limits are swept coarsely, by one timer per channel that
runs only while something is unanswered; a channel on which a request expired and nothing at all
came in since is taken for dead and broken (``docs/adr/0023-silence-breaks-a-connection.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from magnetar.env.network.connections import Connections
from magnetar.env.network.framed import Buffer, FramedConnection
from magnetar.env.tasks import TaskScope
from magnetar.model.errors import BookieUnavailableError, MagnetarError, ProtocolError
from magnetar.model.ids import BookieId

Address: TypeAlias = tuple[str, int]
Resolve: TypeAlias = Callable[[BookieId], Awaitable[Address]]
"""Where a bookie listens: (host, port). Raises ``BookieUnavailableError`` if nobody knows."""


class Expired(NamedTuple):
    """A request whose time is over; ``fail`` tells whoever waits."""

    sent_at_s: float
    fail: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Times and bounds of a client's connections to one bookie.

    ``v3_only``: everything over version 3, for bookies that speak no version 2 or to match answers
    by transaction id throughout. ``lends_entries``: large entries of a batch read are views of the
    answer that they came in, all of which is held while one of them is: for who is done with them
    soon.
    """

    v3_only: bool = False
    lends_entries: bool = False
    add_timeout_s: float = 10.0
    read_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 5.0
    frame_bytes_max: int = 5 * (1 << 20) + (64 << 10)
    unsent_bytes_max: int = 64 << 20
    calls_max: int = 10_000


class _Wire(FramedConnection):
    """The frames of a channel."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel.options.frame_bytes_max, channel.connections)
        self._channel = channel
        self._failure: Exception | None = None
        if channel.options.lends_entries:
            self.keep_frames()

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        self._channel.received_at_s = self._loop.time()
        return self._channel.run_received(view, start, end)

    def frames_received(self, view: memoryview, bounds: Sequence[tuple[int, int]]) -> None:
        self._channel.frames_received(view, bounds, self.frames_stay)

    def protocol_failed(self, error: ProtocolError) -> None:
        self._failure = error

    def disconnected(self, error: Exception | None) -> None:
        self._channel.broken(self, self._failure or error)


class Channel:
    """What the versions share: connecting, sending, breaking, the sweep."""

    def __init__(
        self,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ConnectionOptions,
        connections: Connections,
        scope: TaskScope,
    ) -> None:
        self.bookie_id = bookie_id
        self.options = options
        self.connections = connections
        self.received_at_s = 0.0
        self.connection_count = 0
        """Connections made so far."""
        self._resolve = resolve
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._wire: _Wire | None = None
        self._connecting = False
        self._closed = False
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._backoff_s = 0.0
        self._retry_at_s = 0.0
        self._failure = ""
        self._sweep_timer: asyncio.TimerHandle | None = None

    # -- for the versions ---------------------------------------------------------------------

    def run_received(self, view: memoryview, start: int, end: int) -> int:
        """As ``FramedConnection.run_received``."""
        return start

    def frames_received(
        self, view: memoryview, bounds: Sequence[tuple[int, int]], stays: bool
    ) -> None:
        """``stays``: as ``FramedConnection.frames_stay``."""
        raise NotImplementedError

    def fail_pending(self, error: BookieUnavailableError) -> None:
        """Everything unanswered fails with ``error``."""
        raise NotImplementedError

    def expire(self, now_s: float) -> list[Expired]:
        """Take out what has expired."""
        raise NotImplementedError

    @property
    def has_pending(self) -> bool:
        raise NotImplementedError

    # -- sending ------------------------------------------------------------------------------

    def refusal(self, byte_count: int) -> BookieUnavailableError | None:
        """Why ``byte_count`` bytes cannot be sent now; None if they can."""
        wire, unsent = self._wire, self.unsent_bytes
        if self._closed:
            return self.unavailable("this client of it is closed")
        if unsent and unsent + byte_count > self.options.unsent_bytes_max:
            return self.too_slow(unsent)
        if wire is None and not self._connecting and self._loop.time() < self._retry_at_s:
            wait_ms = (self._retry_at_s - self._loop.time()) * 1000
            return self.unavailable(f"{self._failure}; next attempt in {wait_ms:.0f} ms")
        return None

    def send(self, parts: Sequence[Buffer], byte_count: int, *, now: bool = False) -> None:
        """Send at the end of this turn of the loop (``now``: this is its end), or queue until the
        connection is up. Requires that ``refusal`` gave None."""
        wire = self._wire
        if wire is not None:
            if now:
                wire.write_now(parts, byte_count)
            else:
                wire.write_parts(parts, byte_count)
        else:
            self._queue.extend(parts)
            self._queued_bytes += byte_count
            if not self._connecting:
                self._connecting = True
                self._scope.spawn(self._connect(), f"connect to {self.bookie_id}")
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._sweep_interval_s, self._sweep)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the connection, or in it."""
        return self._queued_bytes if self._wire is None else self._wire.unsent_bytes

    def too_slow(self, unsent_bytes: int) -> BookieUnavailableError:
        return self.unavailable(f"{unsent_bytes} bytes wait to be sent already; it is too slow")

    def unavailable(self, reason: str) -> BookieUnavailableError:
        return BookieUnavailableError(f"bookie {self.bookie_id}: {reason}")

    # -- the connection -----------------------------------------------------------------------

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                host, port = await self._resolve(self.bookie_id)
                _, wire = await self._loop.create_connection(lambda: _Wire(self), host, port)
        except (OSError, TimeoutError, UnicodeError, MagnetarError) as error:  # Unicode: no name
            self._connect_failed(error)
            return
        finally:
            self._connecting = False
        if self._closed:
            wire.abort()
            return
        self._wire = wire
        self.connection_count += 1
        self._backoff_s = 0.0
        self.received_at_s = 0.0  # nothing yet: what expires before anything comes in is silence
        queue, self._queue = self._queue, []
        byte_count, self._queued_bytes = self._queued_bytes, 0
        if queue:
            wire.write_parts(queue, byte_count)
        if wire.closed:
            self.broken(wire, None)

    def task_failed(self, error: BaseException) -> None:
        """A task of this connection's has ended by a defect: who waits for it must not wait on."""
        if self._wire is None and not self._closed:
            self._connect_failed(error)

    def _connect_failed(self, error: BaseException) -> None:
        options = self.options
        self._backoff_s = min(
            options.backoff_max_s, max(options.backoff_min_s, self._backoff_s * 2)
        )
        self._retry_at_s = self._loop.time() + self._backoff_s
        self._failure = f"cannot be connected to ({error or type(error).__name__})"
        self._drop(self._failure)

    def broken(self, wire: _Wire, error: Exception | None) -> None:
        """The connection is gone."""
        if self._wire is not wire:
            return  # it broke before it was taken into use, or the channel is closed
        self._wire = None
        self._drop(f"the connection broke ({error or 'closed by the bookie'})")

    def _drop(self, reason: str) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.fail_pending(self.unavailable(reason))

    def close(self) -> None:
        """Break the connection; everything unanswered fails. Idempotent."""
        self._closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        self._drop("this client of it was closed")

    # -- time ---------------------------------------------------------------------------------

    @property
    def _sweep_interval_s(self) -> float:
        least = min(self.options.add_timeout_s, self.options.read_timeout_s)
        return min(1.0, max(0.01, least / 8))

    def _sweep(self) -> None:
        self._sweep_timer = None
        now_s = self._loop.time()
        expired = self.expire(now_s)
        sent_at_s = min((each.sent_at_s for each in expired), default=None)
        silent: _Wire | None = None
        if sent_at_s is not None and self._wire is not None and self.received_at_s <= sent_at_s:
            silent, self._wire = self._wire, None  # first, lest a retry goes the same way
            silent.abort()
        for each in expired:
            each.fail()
        if silent is not None:
            self._drop("the connection was silent for too long")
        if self.has_pending and self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._loop.call_later(self._sweep_interval_s, self._sweep)
