"""Who waits for a ledger's last add confirmed to move: the long polls of tailing readers.

``changed`` is called after adds, explicit LACs and fences; it costs one dict lookup when nobody
waits. What reaches the storage core past the server (a client in the same process) is not seen
here, so waits are short and the waiter looks again (``docs/adr/0022-long-polls-look-again.md``).
"""

from __future__ import annotations

import asyncio

RECHECK_S = 0.1
"""Longest wait before looking again."""


class LacWatch:
    """Waiters by ledger."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[asyncio.Future[bool]]] = {}

    def changed(self, ledger_id: int, fenced: bool = False) -> None:
        """The ledger's LAC may have moved, or it is fenced now: wake who waits for it."""
        if not self._waiting:
            return
        for waiter in self._waiting.pop(ledger_id, ()):
            if not waiter.done():
                waiter.set_result(fenced)

    async def wait(self, ledger_id: int, timeout_s: float) -> bool:
        """Until ``changed`` or ``timeout_s`` (at most ``RECHECK_S``); True if fenced."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, []).append(waiter)
        await asyncio.wait([waiter], timeout=min(timeout_s, RECHECK_S))
        if waiter.done():
            return waiter.result()
        self._forget(ledger_id, waiter)
        return False

    def _forget(self, ledger_id: int, waiter: asyncio.Future[bool]) -> None:
        waiters = self._waiting.get(ledger_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
        if not waiters:
            self._waiting.pop(ledger_id, None)
