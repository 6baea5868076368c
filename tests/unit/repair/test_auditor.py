"""The auditor asks for signs of life, also of bookies and ledgers that it has not audited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

import pytest

from magnetar.model.errors import MetadataError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata
from magnetar.repair import auditor as auditor_module
from magnetar.repair.auditor import Auditor, AuditPace, until_check_s
from magnetar.repair.standings import Standings
from tests.unit.ledger.doubles import MemoryManager
from tests.unit.repair.doubles import RepairCluster


class _Ledgers:
    def __init__(self, manager: MemoryManager) -> None:
        self._manager = manager

    async def iterate(self) -> AsyncIterator[int]:
        for ledger_id in await self._manager.ledger_ids():
            yield ledger_id

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        return await self._manager.read(ledger_id)


class _Marks:
    def __init__(self) -> None:
        self.named: dict[int, tuple[str, ...]] = {}

    async def mark(self, ledger_id: int, bookies: Collection[str], now_ms: int) -> bool:
        self.named[ledger_id] = tuple(bookies)
        return True


class _Switches:
    async def checked_ms(self) -> int:
        return 0


class _KeptSwitches(_Switches):
    at_ms = 0

    async def checked_ms(self) -> int:
        return self.at_ms

    async def set_checked(self, now_ms: int) -> None:
        self.at_ms = now_ms


class _Found:
    def marked(self, ledger_id: int, bookies: Collection[str]) -> None:
        pass

    def lost(self, bookies: Collection[BookieId]) -> None:
        pass


def auditor_of(
    cluster: RepairCluster,
    standings: Standings,
    marks: _Marks,
    enabled: Callable[[], bool] = lambda: True,
) -> Auditor:
    pace = AuditPace(3600.0, 0.0, 0.01, 1000.0)
    return Auditor(
        _Ledgers(cluster.manager), marks, _Switches(), standings, cluster.checker, pace,  # type: ignore[arg-type]
        lambda: 1, enabled, _Found(),
    )  # fmt: skip


def test_a_bookie_that_falls_silent_between_audits_is_found() -> None:
    """The ledger, too, was written since the last audit: nothing was known to ask of."""

    async def run() -> None:
        cluster, marks = RepairCluster(4), _Marks()
        auditor = auditor_of(cluster, cluster.standings, marks)
        assert await auditor.audit() == 0
        metadata = await cluster.written(10)
        hung = cluster.bookie(metadata.fragments[0].bookies[0])
        await auditor.hear()
        assert list(cluster.standings.gone) == []
        hung.silent = True
        async with asyncio.timeout(20):
            while hung.bookie_id not in cluster.standings.gone:
                await auditor.hear()
                await asyncio.sleep(0.01)
        assert await auditor.audit() == 1
        assert marks.named == {metadata.ledger_id: (hung.bookie_id,)}
        hung.silent = False
        await auditor.hear()
        assert list(cluster.standings.gone) == []

    asyncio.run(run())


def test_who_goes_during_an_audit_is_looked_after_by_another() -> None:
    """Ledgers that were read before that are not marked yet."""

    async def run() -> None:
        cluster, marks = RepairCluster(4), _Marks()
        first = await cluster.written(10)
        names = set(first.fragments[0].bookies)
        while names == set((second := await cluster.written(10)).fragments[0].bookies):
            pass
        (gone,) = names - set(second.fragments[0].bookies)
        look = cluster.standings.look

        async def looked(named: Iterable[BookieId] = ()) -> None:
            if set(named) == set(second.fragments[0].bookies):
                cluster.away.add(gone)
            await look(named)

        cluster.standings.look = looked  # type: ignore[method-assign]
        auditor = auditor_of(cluster, cluster.standings, marks)
        await auditor.audit()
        assert gone in cluster.standings.gone
        assert first.ledger_id not in marks.named
        await auditor._look()
        assert marks.named[first.ledger_id] == (gone,)

    asyncio.run(run())


def test_a_check_that_has_a_date_to_come_is_made_anew() -> None:
    """A clock that was a year ahead while all ledgers were checked had none checked for a year."""
    day_s = 86_400.0
    assert until_check_s(day_s, 3_600.0) == day_s - 3_600
    assert until_check_s(day_s, -10.0) == day_s + 10, "clocks of two machines"
    assert until_check_s(day_s, -365 * day_s) == 0


def test_an_audit_in_which_repair_is_switched_off_was_none() -> None:
    """Ledgers of a lost bookie were not marked until the next interval, a day later."""

    async def run() -> None:
        cluster, marks, on = RepairCluster(3), _Marks(), [True]
        ledgers = [await cluster.written(10) for _ in range(3)]
        auditor = auditor_of(cluster, cluster.standings, marks, lambda: on[0])
        await auditor._look()
        cluster.away.add(ledgers[0].fragments[0].bookies[0])
        mark = marks.mark

        async def marked(ledger_id: int, bookies: Collection[str], now_ms: int) -> bool:
            on[0] = False
            return await mark(ledger_id, bookies, now_ms)

        marks.mark = marked  # type: ignore[method-assign]
        await auditor._look()
        assert [*marks.named] == [ledgers[0].ledger_id]
        marks.mark, on[0] = mark, True  # type: ignore[method-assign]
        await auditor._look()
        assert [*marks.named] == [each.ledger_id for each in ledgers]

    asyncio.run(run())


def test_an_audit_that_an_operator_wants_is_made_though_the_store_goes_away() -> None:
    async def run() -> None:
        cluster, audits = RepairCluster(3), 0
        auditor = auditor_of(cluster, cluster.standings, _Marks())
        await auditor._look()
        audit = auditor.audit

        async def failing() -> int:
            raise MetadataError("out of reach")

        async def counted() -> int:
            nonlocal audits
            audits += 1
            return await audit()

        auditor.trigger()
        auditor.audit = failing  # type: ignore[method-assign]
        with pytest.raises(MetadataError):
            await auditor._look()
        auditor.audit = counted  # type: ignore[method-assign]
        await auditor._look()
        await auditor._look()
        assert audits == 1

    asyncio.run(run())


def test_a_check_that_is_cut_off_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began anew, and came to no end where the store was away now and then."""
    monkeypatch.setattr(auditor_module, "READ_AT_ONCE", 2)

    async def run() -> None:
        cluster, switches, now_ms, looked = RepairCluster(3), _KeptSwitches(), 1, list[int]()
        ids = [(await cluster.written(1)).ledger_id for _ in range(9)]
        auditor = Auditor(
            _Ledgers(cluster.manager), _Marks(), switches, cluster.standings, cluster.checker,  # type: ignore[arg-type]
            AuditPace(3600.0, 60.0, 0.01, 1e9), lambda: now_ms, lambda: True, _Found(),
        )  # fmt: skip
        read, look = cluster.manager.read, cluster.checker.look
        away = [ids[4], ids[4], ids[7]]

        async def failing(ledger_id: int) -> tuple[LedgerMetadata, int]:
            if away and ledger_id == away[0]:
                del away[0]
                raise MetadataError("out of reach")
            return await read(ledger_id)

        async def counted(metadata: LedgerMetadata, *args: Any, **more: Any) -> Any:
            looked.append(metadata.ledger_id)
            return await look(metadata, *args, **more)

        monkeypatch.setattr(cluster.manager, "read", failing)
        monkeypatch.setattr(cluster.checker, "look", counted)
        while away:
            now_ms += 10
            with pytest.raises(MetadataError):
                await auditor.check_all()
        await auditor.check_all()
        assert looked == ids, "each once"
        assert switches.at_ms == 11, "when it began"

        away[:], looked[:] = [ids[4]], []
        with pytest.raises(MetadataError):
            await auditor.check_all()
        await switches.set_checked(0)  # an operator wants all checked
        await auditor.check_all()
        assert looked == [*ids[:4], *ids]

        away[:], looked[:] = [ids[4]], []
        with pytest.raises(MetadataError):
            await auditor.check_all()
        now_ms += 60_000  # what was checked then is due again
        await auditor.check_all()
        assert looked == [*ids[:4], *ids]

    asyncio.run(run())
