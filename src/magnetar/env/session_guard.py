"""Tells when the metadata session must be taken for lost: what rests on it, ephemeral nodes above
all, may be another's by then.

It is lost when the store says so (EXPIRED), or when it was out of sight (SUSPENDED) for a whole
session timeout: the store may have given it up, and cannot tell. It counts from the last request on
that it has heard, and so do we, not from when its silence was noticed: else two would act. The
timeout is the one that was asked for, or what the store grants if that is less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.env.metadata import MetadataStore, SessionState, SilenceCounted
from magnetar.env.network.silence import SILENT_SHARE


class SessionGuard:
    """``lost`` is called once, with the reason; never after ``close``."""

    def __init__(
        self, store: MetadataStore, session_timeout_ms: int, lost: Callable[[str], None]
    ) -> None:
        self._store = store
        self._timeout_s = session_timeout_ms / 1000
        self._lost = lost
        self._timer: asyncio.TimerHandle | None = None
        self._end_watch = store.watch_session(self._changed)

    def _changed(self, state: SessionState) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state is SessionState.EXPIRED:
            self._tell("the metadata session expired")
        elif state is SessionState.SUSPENDED:
            store, timeout_s, known_s = self._store, self._timeout_s, 0.0
            if isinstance(store, SilenceCounted):
                timeout_s = min(timeout_s, store.granted_s() or timeout_s)
                known_s = store.silent_s()
            why = f"the metadata store was out of reach for {timeout_s:g} s"
            # Silence is noticed within that share. Where a server grants a longer session than was
            # asked for, and is asked less often, the rest is left to connect again all the same.
            silent_s = min(known_s, timeout_s * SILENT_SHARE)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_s - silent_s, self._tell, why)

    def _tell(self, why: str) -> None:
        self.close()
        self._lost(why)

    def close(self) -> None:
        """Tell nothing from now on. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_watch()
