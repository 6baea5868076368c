"""A named list of ledgers: how a program finds the ledgers that make up its log.

Stored in the metadata store at ``/magnetar/lists/<name>`` as one ledger id per line, ascending.
Every change is a compare-and-set on the version that was read, so of two programs that both think
they are the owner one is refused.

The usual life of a list: recover the last ledger, create the next, add it, write; from time to
time drop ledgers from the front, and only then delete them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
)

ROOT = "/magnetar/lists"
MISSING = -1
"""The version of a list that was never written."""


class LedgerIds(NamedTuple):
    """The list as it was read; ``version`` goes with the next ``write``."""

    ledger_ids: tuple[int, ...]
    version: int


class LedgerList:
    """The list called ``name``. Made by ``LedgerClient.ledger_list``. Raises ``ValueError`` for a
    name with a ``/``, or none."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        if not name or "/" in name or name in (".", ".."):
            raise ValueError(f"a list of ledgers cannot be called {name!r}; use a name without /")
        self._store = store
        self.path = f"{ROOT}/{name}"

    async def read(self) -> LedgerIds:
        """Empty, with version ``MISSING``, if it was never written. Raises ``MetadataError``."""
        try:
            found = await self._store.get(self.path)
        except NoNodeError:
            return LedgerIds((), MISSING)
        try:
            ids = tuple(int(line) for line in found.value.decode("ascii").split())
        except ValueError as error:  # also what decoding raises
            raise MetadataFormatError(f"{self.path} holds no list of ledgers: {error}") from error
        return LedgerIds(ids, found.version)

    async def write(self, ledger_ids: Sequence[int], version: int) -> LedgerIds:
        """Replace what was read with ``version``. Raises ``BadVersionError`` when somebody else
        was faster: read again, and find out who owns the log now."""
        value = "".join(f"{ledger_id}\n" for ledger_id in ledger_ids).encode("ascii")
        if version != MISSING:
            return LedgerIds(tuple(ledger_ids), await self._store.put(self.path, value, version))
        try:
            await self._store.create(self.path, value)
        except NodeExistsError as error:
            raise BadVersionError(
                f"{self.path} was written by somebody else meanwhile; read it again"
            ) from error
        return LedgerIds(tuple(ledger_ids), 0)
