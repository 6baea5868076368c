"""Adds that find the write cache full: how long they wait, and who lets them go on."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.ledgers import flusher, parking
from magnetar.bookie.ledgers.parking import Add, Parking
from magnetar.model.errors import MagnetarError, ReadOnlyBookieError, TooManyRequestsError
from tests.unit.bookie.storage_kit import KEY, WatchedDisk, add, entry, running, settings

pytestmark = pytest.mark.usefixtures("patient")

CACHE_BYTES = 1 << 20
SIZE = 10_000


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "WAIT_MS_MAX", 120_000)


class GatedDisk(WatchedDisk):
    """Each sync of an entry log needs a permit; ``asked`` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.asked = 0

    def note(self, operation: str, path: Path) -> None:
        if operation == "sync" and path.suffix == ".log":
            self.asked += 1
            assert self.permits.acquire(timeout=60)
        super().note(operation, path)


class Writer:
    """Adds without waiting; ``errors`` in the order of the answers."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self.sent = 0
        self.errors: list[MagnetarError | None] = []

    def send(self, byte_count: int) -> None:
        for entry_id in range(self.sent, self.sent + byte_count // SIZE):
            data = [entry(1, entry_id, size=SIZE)]
            self._bookie.add_entries(1, KEY, [entry_id], data, 0, self._done)
            self.sent += 1

    def _done(self, error: MagnetarError | None, ids: Sequence[int]) -> None:
        self.errors += [error] * len(ids)

    async def answered(self, count: int) -> None:
        async with asyncio.timeout(60):  # before an add that waits is refused
            while len(self.errors) < count:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert set(self.errors) == {None}


def test_adds_go_on_when_a_flush_takes_the_half_and_not_only_when_it_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        async with running(settings(tmp_path, write_cache_bytes=CACHE_BYTES), disk) as bookie:
            writer = Writer(bookie)
            writer.send(CACHE_BYTES // 4 + SIZE)  # the first flush begins
            await until(lambda: disk.asked == 1)
            writer.send(CACHE_BYTES * 3 // 4)  # more than a half
            await asyncio.sleep(0.1)
            assert len(writer.errors) < writer.sent
            disk.permits.release()
            await until(lambda: disk.asked == 2)
            await writer.answered(writer.sent)  # though the second flush does not end
            disk.permits.release(100)

    asyncio.run(scenario())


def test_adds_that_waited_for_a_disk_go_on_when_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush that failed is repeated, and the half that they wait for goes with the next."""
    monkeypatch.setattr(flusher, "RETRY_S", 0.2)

    async def scenario() -> None:
        disk = WatchedDisk()
        async with running(settings(tmp_path, write_cache_bytes=CACHE_BYTES), disk) as bookie:

            def fail(operation: str, name: str) -> None:
                if name.endswith(".log"):
                    raise OSError(errno.ENOSPC, "no room")

            disk.fail = fail
            writer = Writer(bookie)
            writer.send(CACHE_BYTES // 4 + SIZE)
            await asyncio.sleep(0.1)
            writer.send(CACHE_BYTES * 3 // 4)
            await asyncio.sleep(0.5)
            assert len(writer.errors) < writer.sent
            disk.fail = lambda operation, name: None
            await writer.answered(writer.sent)

    asyncio.run(scenario())


def test_a_bookie_that_has_ceased_to_flush_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a defect: adds would be taken until the cache is full, and then time out for ever."""

    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=CACHE_BYTES)
        async with running(config) as bookie:
            told: list[bool] = []
            bookie.read_only_changed = told.append

            async def flush(positions: object) -> None:
                raise RuntimeError("nobody thought of this")

            with monkeypatch.context() as patch:
                patch.setattr(bookie._storages[0], "flush", flush)
                Writer(bookie).send(CACHE_BYTES // 4 + SIZE)
                await until(lambda: told == [True])
            with pytest.raises(ReadOnlyBookieError, match="nobody thought of this"):
                await add(bookie, 2, [0])
            assert await bookie.read_entry(1, 3) == entry(1, 3, size=SIZE)
        async with running(config) as bookie:
            assert await bookie.read_entry(1, 3) == entry(1, 3, size=SIZE)
            await add(bookie, 2, [0])

    asyncio.run(scenario())


def test_one_timer_whatever_comes_and_goes() -> None:
    async def scenario() -> None:
        carried_out: list[int] = []
        held: list[int] = []
        waiting = Parking(
            1 << 20, lambda add: carried_out.extend(add.entry_ids), held.append, held.remove
        )
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        later = loop.call_later
        loop.call_later = lambda delay, *rest: (timers.append(delay), later(delay, *rest))[1]  # type: ignore[assignment,misc]
        for entry_id in range(100):
            waiting.park(Add(1, KEY, [entry_id], [b""], 0, lambda error, ids: None), 0)
            waiting.drain(lambda: False)
        assert carried_out == list(range(100))
        assert len(timers) == 1

    asyncio.run(scenario())


def test_what_waits_for_room_is_bounded_in_bytes_and_gives_them_back() -> None:
    async def scenario() -> None:
        carried_out: list[int] = []
        waiting = Parking(100, lambda add: carried_out.extend(add.entry_ids), int, int)

        def park(entry_id: int) -> None:
            waiting.park(Add(1, KEY, [entry_id], [b""], 0, lambda error, ids: None), 40)

        for entry_id in range(0, 20, 2):
            park(entry_id)
            park(entry_id + 1)
            with pytest.raises(TooManyRequestsError):
                park(99)
            waiting.drain(lambda: False)
        assert carried_out == list(range(20))

    asyncio.run(scenario())


def test_each_that_waits_for_room_is_told_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that come while others wait."""
    monkeypatch.setattr(parking, "WAIT_MS_MAX", 60)

    async def scenario() -> None:
        told: dict[int, float] = {}
        loop = asyncio.get_running_loop()
        waiting = Parking(1 << 20, lambda add: None, int, int)

        def done(error: MagnetarError | None, ids: Sequence[int]) -> None:
            assert isinstance(error, TooManyRequestsError)
            told[ids[0]] = loop.time()

        parked: dict[int, float] = {}
        for entry_id in range(3):
            parked[entry_id] = loop.time()
            waiting.park(Add(1, KEY, [entry_id], [b""], 0, done), 0)
            await asyncio.sleep(0.03)
        await until(lambda: len(told) == 3)
        for entry_id, told_s in told.items():
            assert told_s - parked[entry_id] >= 0.06

    asyncio.run(scenario())


async def until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
