"""The bookie's core: adds, reads, keys, fences, LACs, deletion, bounds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import FENCE, HIGH_PRIORITY, RECOVERY, Bookie
from magnetar.bookie.ledgers import flusher, parking
from magnetar.bookie.storage import storage
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.read_pace import ReadPace
from magnetar.config import BookieConfig
from magnetar.env.files.disk import DiskSpace
from magnetar.metrics import Metrics
from magnetar.model.errors import (
    BadRequestError,
    BookieIOError,
    ConfigError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
)
from tests.memory_bookie import until
from tests.unit.bookie.storage_kit import (
    KEY,
    OTHER_KEY,
    WatchedDisk,
    add,
    crashed,
    entry,
    ids_of,
    running,
    settings,
)


def test_added_entries_are_read_from_memory_and_from_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(50))
            assert bookie.read_cached(1, 7) == entry(1, 7)
            assert await bookie.read_entry(1, 49) == entry(1, 49)
            assert await bookie.read_entry(1, -1) == entry(1, 49)
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 0  # flushed and marked at the close
            assert bookie.read_cached(1, 7) is None
            assert await bookie.read_entry(1, 7) == entry(1, 7)
            assert bookie.read_cached(1, 8) == entry(1, 8)  # read ahead
            assert await bookie.read_entry(1, -1) == entry(1, 49)
            with pytest.raises(NoEntryError):
                await bookie.read_entry(1, 50)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_done_is_never_called_from_inside_and_tells_each_id_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            told: list[tuple[MagnetarError | None, Sequence[int]]] = []
            ids = [0, 1, 2]
            entries = [entry(1, i) for i in ids]
            bookie.add_entries(1, KEY, ids, entries, 0, lambda e, i: told.append((e, i)))
            bookie.add_entries(1, b"short", ids, entries, 0, lambda e, i: told.append((e, i)))
            assert told == []
            await bookie.force(1)
            await asyncio.sleep(0)
            assert sorted(type(error).__name__ for error, _ in told) == [
                "NoneType",
                "UnauthorizedError",
            ]
            assert [list(found) for _, found in told] == [ids, ids]

    asyncio.run(scenario())


def test_adds_out_of_order_and_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 3, [5, 1])
            await add(bookie, 3, [0, 5])
            newer = [entry(3, 1, lac=4, size=200)]
            await add(bookie, 3, [1], entries=newer, flags=RECOVERY)
            assert ids_of(await bookie.list_entries(3)) == [0, 1, 5]
            with pytest.raises(NoEntryError):
                await bookie.read_entry(3, 2)
        async with running(config) as bookie:
            assert await bookie.read_entry(3, 1) == newer[0]
            assert await bookie.read_entry(3, -1) == entry(3, 5)
            assert ids_of(await bookie.list_entries(3)) == [0, 1, 5]
            newest = [entry(3, 1, lac=4, size=300)]
            await add(bookie, 3, [1], entries=newest)
            assert await bookie.read_entry(3, 1) == newest[0]
        async with running(config) as bookie:
            assert await bookie.read_entry(3, 1) == newest[0]

    asyncio.run(scenario())


def test_the_master_key_is_bound_by_the_first_add(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, [0])
            with pytest.raises(UnauthorizedError):
                await add(bookie, 1, [1], key=OTHER_KEY)
            with pytest.raises(UnauthorizedError):
                await bookie.read_lac(1, FENCE, OTHER_KEY)
            with pytest.raises(UnauthorizedError):
                await bookie.write_lac(1, OTHER_KEY, 0, b"")
            await add(bookie, 1, [1])
        async with running(config) as bookie:
            with pytest.raises(UnauthorizedError):
                await add(bookie, 1, [2], key=OTHER_KEY)
            await add(bookie, 1, [2])

    asyncio.run(scenario())


def test_headers_must_name_what_is_added(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            for bad in (entry(2, 0), entry(1, 1), b"short"):
                with pytest.raises(BadRequestError):
                    await add(bookie, 1, [0], entries=[bad])
            with pytest.raises(BadRequestError):
                await add(bookie, 1, [0], entries=[entry(1, 0, size=6 << 20)])
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(1, 0)  # a refused add leaves no trace

    asyncio.run(scenario())


def test_a_fence_stops_the_writer_and_lets_recovery_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
            reply = await bookie.read_lac(1, FENCE, KEY)
            assert reply.last_add_confirmed == 1
            assert reply.last_entry == entry(1, 2)
            with pytest.raises(FencedError):
                await add(bookie, 1, [3])
            await add(bookie, 1, [3], flags=RECOVERY)
        async with running(config) as bookie:
            with pytest.raises(FencedError):
                await add(bookie, 1, [4])
            await add(bookie, 1, [4], flags=RECOVERY)
            assert await bookie.read_entry(1, 4) == entry(1, 4)

    asyncio.run(scenario())


def test_a_fence_creates_an_unknown_ledger(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            reply = await bookie.read_lac(8, FENCE, KEY)
            assert (reply.last_add_confirmed, reply.last_entry) == (-1, None)
            with pytest.raises(NoEntryError):
                await bookie.read_entry(9, 0, FENCE, KEY)
            for ledger_id in (8, 9):
                with pytest.raises(FencedError):
                    await add(bookie, ledger_id, [0])
        async with running(config) as bookie:  # an empty cache flushed them all the same
            for ledger_id in (8, 9):
                with pytest.raises(FencedError):
                    await add(bookie, ledger_id, [0])
                with pytest.raises(UnauthorizedError):
                    await add(bookie, ledger_id, [0], key=OTHER_KEY, flags=RECOVERY)

    asyncio.run(scenario())


def test_every_add_accepted_before_a_fence_is_seen_by_the_fencing_reader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            accepted: list[int] = []
            refused: list[int] = []

            def done(error: MagnetarError | None, ids: Sequence[int]) -> None:
                (accepted if error is None else refused).extend(ids)

            async def fence() -> bytes | None:
                return (await bookie.read_lac(1, FENCE, KEY)).last_entry

            await add(bookie, 1, [0])  # from here on the ledger is in memory
            fencing = None
            for number in range(1, 201):
                bookie.add_entries(1, KEY, [number], [entry(1, number)], 0, done)
                if number == 120:
                    fencing = asyncio.ensure_future(fence())
                if number % 10 == 0:
                    await asyncio.sleep(0)
            assert fencing is not None
            last = await fencing
            await bookie.force(1)
            await asyncio.sleep(0)
            assert accepted == list(range(1, len(accepted) + 1))
            assert last == entry(1, accepted[-1])
            assert len(accepted) + len(refused) == 200
            assert refused

    asyncio.run(scenario())


def test_a_negative_answer_to_a_fencing_read_waits_for_the_fence_to_be_durable(
    tmp_path: Path,
) -> None:
    """While the journal cannot sync, no fencing reader gets "no entry", not even the second one;
    a plain reader does."""

    async def scenario() -> None:
        disk = WatchedDisk()
        async with running(settings(tmp_path), disk) as bookie:
            await add(bookie, 2, [0])

            def fail(operation: str, name: str) -> None:
                if operation == "sync" and name.endswith(".journal"):
                    raise OSError(errno.EIO, "no sync")

            disk.fail = fail
            for _ in range(2):
                with pytest.raises(BookieIOError, match="no sync"):
                    await bookie.read_entry(1, 0, FENCE, KEY)
            with pytest.raises(BookieIOError, match="no sync"):
                await bookie.read_lac(2, FENCE, KEY)
            with pytest.raises(NoEntryError):
                await bookie.read_entry(2, 1)

    asyncio.run(scenario())


def test_the_fence_record_carries_the_master_key(tmp_path: Path) -> None:
    """A fence of a ledger never seen, then a crash before any flush: replay alone must fence it
    and know its key."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            with pytest.raises(NoEntryError):
                await bookie.read_entry(77, 0, FENCE, KEY)
            after_crash = crashed(config, tmp_path)
        async with running(after_crash) as bookie:
            with pytest.raises(UnauthorizedError):
                await add(bookie, 77, [0], key=OTHER_KEY)
            with pytest.raises(FencedError):
                await add(bookie, 77, [0])
            await add(bookie, 77, [0], flags=RECOVERY)

    asyncio.run(scenario())


