"""An exclusive claim on a name in the metadata store: one holder, as long as its session lives.

The claim is an ephemeral node. Rules:

* A claim left by a crash goes with its session; whoever comes waits that long.
* With the session (``session_guard``) the claim is lost: the store may have given the name to
  another already. ``lost`` is called then, once, and the holder must stop acting. What becomes of
  the session while the claim's making is answered counts too.
* Giving it up removes our own node only: a session may have ended unheard, and another's node may
  stand there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.env.node_changes import NodeChanges
from magnetar.env.session_guard import SessionGuard
from magnetar.model.errors import MetadataError, NodeExistsError, NoNodeError, StartError

log = structlog.get_logger(__name__)

_MARGIN_S = 2.0
"""A store drops dead sessions at its own ticks, so somewhat later than the timeout."""


class ExclusiveClaim:
    """The claim of this process on ``path``; ``about`` tells others who holds it."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        about: str,
        session_timeout_ms: int,
        lost: Callable[[str], None],
    ) -> None:
        self._store = store
        self._path = path
        self._about = about
        self._timeout_ms = session_timeout_ms
        self._lost = lost
        self._guard: SessionGuard | None = None  # of the session that made the claim, or may have
        self._held = False
        self._why_lost = ""  # while it was being taken

    async def acquire(self, what: str) -> None:
        """Take the claim, waiting a session timeout (and a little) for one that a crash left.

        ``what`` names it for people. Raises ``StartError`` that says who holds it.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000 + _MARGIN_S
        with NodeChanges(self._store, self._path) as changes:
            while not await self._try():
                await self._wait(changes, deadline, what)
        self._held = True
        if self._why_lost:
            self._session_lost(self._why_lost)

    async def _try(self) -> bool:
        self._why_lost = ""
        guard = SessionGuard(self._store, self._timeout_ms, self._session_lost)
        try:
            await self._store.create(self._path, self._about.encode(), CreateMode.EPHEMERAL)
        except NodeExistsError:
            guard.close()
            return False
        except BaseException:
            guard.close()
            raise
        self._guard = guard
        return True

    async def _wait(self, changes: NodeChanges, deadline: float, what: str) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        holder = await self._holder()
        if left_s <= 0:
            raise StartError(
                f"{what} is held by {holder}; stop that one first, or use another cluster name "
                "or metadata root"
            )
        log.info(
            "waiting for the holder to go", claim=what, holder=holder, seconds=round(left_s, 1)
        )
        await changes.wait(left_s)  # one more look decides

    async def _holder(self) -> str:
        try:
            return (await self._store.get(self._path)).value.decode("utf-8", "replace")
        except NoNodeError:
            return "nobody any more"

    def _session_lost(self, why: str) -> None:
        self._why_lost = why
        if self._held:
            self._held = False
            self._lost(why)

    async def release(self) -> None:
        """Give the claim up, if it is still ours. Idempotent."""
        if self._guard is None or not self._held:
            return
        self._held = False
        self._guard.close()
        try:
            if (await self._store.get(self._path)).value == self._about.encode():
                await self._store.delete(self._path)
        except MetadataError as error:  # then it goes with the session
            log.warning("the claim could not be given up", path=self._path, error=str(error))
