"""The table of the appender says what it does: random walks against it."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed import appender
from magnetar.log.managed.appender import Appender
from magnetar.log.managed.appender_states import TRANSITIONS, AppenderEvent, AppenderState
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.model.errors import LedgerError, LogFencedError, MagnetarError, NotAllowedError
from tests.unit.log.doubles import NAME, Process, World

WALKS = 300
STEPS = 40

Met = set[tuple[AppenderState, AppenderEvent, AppenderState]]


async def walk(seed: int, now: AppenderState) -> None:
    """Appends, rolls, ledgers that fail, ledgers that cannot be made; fenced when it is in the
    state ``now`` late in the walk."""
    random_ = random.Random(seed)
    process = Process(World())
    store = process.store(LedgerConfig(ledger_entries_max=random_.choice([2, 5, 1000])))
    log = await store.open(NAME)
    machine, ledgers = log._appender, process.ledgers
    endings = set[asyncio.Task[None]]()
    end_at = random_.randrange(2 * STEPS)  # often: never
    for step in range(STEPS):
        if step == end_at:
            endings.add(asyncio.create_task(_terminate(log, random_.random() < 0.3)))
            await asyncio.sleep(0)  # before the append of this step
        if step > STEPS // 2 and machine.state is now:
            machine.lose(LogFencedError("another broker owns it"))
        kind = random_.random()
        if kind < 0.2 and ledgers.break_after is None:
            ledgers.break_after = random_.randrange(6)
        elif kind < 0.3:
            ledgers.create_errors = [LedgerError("no ledger now")] * random_.randrange(6)
        log.append([b"x"] * random_.randint(1, 3), lambda error, runs: None)
        for _ in range(random_.choice([0, 0, 1, 30])):
            await asyncio.sleep(0)
    ledgers.create_errors = []
    await asyncio.gather(*endings)
    await store.close()


async def _terminate(log: ManagedLog, refused: bool) -> None:
    async def check() -> None:
        await asyncio.sleep(0)
        if refused:
            raise NotAllowedError("not now")

    with contextlib.suppress(MagnetarError):
        await log.termination.terminate(check)


def test_an_appender_does_what_its_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Met = set()
    known: dict[Appender, AppenderState] = {}
    move = Appender._move

    def told(machine: Appender, event: AppenderEvent) -> None:
        before = machine.state
        assert known.get(machine, AppenderState.IDLE) is before, "it moved by itself"
        move(machine, event)
        known[machine] = machine.state
        met.add((before, event, machine.state))

    monkeypatch.setattr(Appender, "_move", told)
    monkeypatch.setattr(appender, "OPEN_RETRY_FIRST_S", 0.0)
    states = [each for each in AppenderState if each is not AppenderState.LOST]
    for seed in range(WALKS):
        asyncio.run(walk(seed, states[seed % len(states)]))
    assert met == {(line.state, line.event, line.following) for line in TRANSITIONS}