def test_a_lac_that_is_asked_for_is_the_highest_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            lacs: dict[int, tuple[int, bytes]] = {1: (1, b"body1"), 2: (7, b"body7")}
            bookie.add_lac_source(lacs.get)
            bookie.add_lac_source(lambda _: None)
            with pytest.raises(NoLedgerError):
                await bookie.read_lac(1)
            await add(bookie, 1, [0, 1])
            assert (await bookie.read_lac(1)).explicit_lac == b"body1"
            lacs[1] = (0, b"body0")
            reply = await bookie.read_lac(1)
            assert (reply.last_add_confirmed, reply.explicit_lac) == (1, b"body1")
            lacs[1] = (2, b"body2")
            assert (await bookie.read_lac(1, FENCE, KEY)).explicit_lac == b"body2"

    asyncio.run(scenario())


def test_lac_is_the_highest_of_headers_and_explicit_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, [0, 1], entries=[entry(1, 0, lac=5), entry(1, 1, lac=3)])
            assert (await bookie.read_lac(1)).last_add_confirmed == 5
            await bookie.write_lac(1, KEY, 9, b"body9")
            await bookie.write_lac(1, KEY, 8, b"body8")
            await bookie.write_lac(4, KEY, 2, b"two")
            assert (await bookie.read_lac(1)).last_add_confirmed == 9
            assert (await bookie.read_lac(1)).explicit_lac == b"body9"
            with pytest.raises(BadRequestError):
                await bookie.write_lac(1, KEY, 10, bytes(5000))
            after_crash = crashed(config, tmp_path)
        for settings_ in (config, after_crash):
            async with running(settings_) as bookie:
                reply = await bookie.read_lac(1)
                assert (reply.last_add_confirmed, reply.explicit_lac) == (9, b"body9")
                assert (await bookie.read_lac(4)).last_add_confirmed == 2
                with pytest.raises(NoLedgerError):
                    await bookie.read_lac(5)

    asyncio.run(scenario())


