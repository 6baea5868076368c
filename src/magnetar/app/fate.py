"""How a running role ends: it is told to, or one of its parts must not go on."""

from __future__ import annotations

import asyncio

import structlog

from magnetar.model.errors import MagnetarError, SessionExpiredError

log = structlog.get_logger(__name__)


class Fate:
    """``stopped`` is set from outside (a signal)."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped
        self._error: MagnetarError | None = None

    def fail(self, error: MagnetarError) -> None:
        """A part must not go on, so the role must not either. The first error counts."""
        log.error("a part cannot go on; ending", error=str(error))
        self._error = self._error or error
        self._stopped.set()

    @property
    def decided(self) -> bool:
        """It is ending."""
        return self._stopped.is_set()

    @property
    def membership_lost(self) -> bool:
        """It is ending since others may have all that it had: its metadata session is over."""
        return isinstance(self._error, SessionExpiredError)

    async def wait(self) -> None:
        """Until the role must end. Raises what a part has failed with."""
        await self._stopped.wait()
        if self._error is not None:
            raise self._error
