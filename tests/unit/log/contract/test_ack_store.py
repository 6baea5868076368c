"""``log.ack_store.AckStore``: in a ledger, nowhere, and in another process that images reach late.

Each is asked in the same way by the same cursor. ``Kept.found`` is what a process started again
would find; None for a store that keeps nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from magnetar.env.flush_timer import FlushTimer
from magnetar.env.tasks import TaskScope, fails
from magnetar.log.ack_store import AckStore, NullAckStore
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.cursor import ManagedCursor, recover_state
from magnetar.log.managed.cursor_store import CursorLimits, CursorStore
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import CursorRecord, cursor_path, decode_cursor, encode_cursor
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Process, World

FLUSH_INTERVAL_MS = 5
LIMITS = CursorLimits(snapshot_deltas=4, ledger_records_max=30)
ENTRIES = 12


class RemoteAckStore:
    """Sends images of ``state`` to where ``kept`` is; none is lost, but each takes its own time."""

    durable = True

    def __init__(self, state: AckState, kept: AckState, rng: random.Random) -> None:
        self._state = state
        self._kept = kept
        self._rng = rng
        self._sent = state.version
        self._stored_mark_delete = state.mark_delete
        self._under_way = 0
        self._nothing_under_way = asyncio.Event()
        self._nothing_under_way.set()
        self.deleted = False

    @property
    def stored_mark_delete(self) -> Position:
        return min(self._stored_mark_delete, self._state.mark_delete)

    def mark_dirty(self) -> None:
        if self.deleted or self._sent == self._state.version:
            return
        self._sent = self._state.version
        image = self._state.take_changes() or self._state.snapshot()
        self._under_way += 1
        self._nothing_under_way.clear()
        delay_s = self._rng.random() * FLUSH_INTERVAL_MS / 1000
        asyncio.get_running_loop().call_later(delay_s, self._arrived, image)

    def _arrived(self, image: AckImage) -> None:
        for _ in range(self._rng.randint(1, 2)):
            self._kept.merge(image)
        self._under_way -= 1
        if self._under_way == 0:
            self._stored_mark_delete = self._kept.mark_delete
            self._nothing_under_way.set()

    async def wait_stored(self) -> None:
        self.mark_dirty()
        await self._nothing_under_way.wait()

    async def mark_deleted(self) -> None:
        await self.wait_stored()
        self.deleted = True

    async def finish_deletion(self) -> None:
        assert self.deleted

    async def close(self) -> None:
        await self.wait_stored()


@dataclass
class Kept:
    """A store of ``state``, and a way to what it holds when its process is gone."""

    chain: Chain
    state: AckState
    store: AckStore
    found: Callable[[], Awaitable[AckState | None]]
    gone: Callable[[], bool]

    def cursor(self) -> ManagedCursor:
        return ManagedCursor("c", self.chain, self.state, {}, self.store)


def _chain() -> Chain:
    chain = Chain([LedgerInfo(3, 4, 40, 1, 2), LedgerInfo(7, created_ms=1)])
    chain.confirm(ENTRIES - 5, chain.end_offset + ENTRIES - 4)
    return chain


ALL = [Position(3, i) for i in range(4)] + [Position(7, i) for i in range(ENTRIES - 4)]


async def _node(process: Process) -> RecordNode[CursorRecord]:
    return await RecordNode.load_or_create(
        process.metadata,
        cursor_path(NAME, "c"),
        encode_cursor,
        lambda value: decode_cursor("c", value),
        CursorRecord(Position(3, -1)),
    )


async def _owned() -> None:
    """Nobody takes the log over."""


async def in_a_ledger(scope: TaskScope) -> Kept:
    world, chain = World(), _chain()
    process = Process(world)
    node = await _node(process)
    state = await recover_state("c", chain, node, process.ledgers, _owned)

    def lost(error: Exception) -> None:
        raise AssertionError(error)

    store = CursorStore(
        "c",
        state,
        node,
        process.ledgers,
        scope,
        timer=FlushTimer(FLUSH_INTERVAL_MS),
        limits=LIMITS,
        on_stored=lambda: None,
        on_lost=lost,
        confirm_owned=_owned,
    )

    async def found() -> AckState:
        other = Process(world)
        return await recover_state("c", _chain(), await _node(other), other.ledgers, _owned)

    def gone() -> bool:
        return cursor_path(NAME, "c") not in world.nodes and not world.alive()

    return Kept(chain, state, store, found, gone)


async def nowhere(_scope: TaskScope) -> Kept:
    chain = _chain()
    state = AckState(chain, Position(3, -1))

    async def found() -> None:
        return None

    return Kept(chain, state, NullAckStore(state), found, lambda: True)


async def in_another_process(_scope: TaskScope) -> Kept:
    chain = _chain()
    state, kept = AckState(chain, Position(3, -1)), AckState(_chain(), Position(3, -1))
    store = RemoteAckStore(state, kept, random.Random(7))

    async def found() -> AckState:
        return kept

    return Kept(chain, state, store, found, lambda: store.deleted)


Make = Callable[[TaskScope], Awaitable[Kept]]
each_store = pytest.mark.parametrize("make", [in_a_ledger, nowhere, in_another_process])


def with_store(make: Make, scenario: Callable[[Kept], Awaitable[None]]) -> None:
    async def run() -> None:
        defects: list[BaseException] = []
        scope = TaskScope("ack-store", fails(lambda _task, error: defects.append(error)))
        try:
            async with asyncio.timeout(600):
                await scenario(await make(scope))
        finally:
            await scope.close()
        assert not defects

    run_virtual(run())


async def same(kept: Kept) -> None:
    """What is found is what the cursor says."""
    found = await kept.found()
    if found is not None:
        assert kept.store.durable
        assert found.snapshot() == kept.state.snapshot()


@each_store
def test_what_is_reported_as_stored_is_found(make: Make) -> None:
    async def scenario(kept: Kept) -> None:
        cursor = kept.cursor()
        assert cursor.durable == kept.store.durable
        cursor.acknowledge([ALL[0], ALL[2], ALL[6]])
        cursor.acknowledge_batch(ALL[8], 10, [0b11])
        await cursor.wait_stored()
        assert kept.store.stored_mark_delete == cursor.mark_delete == ALL[0]
        await cursor.wait_stored()  # nothing changed: there is nothing to wait for
        await same(kept)

    with_store(make, scenario)


@each_store
def test_what_is_dirty_is_stored_without_being_asked_again(make: Make) -> None:
    async def scenario(kept: Kept) -> None:
        cursor = kept.cursor()
        cursor.acknowledge_cumulative(ALL[5])
        await asyncio.sleep(1)
        assert kept.store.stored_mark_delete == ALL[5]
        await same(kept)

    with_store(make, scenario)


@each_store
def test_a_reset_counts_from_the_moment_that_it_is_asked_for(make: Make) -> None:
    """Else the log deletes, on a store that was under way at a seek, what the seek goes back to."""

    async def scenario(kept: Kept) -> None:
        cursor = kept.cursor()
        cursor.acknowledge_cumulative(ALL[2])
        await cursor.wait_stored()
        cursor.acknowledge_cumulative(ALL[9])
        storing = asyncio.ensure_future(cursor.wait_stored())
        await asyncio.sleep(0)
        resetting = asyncio.ensure_future(cursor.reset(ALL[1]))
        await asyncio.sleep(0)
        assert cursor.mark_delete == ALL[0]
        while not resetting.done():
            assert kept.store.stored_mark_delete <= ALL[0]
            await asyncio.sleep(0.0001)  # in virtual time, which must pass
        await storing
        await same(kept)

    with_store(make, scenario)


@each_store
@pytest.mark.parametrize("seed", range(8))
def test_acknowledgements_and_resets_in_any_order(make: Make, seed: int) -> None:
    async def scenario(kept: Kept) -> None:
        rng, cursor = random.Random(seed), kept.cursor()
        waits: list[asyncio.Future[None]] = []
        for _ in range(60):
            position, what = rng.choice(ALL), rng.randrange(10)
            if what == 0:
                waits.append(asyncio.ensure_future(cursor.reset(position)))
            elif what == 1:
                cursor.acknowledge_cumulative(position)
            elif what < 4:
                cursor.acknowledge_batch(position, 8, [rng.randrange(256)])
            else:
                cursor.acknowledge([position])
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * FLUSH_INTERVAL_MS / 1000)
        await asyncio.gather(*waits)
        await cursor.wait_stored()
        assert kept.store.stored_mark_delete == cursor.mark_delete
        await same(kept)

    with_store(make, scenario)


@each_store
def test_closing_stores_what_changed(make: Make) -> None:
    async def scenario(kept: Kept) -> None:
        cursor = kept.cursor()
        await cursor.reset(EARLIEST)
        cursor.acknowledge([ALL[1], ALL[4]])
        await kept.store.close()
        await same(kept)

    with_store(make, scenario)


@each_store
def test_what_is_deleted_is_gone(make: Make) -> None:
    async def scenario(kept: Kept) -> None:
        cursor = kept.cursor()
        cursor.acknowledge([ALL[1], ALL[4]])
        await cursor.wait_stored()
        await kept.store.mark_deleted()
        cursor.acknowledge([ALL[5]])  # late; nobody stores it any more
        await asyncio.sleep(1)
        for _ in range(2):
            await kept.store.finish_deletion()
        assert kept.gone()

    with_store(make, scenario)
