"""New ledger ids out of the metadata store's sequential nodes, as BookKeeper gives them.

An id is the counter of an ephemeral sequential node ``idgen/ID-``; the node is removed once it is
read. When 31 bits are used up, ids go on in ``idgen-long``: ``HOB-<high>/ID-<low>``, id =
``high << 32 | low``. The flat layout counts in the root itself.

Ids are taken one at a time and never reserved ahead: the ledgers of one log must have growing
ids, whichever broker made them, and a reserve in one broker's memory would break that. What makes
them cheap is that spent nodes are removed together with the next request, in one group commit or
one round trip (docs/adr/0032-ledger-ids-are-not-reserved.md).
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.env.metadata import CreateMode, MetadataStore
from magnetar.model.errors import LedgerError, MetadataError, NoNodeError
from magnetar.wire.bookie.metadata_layout import SHORT_ID_END, LedgerLayout

log = structlog.get_logger(__name__)

_SHORT_PREFIX = {
    LedgerLayout.HIERARCHICAL: "idgen/ID-",
    LedgerLayout.LONG_HIERARCHICAL: "idgen/ID-",
    LedgerLayout.LEGACY_HIERARCHICAL: "idgen/ID-",
    LedgerLayout.FLAT: "ID-",
}
_LONG_LAYOUTS = (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL)
_LONG_ROOT = "idgen-long"
_HIGH_PREFIX = "HOB-"


class LedgerIdGenerator:
    """Ids for one root; ``layout`` decides where the counters lie."""

    def __init__(self, store: MetadataStore, root: str, layout: LedgerLayout) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._high: int | None = None  # the high half in use; 0: still short ids
        self._spent: list[str] = []  # nodes whose id is taken; at most one per caller under way

    async def next_id(self) -> int:
        """A ledger id that nobody had before. Raises ``MetadataError``."""
        if self._high is None:
            self._high = await self._highest()
        if self._high == 0:
            counter = await self._count(f"{self._root}/{_SHORT_PREFIX[self._layout]}")
            if 0 <= counter < SHORT_ID_END:
                return counter
            if self._layout not in _LONG_LAYOUTS:
                raise LedgerError(
                    f"the ledger ids of {self._root} are used up ({SHORT_ID_END}); its layout "
                    f"{self._layout.value} has no longer ones, use another root"
                )
            self._high = max(1, await self._highest())
        return await self._next_long_id(self._high)

    async def _next_long_id(self, high: int) -> int:
        """An id at ``high`` or above; each half holds 2**31 - 1, so two steps are plenty."""
        for step in range(3):
            prefix = f"{self._root}/{_LONG_ROOT}/{_HIGH_PREFIX}{high + step:010d}/ID-"
            low = await self._count(prefix)
            if 0 <= low < SHORT_ID_END:
                self._high = high + step
                return (high + step) << 32 | low
        raise LedgerError(
            f"the counters under {self._root}/{_LONG_ROOT} are used up at {high}; somebody has "
            f"written there, look for foreign nodes"
        )

    async def _highest(self) -> int:
        """The highest half in use, 0 while ids are short."""
        if self._layout not in _LONG_LAYOUTS:
            return 0
        try:
            names = await self._store.children(f"{self._root}/{_LONG_ROOT}")
        except NoNodeError:
            return 0
        halves = [name.removeprefix(_HIGH_PREFIX) for name in names]
        return max([1, *(int(half) for half in halves if half.isascii() and half.isdigit())])

    async def _count(self, prefix: str) -> int:
        """One tick of a counter; negative when a 32-bit counter has wrapped."""
        created, retired = await asyncio.gather(
            self._store.create(prefix, b"", CreateMode.EPHEMERAL_SEQUENTIAL),
            self.retire(),
            return_exceptions=True,
        )
        for outcome in (created, retired):
            if isinstance(outcome, BaseException):
                raise outcome
        assert isinstance(created, str)
        self._spent.append(created)
        return int(created[len(prefix) :])

    async def retire(self) -> None:
        """Remove the spent nodes. One that stays behind does no harm: it is ephemeral."""
        spent, self._spent = self._spent, []
        outcomes = await asyncio.gather(
            *(self._store.delete(path) for path in spent), return_exceptions=True
        )
        for path, outcome in zip(spent, outcomes, strict=True):
            if isinstance(outcome, MetadataError):
                log.debug("id node not removed", path=path, error=str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
