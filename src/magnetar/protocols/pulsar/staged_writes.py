"""What a broker does for writers of staged ledgers that no metadata store is in reach of.

STAGED_WRITE is a command of our own (docs/formats/pulsar-protocol.md); CONNECTED says whether it is
served. Who may connect may ask it, as who may connect may publish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.env.metadata import Versioned
from magnetar.model.ledger import LedgerMetadata, Quorums
from magnetar.model.registered_bookie import RegisteredBookie


class StagedWrites(Protocol):
    """Implemented by ``staging.handing_out.HandingOut``, which says what each raises."""

    record_written: Callable[[str, bytes], None] | None

    async def read_record(self, query: str) -> Versioned: ...

    async def create_record(self, query: str, value: bytes) -> int: ...

    async def write_record(self, query: str, value: bytes, version: int) -> int: ...

    async def await_record(self, query: str, version: int, wait_s: float) -> int: ...

    async def create_ledger(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]: ...

    async def read_ledger(self, ledger_id: int) -> tuple[LedgerMetadata, int]: ...

    async def write_ledger(self, metadata: LedgerMetadata, version: int) -> int: ...

    async def delete_ledger(self, ledger_id: int) -> None: ...

    async def quorums_for(self, topic: str) -> Quorums: ...

    async def bookies(self) -> Sequence[RegisteredBookie]: ...
