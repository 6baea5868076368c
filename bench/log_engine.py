"""What the log engine's own work costs: acknowledgements, the tail cache, the append path.

``python -m bench.log_engine`` prints CPU microseconds per acknowledgement or entry and writes
``bench/results/log_engine.json`` and ``.md``. Ledgers are in memory and free: what is measured is
what ``log/`` adds to them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.measure import machine
from bench.results import store, table
from magnetar.config import LedgerConfig
from magnetar.log.acknowledgements import AckState
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.cursor_format import encode_image
from magnetar.log.managed.ledgers import LedgerAppendDone
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.seam import Buffer, Run
from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.doubles import NAME, MemoryWriter, Outcomes, Process, World

ENTRIES = 400_000
ENTRY = bytes(1060)


def cpu_us(call: Callable[[], object], count: int) -> float:
    """CPU microseconds of ``call``, per one of ``count``."""
    begun = time.process_time()
    call()
    return round((time.process_time() - begun) / count * 1e6, 3)


def acknowledge_all(chain: Chain, positions: Sequence[Position], batch: int) -> AckState:
    state = AckState(chain, EARLIEST)
    for start in range(0, len(positions), batch):
        state.acknowledge(positions[start : start + batch])
    return state


def acknowledgements() -> dict[str, float]:
    chain = Chain([LedgerInfo(1, ENTRIES, 1, 1, 2)])
    ordered = [Position(1, entry_id) for entry_id in range(ENTRIES)]
    shuffled = ordered[1:]
    random.Random(1).shuffle(shuffled)
    found = {}
    for name, positions in (("in order", ordered), ("at random", shuffled)):
        for batch in (1, 10, 100):
            call = partial(acknowledge_all, chain, positions, batch)
            found[f"acknowledge {name}, {batch} at a time"] = cpu_us(call, ENTRIES)
    holed = acknowledge_all(chain, shuffled[: ENTRIES // 2], 100)
    entries = [Entry(1, entry_id, b"", 0) for entry_id in range(ENTRIES)]

    def filter_all() -> None:
        for start in range(0, ENTRIES, 100):
            holed.unacknowledged(entries[start : start + 100])

    found["filter what is acknowledged, half of it"] = cpu_us(filter_all, ENTRIES)
    found["snapshot of that, per hole"] = cpu_us(
        lambda: encode_image(holed.snapshot()), ENTRIES // 2
    )
    return found


class FreeWriter(MemoryWriter):
    """Builds nothing, keeps nothing; confirms when told to."""

    def append(
        self, payloads: Sequence[Buffer], done: LedgerAppendDone, prefixes: Sequence[bytes] = ()
    ) -> list[bytes]:
        count = len(payloads)
        self.asked.append((self.last_add_pushed + 1, count, done))
        self.last_add_pushed += count
        return [ENTRY] * count

    def confirm_all(self) -> None:
        asked, self.asked = self.asked, []
        for first, count, done in asked:
            done(None, self.ledger_id, first, count)

    asked: list[tuple[int, int, LedgerAppendDone]]


def ignore(error: MagnetarError | None, runs: Sequence[Run]) -> None:
    assert error is None


async def open_log() -> tuple[ManagedLog, FreeWriter]:
    process = Process(World())
    log = await process.store(LedgerConfig(ledger_entries_max=1 << 30)).open(NAME)
    first = Outcomes()
    log.append([b"first"], first)
    await first.wait(1)
    writer = process.ledgers.writers[-1]
    writer.__class__ = FreeWriter
    assert isinstance(writer, FreeWriter)
    writer.asked = []
    return log, writer


async def log_costs() -> dict[str, float]:
    log, writer = await open_log()
    found = {}
    for batch in (100, 10, 1):
        payloads = [b""] * batch

        def publish(batch: int = batch, payloads: list[bytes] = payloads) -> None:
            for i in range(ENTRIES // batch):
                log.append(payloads, ignore)
                if i % 64 == 63:
                    writer.confirm_all()
            writer.confirm_all()

        found[f"append, {batch} at a time"] = cpu_us(publish, ENTRIES)
    reads = 20_000
    start = Position(writer.ledger_id, writer.last_add_pushed - reads)

    def read_tail() -> None:
        position = start
        while entries := log.read_cached(position, 100, 1 << 20):
            last = entries[-1]
            position = log.positions.next_position(Position(last.ledger_id, last.entry_id))

    found["read the tail, 100 at a time"] = cpu_us(read_tail, reads)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="accepted, and the same")
    parser.parse_args()
    where = machine()
    found = acknowledgements() | asyncio.run(log_costs())
    rows = [[name, value] for name, value in found.items()]
    store("log_engine", {"cpu_us": found}, table(("operation", "CPU us each"), rows), where)


if __name__ == "__main__":
    main()
