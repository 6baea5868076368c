"""Compare-and-set of a ledger's metadata: lost answers, conflicts, repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from magnetar.ledger.catalog import stored_ledger
from magnetar.ledger.catalog.stored_ledger import RecoveringLedger, StoredLedger
from magnetar.model.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import MemoryManager

B = [BookieId(f"b{i}") for i in range(6)]
FIRST = Fragment(0, (B[0], B[1]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_ledger, "RETRY_DELAYS_S", (0.001, 0.001))


def run(
    scenario: Callable[[MemoryManager, StoredLedger], Awaitable[None]],
    kind: type[StoredLedger] = StoredLedger,
) -> None:
    async def main() -> None:
        manager = MemoryManager()
        metadata = LedgerMetadata(LedgerId(1), 2, 2, 1, DigestType.CRC32C, b"", (FIRST,))
        version = await manager.create(metadata)
        await scenario(manager, kind(manager, metadata, version))  # type: ignore[arg-type]

    run_virtual(main())


def stored(manager: MemoryManager) -> LedgerMetadata:
    return manager.ledgers[1][0]


def overwrite(manager: MemoryManager, metadata: LedgerMetadata) -> None:
    manager.ledgers[1] = (metadata, manager.ledgers[1][1] + 1)


def test_changes_and_close_follow_the_version() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        await ledger.replace_bookies(4, {1: B[2]})
        await ledger.replace_bookies(4, {0: B[3]})
        await ledger.replace_bookies(9, {0: B[4]})
        fragments = (FIRST, Fragment(4, (B[3], B[2])), Fragment(9, (B[4], B[2])))
        assert stored(manager).fragments == ledger.metadata.fragments == fragments
        closed = await ledger.close(8, 800)
        assert closed == stored(manager)
        assert closed.fragments == fragments[:2]  # the last one never held an entry
        assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 8, 800)

    run(scenario)


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_found_out(landed: bool) -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        async def break_once(metadata: LedgerMetadata) -> None:
            manager.before_write = manager.after_write = None
            raise MetadataUnavailableError("the connection broke")

        for step in ("change", "close"):
            if landed:
                manager.after_write = break_once
            else:
                manager.before_write = break_once
            if step == "change":
                await ledger.replace_bookies(4, {1: B[2]})
                assert stored(manager).fragments[-1] == Fragment(4, (B[0], B[2]))
            else:
                await ledger.close(5, 50)
            assert (ledger.metadata, ledger.version) == manager.ledgers[1]
        assert len(manager.writes) == 2

    run(scenario)


def test_a_store_that_stays_away_is_told() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        async def away(metadata: LedgerMetadata) -> None:
            raise MetadataUnavailableError("no store")

        manager.before_write = away
        with pytest.raises(MetadataUnavailableError):
            await ledger.replace_bookies(4, {1: B[2]})
        assert ledger.metadata.fragments == (FIRST,)  # not switched before it is stored

    run(scenario)


def test_a_store_that_takes_long_to_say_nothing_is_not_asked_for_ever() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        tries = 0

        async def away(metadata: LedgerMetadata) -> None:
            nonlocal tries
            tries += 1
            await asyncio.sleep(0.6 * stored_ledger.GIVE_UP_S)
            raise MetadataUnavailableError("no store")

        manager.before_write = away
        with pytest.raises(MetadataUnavailableError, match="ledger 1 could not be closed at entry"):
            await ledger.close(4, 40)
        assert tries == 2
        manager.before_write = None
        assert (await ledger.close(4, 40)).closed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_ledger, "RETRY_DELAYS_S", (0.001,) * 20)
        run(scenario)


def test_a_change_lost_to_another_client() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        overwrite(manager, replace(stored(manager), state=LedgerState.IN_RECOVERY))
        with pytest.raises(LedgerFencedError, match="ledger 1"):
            await ledger.replace_bookies(4, {1: B[2]})
        overwrite(manager, stored(manager).with_close(3, 30))
        with pytest.raises(LedgerClosedError, match="at entry 3"):
            await ledger.replace_bookies(4, {1: B[2]})
        with pytest.raises(LedgerClosedError):
            await ledger.close(4, 40)
        assert (await ledger.close(3, 30)).last_entry_id == 3

    run(scenario)


def test_a_conflict_under_an_open_ledger_is_merged() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        await ledger.replace_bookies(4, {1: B[2]})
        moved = Fragment(0, (B[5], B[1]))
        overwrite(
            manager, replace(stored(manager), fragments=(moved, stored(manager).fragments[1]))
        )
        await ledger.replace_bookies(7, {0: B[3]})
        assert stored(manager).fragments == (
            moved,
            Fragment(4, (B[0], B[2])),
            Fragment(7, (B[3], B[2])),
        )
        overwrite(manager, replace(stored(manager), custom=(("by", b"hand"),)))
        closed = await ledger.close(9, 90)
        assert closed.custom == (("by", b"hand"),)

    run(scenario)


def test_a_deleted_ledger_is_told() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        await manager.delete(1)
        with pytest.raises(NoSuchLedgerError):
            await ledger.close(0, 0)

    run(scenario)


def test_a_recovery_keeps_its_changes_until_it_closes() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        await ledger.replace_bookies(4, {1: B[2]})
        await ledger.replace_bookies(20, {0: B[3]})
        assert stored(manager).fragments == (FIRST,)
        closed = await ledger.close(10, 100)
        assert closed.fragments == (FIRST, Fragment(4, (B[0], B[2])))
        assert stored(manager) == closed

    run(scenario, RecoveringLedger)


def test_a_recovery_takes_the_end_of_another_and_begins_again_on_other_changes() -> None:
    async def scenario(manager: MemoryManager, ledger: StoredLedger) -> None:
        overwrite(manager, replace(stored(manager), state=LedgerState.IN_RECOVERY))
        with pytest.raises(LedgerFencedError):
            await ledger.close(10, 100)
        overwrite(manager, stored(manager).with_close(12, 120))
        assert (await ledger.close(10, 100)).last_entry_id == 12

    run(scenario, RecoveringLedger)
