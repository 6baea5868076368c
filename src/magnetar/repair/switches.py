"""What operators say to repair by way of the metadata store, and what it remembers there.

* ``disable``: while that node is there nothing is marked, and nothing is copied; what has begun to
  be copied stops at its next step.
* ``lostBookieRecoveryDelay``: how long, in seconds, a bookie may be away before it counts as lost.
  The first auditor writes the configured one; from then on what stands there counts for all.
  Writing it again, also unchanged, has the auditor look at once: that is how BookKeeper's shell
  triggers an audit.
* ``checkallledgersctime``: when all ledgers were checked last, so that a new auditor goes on.
* A delay or a time that cannot be read was not said: repair goes on, and whoever says it again has
  it written anew.
* ``/magnetar/leaving/BOOKIE`` (ours alone): the bookie is to be emptied. It takes no new entries,
  and counts as lost but for reading.
* ``/magnetar/read-only/BOOKIE`` (ours alone): the bookie takes no new entries, and stays what it
  is.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import MetadataFormatError, NodeExistsError, NoNodeError
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_cookie import GENERATIONS
from magnetar.wire.bookie.underreplication import (
    DIRECTORY,
    decode_checked,
    decode_delay,
    encode_checked,
    encode_delay,
)

log = structlog.get_logger(__name__)

LEAVING = "/magnetar/leaving"
READ_ONLY = "/magnetar/read-only"


class Switches:
    """Below ``root`` (of the ledgers). All methods may raise ``MetadataError``."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        base = f"{root}/{DIRECTORY}"
        self._disable = f"{base}/disable"
        self._delay = f"{base}/lostBookieRecoveryDelay"
        self._checked = f"{base}/checkallledgersctime"
        self._told = ""

    # -- on and off ---------------------------------------------------------------------------

    async def enabled(self) -> bool:
        try:
            await self._store.get(self._disable)
        except NoNodeError:
            return True
        return False

    async def disable(self) -> bool:
        """Returns whether it was enabled."""
        try:
            await self._store.create(self._disable, b"")
        except NodeExistsError:
            return False
        return True

    async def enable(self) -> bool:
        """Returns whether it was disabled."""
        try:
            await self._store.delete(self._disable)
        except NoNodeError:
            return False
        return True

    # -- the delay, and looking at once -------------------------------------------------------

    async def begin_delay(self, seconds: int) -> int:
        """The delay that counts: ``seconds`` if none was said yet."""
        try:
            await self._store.create(self._delay, encode_delay(seconds))
        except NodeExistsError:
            return await self.delay(seconds)
        return seconds

    async def delay(self, default: int) -> int:
        """In seconds."""
        try:
            return decode_delay((await self._store.get(self._delay)).value, self._delay)
        except NoNodeError:
            return default
        except MetadataFormatError as error:
            self._warn(error, "the configured delay counts")
            return default

    async def set_delay(self, seconds: int) -> None:
        """With it the auditor looks at once."""
        try:
            await self._store.put(self._delay, encode_delay(seconds), -1)
        except NoNodeError:
            await self.begin_delay(seconds)

    # -- being told ---------------------------------------------------------------------------
    # Each returns the function that ends the watch.

    def watch_enabled(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(self._disable, lambda _path: changed())

    def watch_delay(self, changed: Callable[[], None]) -> Callable[[], None]:
        """The delay was written, perhaps as it was."""
        return self._store.watch(self._delay, lambda _path: changed())

    def watch_leaving(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(LEAVING, lambda _path: changed())

    def watch_held(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(READ_ONLY, lambda _path: changed())

    def watch_checked(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._store.watch(self._checked, lambda _path: changed())

    # -- when all was checked last ------------------------------------------------------------

    async def checked_ms(self) -> int:
        """Since 1970; 0: never."""
        try:
            return decode_checked((await self._store.get(self._checked)).value, self._checked)
        except NoNodeError:
            return 0
        except MetadataFormatError as error:
            self._warn(error, "ledgers count as never checked")
            return 0

    async def set_checked(self, now_ms: int) -> None:
        value = encode_checked(now_ms)
        try:
            await self._store.put(self._checked, value, -1)
        except NoNodeError:
            try:
                await self._store.create(self._checked, value)
            except NodeExistsError:
                return  # another auditor's, of just now

    # -- bookies that are to be emptied, or to take nothing new ---------------------------------

    async def leaving(self) -> dict[BookieId, None]:
        return await self._names(LEAVING)

    async def leave(self, bookie_id: BookieId) -> None:
        """The bookie is to be emptied. Idempotent."""
        await self._note(LEAVING, bookie_id)

    async def stay(self, bookie_id: BookieId) -> None:
        """It is not to be emptied any more, or is empty. Idempotent."""
        await self._forget(LEAVING, bookie_id)

    async def forget_generation(self, bookie_id: BookieId) -> None:
        """Another that begins under its id is held against nothing. Idempotent."""
        await self._forget(GENERATIONS, bookie_id)

    async def held(self) -> dict[BookieId, None]:
        """Those that take no new entries because an operator has said so."""
        return await self._names(READ_ONLY)

    async def hold(self, bookie_id: BookieId) -> None:
        """The bookie is to take no new entries. Idempotent."""
        await self._note(READ_ONLY, bookie_id)

    async def let_go(self, bookie_id: BookieId) -> None:
        """It may take new entries again. Idempotent."""
        await self._forget(READ_ONLY, bookie_id)

    def _warn(self, error: MetadataFormatError, what: str) -> None:
        """Once: it is asked for with every ledger."""
        if str(error) != self._told:
            self._told = str(error)
            log.warning("what was said to repair cannot be read", error=self._told, so=what)

    async def _names(self, path: str) -> dict[BookieId, None]:
        try:
            names = await self._store.children(path)
        except NoNodeError:
            return {}
        return {BookieId(name): None for name in names}

    async def _note(self, path: str, bookie_id: BookieId) -> None:
        try:
            await self._store.create(f"{path}/{bookie_id}", b"")
        except NodeExistsError:
            return

    async def _forget(self, path: str, bookie_id: BookieId) -> None:
        try:
            await self._store.delete(f"{path}/{bookie_id}")
        except NoNodeError:
            return
