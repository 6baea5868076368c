"""Connections that died, never finished their handshake, or stopped in the middle of a frame.

One task looks at every session a few times per deadline, so that a connection costs no timer. Of
many it looks at some in each turn of the loop: all at once, ten thousand held the loop up for 30
ms, every 2.5 s, and for 0.3 s where their memory had not been used for long.

A connection that was silent for ``keep_alive_ms`` gets a PING; one that is silent for as long again
is closed. A connection that is not read (a client that sends faster than it is stored, or does
not read itself) cannot be heard; it is closed if it takes no bytes for that long.

Why: docs/adr/0066-who-is-alive.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import structlog

from magnetar.config import BrokerConfig
from magnetar.wire.pulsar.commands import PING_FRAME

log = structlog.get_logger(__name__)

CHECK_S: Final = 5.0
"""How long a connection whose place is wanted has to show that it is alive."""

POLL_S: Final = 0.02

PORTION: Final = 250
"""Sessions that are looked at in one turn of the loop."""
REST: Final = 50
"""A rest is so many times as long as the looks before it, if these took more than a turn."""
NOT_LOOKED_AT: Final = 1 << 62
"""More than a connection has unsent."""


class Connection(Protocol):
    """What the broker knows of a connection, whoever it serves."""

    peer: str
    ready: bool
    """The handshake is done."""
    closed: bool
    writable: bool
    frames: int
    """Whole frames received."""

    @property
    def paused(self) -> int:
        """Not 0 while it is not read."""
        ...

    @property
    def partial_frame_bytes(self) -> int: ...

    @property
    def unsent_bytes(self) -> int: ...

    def write(self, part: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def _heard(connection: Connection) -> tuple[int, int]:
    """Changes with every byte that is received."""
    return connection.frames, connection.partial_frame_bytes


async def is_alive(session: Connection) -> bool:
    """Whether the peer says anything within ``CHECK_S``; it is asked to."""
    loop = asyncio.get_running_loop()
    heard, deadline = _heard(session), loop.time() + CHECK_S
    session.write(PING_FRAME)
    while not session.closed and loop.time() < deadline:
        if _heard(session) != heard or session.paused:
            return True
        await asyncio.sleep(POLL_S)
    return False


class Watch:
    """What the sweeper remembers of a session. Times are the loop's, in seconds."""

    __slots__ = ("begun", "frame_since", "frames", "heard", "pinged", "progress", "unsent")

    def __init__(self, now: float) -> None:
        self.begun = now
        self.heard = now
        self.pinged = False
        self.frames = -1
        self.progress = (-1, -1)
        self.frame_since = now
        self.unsent = NOT_LOOKED_AT


class Sweeper:
    """Looks after all sessions; ``run`` is its task."""

    def __init__(self, config: BrokerConfig, sessions: Mapping[Connection, None]) -> None:
        self._sessions = sessions
        self._handshake_s = config.handshake_timeout_ms / 1000
        self._frame_s = config.frame_timeout_ms / 1000
        self._silence_s = config.keep_alive_ms / 1000
        shortest = min(self._handshake_s, self._frame_s, self._silence_s)
        self._pause_s = max(0.01, min(shortest / 4, 5.0))
        self._watches: dict[Connection, Watch] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        rest_s = 0.0
        while True:
            await asyncio.sleep(max(self._pause_s, rest_s))
            begun_s = loop.time()
            sessions = list(self._sessions)
            for first in range(0, len(sessions), PORTION):
                if first:
                    await asyncio.sleep(0)
                self._look_at(sessions[first : first + PORTION], loop.time())
            self._forget()
            # Never so long that a peer that is gone is found much later than it may be.
            rest_s = min(REST * (loop.time() - begun_s), self._silence_s / 2)

    def sweep(self, now: float) -> None:
        """Look at every session once."""
        self._look_at(list(self._sessions), now)
        self._forget()

    def _look_at(self, sessions: Sequence[Connection], now: float) -> None:
        watches = self._watches
        for session in sessions:
            if session not in self._sessions:
                continue  # it has ended since
            watch = watches.get(session)
            if watch is None:
                watch = watches[session] = Watch(now)
            reason = self._verdict(session, watch, now)
            if reason:
                log.info("connection closed", peer=session.peer, reason=reason)
                session.abort()

    def _forget(self) -> None:
        """Those that have ended."""
        if len(self._watches) > len(self._sessions):
            self._watches = {s: w for s, w in self._watches.items() if s in self._sessions}

    def _verdict(self, session: Connection, watch: Watch, now: float) -> str:
        """Why ``session`` must go; empty if it may stay (it may have been sent a PING)."""
        if not session.ready and now - watch.begun > self._handshake_s:
            return "no CONNECT in time"
        self._listen(session, watch, now)
        if now - watch.frame_since > self._frame_s:
            return "a frame was begun and not finished in time"
        silence = now - watch.heard
        if silence > 2 * self._silence_s:
            return "silent for too long"
        if silence > self._silence_s and not watch.pinged and session.ready:
            watch.pinged = True
            session.write(PING_FRAME)
        return ""

    def _listen(self, session: Connection, watch: Watch, now: float) -> None:
        """Note what has been heard of the session since the last look. Bytes that it took count
        only while it is not read: the kernel takes some for a peer that is gone."""
        progress = frames, partial = _heard(session)
        paused = session.paused
        if paused:
            unsent = session.unsent_bytes
            alive = session.writable or unsent < watch.unsent
            watch.unsent = unsent
        else:
            alive = progress != watch.progress
            watch.unsent = NOT_LOOKED_AT
        if alive:
            watch.heard = now
            watch.pinged = False
        watch.progress = progress
        if frames != watch.frames or not partial or paused:
            watch.frames = frames
            watch.frame_since = now
