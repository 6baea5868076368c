"""The ledger client's own cost per entry, CPU microseconds: of the quorum write machine alone, and
of the whole append path (ids, entries, digests, sending, confirming).

    python -m bench.ledger_append

Bookies are stand-ins that answer at once, so that nothing but the ledger client is measured.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from bench.results import store, table
from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import AddDone, AddFlag
from magnetar.ledger.catalog.stored_ledger import StoredLedger
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.placing.placement import RandomSource
from magnetar.ledger.writing.quorum_write import QuorumWrite
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata

QUORUMS = ((1, 1, 1), (3, 3, 2), (3, 2, 2))
BATCHES = (1, 8, 64)
PAYLOAD_BYTES = 1024


class PromptBookie:
    """Acknowledges at the end of the loop turn, and keeps nothing."""

    def __init__(self, bookie_id: BookieId) -> None:
        self.bookie_id = bookie_id
        self._loop = asyncio.get_running_loop()

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: AddFlag,
        done: AddDone,
    ) -> None:
        self._loop.call_soon(done, None, entry_ids)


class PromptPool:
    def __init__(self) -> None:
        self._bookies: dict[BookieId, PromptBookie] = {}

    def client(self, bookie_id: BookieId) -> PromptBookie:
        return self._bookies.setdefault(bookie_id, PromptBookie(bookie_id))


def machine_us(quorums: tuple[int, int, int], batch: int, entries: int = 200_000) -> float:
    """Push and all acknowledgements, of every bookie."""
    machine = QuorumWrite(*quorums)
    slots = range(quorums[0])
    began = time.process_time()
    for _ in range(entries // batch):
        first = machine.pushed(batch)
        entry_ids = range(first, first + batch)
        for slot in slots:
            machine.acknowledged(slot, machine.stripe(slot, entry_ids), 0)
    spent = time.process_time() - began
    assert machine.last_add_confirmed == machine.last_add_pushed
    return spent / (entries // batch * batch) * 1e6


async def writer_us(quorums: tuple[int, int, int], batch: int, entries: int = 100_000) -> float:
    """The whole append path, 10 batches in a loop turn."""
    size, write_quorum, ack_quorum = quorums
    bookies = tuple(BookieId(f"b{i}") for i in range(size))
    metadata = LedgerMetadata(
        LedgerId(1), size, write_quorum, ack_quorum, DigestType.CRC32C, b"", (Fragment(0, bookies),)
    )
    stored = StoredLedger(None, metadata, 0)  # type: ignore[arg-type]
    rng: RandomSource = random.Random(1)
    writer = LedgerWriter(
        stored,
        LedgerContext.of(None, PromptPool(), LedgerConfig(), rng),  # type: ignore[arg-type]
    )
    payloads = [bytes(PAYLOAD_BYTES)] * batch
    confirmed = 0

    def done(error: MagnetarError | None, _ledger: int, _first: int, count: int) -> None:
        nonlocal confirmed
        assert error is None
        confirmed += count

    began = time.process_time()
    for i in range(entries // batch):
        writer.append(payloads, done)
        if i % 10 == 9:
            await asyncio.sleep(0)
    await writer.wait_confirmed()
    spent = time.process_time() - began
    assert confirmed == writer.last_add_pushed + 1
    await writer.abandon()
    return spent / confirmed * 1e6


def main() -> None:
    rows: list[dict[str, object]] = []
    for quorums in QUORUMS:
        for batch in BATCHES:
            rows.append(
                {
                    "quorums": "/".join(map(str, quorums)),
                    "batch": batch,
                    "machine_us_per_entry": round(machine_us(quorums, batch), 3),
                    "append_us_per_entry": round(asyncio.run(writer_us(quorums, batch)), 2),
                }
            )
    columns = ("E/Qw/Qa", "entries per append", "machine, us/entry", "append path, us/entry")
    text = table(columns, [list(row.values()) for row in rows])
    store("ledger_append", {"payload_bytes": PAYLOAD_BYTES, "rows": rows}, text)


if __name__ == "__main__":
    main()