def test_read_batch_stops_at_gaps_counts_and_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, read_ahead_entries=7)
        async with running(config) as bookie:
            await add(bookie, 1, [*range(40), *range(45, 50)])
        async with running(config) as bookie:
            assert await bookie.read_batch(1, 0, 1000, 1 << 20) == [entry(1, i) for i in range(40)]
            assert await bookie.read_batch(1, 30, 4, 1 << 20) == [
                entry(1, i) for i in range(30, 34)
            ]
            assert await bookie.read_batch(1, 45, 100, 250) == [entry(1, 45), entry(1, 46)]
            assert await bookie.read_batch(1, 49, 9, 1) == [entry(1, 49)]
            with pytest.raises(NoEntryError):
                await bookie.read_batch(1, 40, 10, 1000)

    asyncio.run(scenario())


def test_an_answer_that_rests_for_adds_is_not_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader would take the bookie for dead: 4 MiB are 64 pieces, with a rest after each."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            entries = [entry(1, i, size=100_000) for i in range(40)]
            await add(bookie, 1, range(40), entries=entries)
        async with running(config) as bookie:
            assert await bookie.read_batch(1, 0, 1000, 8 << 20) == entries
        async with running(config) as bookie:
            monkeypatch.setattr(ReadPace, "adding", lambda *_: True)
            monkeypatch.setattr(ReadPace, "rest_s", lambda *_: 0.0)
            assert await bookie.read_batch(1, 0, 1000, 8 << 20) == entries[:11]
            assert await bookie.read_batch(1, 11, 1000, 8 << 20, HIGH_PRIORITY) == entries[11:]

    asyncio.run(scenario())


def test_reads_across_flushes_see_every_entry_at_any_moment(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=10, write_cache_bytes=1 << 20)
        async with running(config) as bookie:
            for start in range(0, 4000, 50):
                ids = range(start, start + 50)
                await add(bookie, 6, ids, entries=[entry(6, i, size=400) for i in ids])
                probe = (start * 7919) % (start + 50)
                assert await bookie.read_entry(6, probe) == entry(6, probe, size=400)
            assert ids_of(await bookie.list_entries(6)) == list(range(4000))

    asyncio.run(scenario())


