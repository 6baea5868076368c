"""``BookieRegistration``: a bookie's ephemeral node in the metadata store.

``available/<id>`` while it takes entries, ``available/readonly/<id>`` while it only serves reads;
changing sides creates the new node before it removes the old one, so the bookie is never out of
sight. The node's value carries a token of this process (a property that BookKeeper's clients
ignore), so a node that is there already is known for ours or for another's.

A node of another session: it is our own from before a crash, or somebody runs under our id. The
first goes within a session timeout, so that long is waited; then ``BookieRegisteredError``.

When the session expires the bookie registers again on the next one. If another process has taken
the id meanwhile, ``on_lost`` is called: this one must stop serving.

Source: BookKeeper's ``ZKRegistrationManager``.

Why: docs/adr/0017-session-loss.md.
Why: docs/adr/0035-registrations-carry-a-token.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import structlog

from magnetar.env.metadata import CreateMode, MetadataStore, SessionState
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.model.errors import (
    BookieRegisteredError,
    MagnetarError,
    MetadataError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_service import (
    PROCESS_PROPERTY,
    BookieServiceInfo,
    decode_service_info,
    encode_service_info,
)

log = structlog.get_logger(__name__)

Properties: TypeAlias = tuple[tuple[str, str], ...]

_RETRY_S = 1.0
_MARGIN_S = 1.0  # the server expires sessions in ticks


class BookieRegistration:
    """One bookie's registration; ``register`` once, then ``set_read_only`` at will, ``close``."""

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        info: BookieServiceInfo,
        *,
        root: str = "/ledgers",
        session_timeout_ms: int = 10_000,
        on_lost: Callable[[MagnetarError], None] | None = None,
        token: str = "",
    ) -> None:
        """``session_timeout_ms``: how long a foreign session's node is waited for. ``token``
        names this process; random unless given."""
        self._store = store
        self._bookie_id = bookie_id
        self._token = (PROCESS_PROPERTY, token or secrets.token_hex(8))
        self._info = replace(info, properties=(*info.properties, self._token))
        self._why: Properties = ()
        self._writable_path = f"{root}/available/{bookie_id}"
        self._read_only_path = f"{root}/available/readonly/{bookie_id}"
        self._wait_s = session_timeout_ms / 1000 + _MARGIN_S
        self._on_lost = on_lost
        self._scope = TaskScope(f"registration {bookie_id}", fails(self._task_failed))
        self._turn = asyncio.Lock()
        self._wanted: bool | None = None  # read-only or not; None until registered
        self._expired = False
        self._stale = False  # the nodes may not be as wanted: a repair is due or under way
        self._repairing = False
        self._end_watch = store.watch_session(self._session_changed)

    async def register(self, read_only: bool = False, why: Properties = ()) -> None:
        """Make the bookie known; ``why``: properties that tell why it is read-only. Raises
        ``BookieRegisteredError``, ``MetadataError``."""
        async with self._turn:
            self._why = why
            self._wanted = read_only  # before, so that a session that expires meanwhile repairs
            try:
                await self._publish(read_only)
            except BaseException:
                self._wanted = None
                raise
        log.info("bookie registered", bookie=self._bookie_id, read_only=read_only)

    async def set_read_only(self, read_only: bool, why: Properties = ()) -> None:
        """Change sides; ``why`` as in ``register``, and of the moment of the change. If that cannot
        be done now it is tried again: when the store can be reached, and once more if another
        process is in the way, which may be giving up."""
        async with self._turn:
            if self._wanted == read_only:
                return
            self._wanted, self._why = read_only, why
            try:
                await self._publish(read_only)
            except (MetadataError, BookieRegisteredError) as error:
                log.warning("bookie not moved yet", bookie=self._bookie_id, error=str(error))
                self._repair()

    async def close(self) -> None:
        """Withdraw the bookie. Idempotent."""
        self._end_watch()
        await self._scope.close()
        async with self._turn:
            if self._wanted is None:
                return
            self._wanted = None
            for path in (self._writable_path, self._read_only_path):
                try:
                    await self._withdraw(path, wait=False)
                except MetadataError as error:
                    log.debug("bookie not withdrawn", path=path, error=str(error))

    # -- the nodes ----------------------------------------------------------------------------

    async def _publish(self, read_only: bool) -> None:
        paths = (self._writable_path, self._read_only_path)
        await self._claim(paths[read_only])
        await self._withdraw(paths[not read_only], wait=True)

    async def _claim(self, path: str) -> None:
        """Own the node at ``path``."""
        deadline_s = asyncio.get_running_loop().time() + self._wait_s
        while True:
            try:
                await self._store.create(path, self._value(path), CreateMode.EPHEMERAL)
                return
            except NodeExistsError:
                if await self._is_ours(path):
                    return
            await self._wait_gone(path, deadline_s)

    def _value(self, path: str) -> bytes:
        info = self._info
        if path == self._read_only_path:
            info = replace(info, properties=(*info.properties, *self._why))
        return encode_service_info(info)

    async def _withdraw(self, path: str, wait: bool) -> None:
        """Remove our node at ``path``; with ``wait``, wait for another's to go."""
        deadline_s = asyncio.get_running_loop().time() + self._wait_s
        while True:
            ours = await self._is_ours(path)
            if ours is None:
                return
            if ours:
                try:
                    await self._store.delete(path)
                except NoNodeError:
                    return
                return
            if not wait:
                return
            await self._wait_gone(path, deadline_s)

    async def _is_ours(self, path: str) -> bool | None:
        """None: there is no such node. What else it says may be of an earlier moment."""
        try:
            value = (await self._store.get(path)).value
            return self._token in decode_service_info(self._bookie_id, value).properties
        except NoNodeError:
            return None
        except MetadataFormatError:
            return False

    async def _wait_gone(self, path: str, deadline_s: float) -> None:
        """Return when another's node changes or goes. Raises ``BookieRegisteredError``."""
        changed = asyncio.Event()
        end = self._store.watch(path, lambda _path: changed.set())
        try:
            if await self._is_ours(path) is not False:
                return
            log.info("waiting for another session's registration to go", path=path)
            async with asyncio.timeout_at(deadline_s):
                await changed.wait()
        except TimeoutError as error:
            raise BookieRegisteredError(
                f"bookie {self._bookie_id} cannot register: another process holds {path} and is "
                f"alive (waited {self._wait_s:g} s); stop that process, or give this bookie an id "
                f"and directories of its own"
            ) from error
        finally:
            end()

    # -- after an expired session -------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._expired = True
        elif state is SessionState.CONNECTED and self._expired:
            self._expired = False
            self._repair()

    def _repair(self) -> None:
        self._stale = True
        if not self._repairing and self._wanted is not None:
            self._repairing = True
            self._scope.spawn(self._register_again(), "register again")

    def _task_failed(self, task: str, error: BaseException) -> None:
        """The bookie would serve on without anybody seeing it."""
        if self._on_lost is not None:
            self._on_lost(defect(task, error))

    async def _register_again(self) -> None:
        """Until it succeeds: the bookie serves all the while, and nobody can see it."""
        try:
            while self._stale:
                self._stale = False  # a session that expires from here on makes another round
                if not await self._try_again():
                    self._stale = True
                    await asyncio.sleep(_RETRY_S)
        except BookieRegisteredError as error:
            log.error("bookie's id was taken", bookie=self._bookie_id, error=str(error))
            if self._on_lost is not None:
                self._on_lost(error)
        finally:
            self._repairing = False

    async def _try_again(self) -> bool:
        try:
            async with self._turn:
                if self._wanted is not None:
                    await self._publish(self._wanted)
        except MetadataError as error:
            log.warning("bookie not registered", bookie=self._bookie_id, error=str(error))
            return False
        log.info("bookie registered again", bookie=self._bookie_id)
        return True
