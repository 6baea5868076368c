"""Random bursts, rolls, failing ledgers and failing creations: order and exactness hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.config import LedgerConfig
from magnetar.log.managed import appender
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.seam import AppendDone, Run
from magnetar.model.errors import LedgerError, LogClosedError, LogError, MagnetarError
from magnetar.model.ids import Position
from tests.unit.log.doubles import NAME, MemoryLedgers, Process, World
from tests.unit.log.test_managed_log import number, read_all, values


class Burst:
    """Appends numbered payloads and checks every outcome against the order."""

    def __init__(self, log: ManagedLog) -> None:
        self.log = log
        self.sent = 0
        self.answered = 0
        self.confirmed: list[tuple[Position, int]] = []
        self.failed: list[MagnetarError] = []
        self.all_answered = asyncio.Event()

    def append(self, count: int) -> None:
        first = self.sent
        self.sent += count
        self.all_answered.clear()
        self.log.append([number(first + i) for i in range(count)], self._done(first, count))

    def _done(self, first: int, count: int) -> AppendDone:
        def done(error: MagnetarError | None, runs: Sequence[Run]) -> None:
            assert self.answered == first, "answered out of order, or twice"
            stored = [
                Position(r.ledger_id, r.first_entry_id + i) for r in runs for i in range(r[2])
            ]
            if error is None:
                assert len(stored) == count
            else:
                assert len(stored) < count
                self.failed.append(error)
            self.confirmed += zip(stored, range(first, first + count), strict=False)
            self.answered += count
            if self.answered == self.sent:
                self.all_answered.set()

        return done


def misfortune(rng: random.Random, ledgers: MemoryLedgers) -> None:
    if rng.random() < 0.2 and ledgers.break_after is None:
        ledgers.break_after = rng.randrange(6)
    if rng.random() < 0.1:
        ledgers.create_errors = [LedgerError("no ledger now")] * rng.randrange(5)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_payload_is_answered_once_in_order_and_is_where_it_was_said_to_be(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        process = Process(World())
        config = LedgerConfig(ledger_entries_max=rng.choice([3, 10, 1000]), roll_queue_bytes_max=99)
        log = await process.store(config).open(NAME)
        burst = Burst(log)
        for _ in range(60):
            burst.append(rng.randint(1, 4))
            misfortune(rng, process.ledgers)
            for _ in range(rng.choice([0, 0, 1, 5])):
                await asyncio.sleep(0)
        if rng.random() < 0.5:
            process.ledgers.create_errors = []
            await log.close()
            burst.append(2)
            log = await process.store(config).open(NAME)
        async with asyncio.timeout(20):
            await burst.all_answered.wait()
        entries = await read_all(log)
        found = {Position(e.ledger_id, e.entry_id): int(bytes(e.payload)) for e in entries}
        assert [found[p] for p, _ in burst.confirmed] == [n for _, n in burst.confirmed]
        assert values(entries) == [n for _, n in burst.confirmed], "and nothing else is in the log"
        assert all(isinstance(e, LedgerError | LogError | LogClosedError) for e in burst.failed)
        assert log.pending_bytes == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "OPEN_RETRY_FIRST_S", 0.0)
        asyncio.run(scenario())