def test_a_list_of_entries_is_made_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a ledger of millions it took a gigabyte, and kept the loop for a second."""
    monkeypatch.setattr(storage, "ENTRIES_LISTED_AT_ONCE", 7)
    asked: list[int] = []
    original = LocationIndex.entry_ids

    def entry_ids(
        self: LocationIndex, ledger_id: int, first: int = 0, at_most: int = 1 << 62
    ) -> list[int]:
        asked.append(at_most)
        return original(self, ledger_id, first, at_most)

    async def scenario() -> None:
        flushed = [each for each in range(100) if each % 3 and each not in range(40, 50)]
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, flushed)
        async with running(settings(tmp_path)) as bookie:  # an orderly end has flushed
            cached = [3, 43, *range(100, 130, 2)]
            await add(bookie, 1, cached)
            monkeypatch.setattr(LocationIndex, "entry_ids", entry_ids)
            assert ids_of(await bookie.list_entries(1)) == sorted({*flushed, *cached})
            assert len(asked) > len(flushed) // 7
            assert max(asked) == 7

    asyncio.run(scenario())


def test_large_entries_come_back_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        big = [entry(1, i, size=700_000 + i) for i in range(6)]
        async with running(config) as bookie:
            await add(bookie, 1, range(6), entries=big)
        async with running(config) as bookie:
            for i in (3, 0, 1, 2, 5, 4):
                assert await bookie.read_entry(1, i) == big[i]

    asyncio.run(scenario())


def test_a_deleted_ledger_is_gone_and_stays_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(5))
            await add(bookie, 2, range(5))
        async with running(config) as bookie:
            await add(bookie, 1, [5])
            await bookie.delete_ledger(1)
            await bookie.delete_ledger(1)
            await bookie.delete_ledger(99)
            after_crash = crashed(config, tmp_path)
            await gone(bookie)
            with pytest.raises(TooManyRequestsError):  # a repair may, once that is written
                await add(bookie, 1, [6], flags=RECOVERY)
        for settings_ in (config, after_crash):
            async with running(settings_) as bookie:
                await gone(bookie)
                assert await bookie.read_entry(2, 3) == entry(2, 3)
            async with running(settings_) as bookie:
                assert bookie._storages[0].location_index.entry_ids(1) == []

    async def gone(bookie: Bookie) -> None:
        assert bookie.read_cached(1, 5) is None
        assert await bookie.ledgers() == [2]
        with pytest.raises(NoLedgerError):
            await bookie.read_entry(1, 0)
        with pytest.raises(FencedError):  # its old writer must not begin it anew
            await add(bookie, 1, [6])

    asyncio.run(scenario())


def test_full_write_cache_waits_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "WAIT_MS_MAX", 200)
    monkeypatch.setattr(flusher, "RETRY_S", 0.05)

    async def scenario() -> None:
        disk = WatchedDisk()
        config = settings(tmp_path, write_cache_bytes=1 << 20)
        async with running(config, disk) as bookie:

            def fail(operation: str, name: str) -> None:
                if name.endswith(".log"):
                    raise OSError(errno.ENOSPC, "no room")

            disk.fail = fail
            added = await fill(bookie, 0)
            assert 700_000 < added * 10_000 < 1_300_000
            disk.fail = lambda operation, name: None
            async with asyncio.timeout(60):
                while await fill(bookie, added, added + 1) == added:
                    pass  # the flush has not made room yet
            assert await bookie.read_entry(1, 0) == entry(1, 0, size=10_000)
        async with running(config) as bookie:
            for i in range(added + 1):
                assert await bookie.read_entry(1, i) == entry(1, i, size=10_000)

    async def fill(bookie: Bookie, number: int, end: int = 1 << 30) -> int:
        """The first that was refused, or ``end``."""
        while number < end:
            try:
                await add(bookie, 1, [number], entries=[entry(1, number, size=10_000)])
            except TooManyRequestsError:
                break
            number += 1
        return number

    asyncio.run(scenario())


def test_an_add_does_not_pass_those_that_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion makes room in the cache at once; those that wait go on behind the next flush."""
    monkeypatch.setattr(parking, "WAIT_MS_MAX", 600_000)
    monkeypatch.setattr(flusher, "RETRY_S", 0.05)

    async def scenario() -> None:
        disk = WatchedDisk()
        told: list[tuple[MagnetarError | None, Sequence[int]]] = []
        async with running(settings(tmp_path, write_cache_bytes=1 << 20), disk) as bookie:
            await add(bookie, 1, [0])
            await add(bookie, 2, [0])

            def fail(operation: str, name: str) -> None:
                if name.endswith(".log"):
                    raise OSError(errno.ENOSPC, "no room")

            disk.fail = fail
            waiting = bookie._adds.parkings[0].waiting
            for number in range(1, 1000):
                if waiting:
                    break
                data = [entry(2, number, size=10_000)]
                bookie.add_entries(2, KEY, [number], data, 0, lambda error, ids: None)
                await asyncio.sleep(0)
            assert waiting
            bookie.add_entries(1, KEY, [1], [entry(1, 1)], 0, lambda e, i: told.append((e, i)))
            await bookie.delete_ledger(2)
            assert not bookie._storages[0].cache.full
            bookie.add_entries(1, KEY, [2], [entry(1, 2)], 0, lambda e, i: told.append((e, i)))
            await bookie.force(1)
            assert told == []
            disk.fail = lambda operation, name: None
            await until(lambda: len(told) == 2)
            assert told == [(None, [1]), (None, [2])]

    asyncio.run(scenario())


def test_bytes_waiting_for_the_journal_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20, journal_pending_bytes_max=1 << 20)
        async with running(config) as bookie:
            told: list[MagnetarError | None] = []
            for number in range(30):
                data = [entry(1, number, size=100_000)]
                bookie.add_entries(1, KEY, [number], data, 0, lambda e, i: told.append(e))
            await bookie.force(1)
            await asyncio.sleep(0)
            refused = [error for error in told if error is not None]
            assert len(told) == 30
            assert {type(error) for error in refused} == {TooManyRequestsError}
            assert 19 <= len(refused) <= 21
            await add(bookie, 1, [40])
            await add(bookie, 1, [41], entries=[entry(1, 41, size=2 << 20)])  # when none waits

    asyncio.run(scenario())


def test_a_read_only_bookie_takes_recovery_adds_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, [0])
            told: list[bool] = []
            bookie.read_only_changed = told.append
            bookie.refuse_writes(True)
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 1, [1])
            await add(bookie, 1, [1], flags=RECOVERY)
            assert await bookie.read_entry(1, 1) == entry(1, 1)
            bookie.refuse_writes(False)
            await add(bookie, 1, [2])
            assert told == [True, False]

    asyncio.run(scenario())


def test_a_disk_that_fills_up_makes_the_bookie_read_only_until_it_has_room(
    tmp_path: Path,
) -> None:
    class Filling(WatchedDisk):
        free_bytes = 1 << 40

        def space(self, path: Path) -> DiskSpace:
            return DiskSpace(1 << 40, self.free_bytes)

    async def scenario() -> None:
        disk = Filling()
        async with running(settings(tmp_path, flush_interval_ms=10), disk) as bookie:
            told: list[bool] = []
            bookie.read_only_changed = told.append
            await add(bookie, 1, [0])
            disk.free_bytes = 1 << 20
            await until(lambda: bool(told))
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 1, [1])
            disk.free_bytes = 1 << 39
            await until(lambda: len(told) > 1)
            await add(bookie, 1, [1])
            assert told == [True, False]

    asyncio.run(scenario())


def test_directories_must_be_named_and_must_not_move(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ledger_directories"):
        Bookie(BookieConfig(), Metrics())

    async def scenario() -> None:
        config = settings(tmp_path, ledgers=2)
        async with running(config) as bookie:
            await add(bookie, 1, [0])
        turned = replace(config, ledger_directories=config.ledger_directories[::-1])
        with pytest.raises(ConfigError, match="restore"):
            await Bookie(turned, Metrics()).start()
        with pytest.raises(ConfigError, match="restore"):
            await Bookie(settings(tmp_path, ledgers=1), Metrics()).start()
        async with running(config) as bookie:  # a refused start let go of everything
            assert await bookie.read_entry(1, 0) == entry(1, 0)

    asyncio.run(scenario())


def test_after_the_close_everything_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, [0])
        with pytest.raises(BookieIOError):
            await add(bookie, 1, [1])
        with pytest.raises(BookieIOError):
            await bookie.read_entry(1, 0)
        with pytest.raises(BookieIOError):
            await bookie.read_lac(1, FENCE, KEY)
        await bookie.close()

    asyncio.run(scenario())


def test_several_directories_each_with_their_ledgers(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, journals=2, ledgers=3)
        async with running(config) as bookie:
            for ledger_id in range(12):
                await add(bookie, ledger_id, range(5))
            assert bookie.info().total_bytes > 0
            after_crash = crashed(config, tmp_path)
        for settings_ in (config, after_crash):
            async with running(settings_) as bookie:
                assert await bookie.ledgers() == list(range(12))
                for ledger_id in range(12):
                    assert await bookie.read_entry(ledger_id, 4) == entry(ledger_id, 4)
        assert all(list(path.glob("*.log")) for path in config.ledger_directories)

    asyncio.run(scenario())
