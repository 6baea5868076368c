"""Every copy is read: what is missing, damaged, different, unchecked; and what is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.ledger.bookies import ReadFlag
from magnetar.ledger.reading.reader import read_policy
from magnetar.model.errors import (
    BookieIOError,
    BookieUnavailableError,
    MetadataFormatError,
    NoSuchLedgerError,
    TooManyRequestsError,
)
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.repair.copying import Copier
from magnetar.repair.insight import verifying
from magnetar.repair.insight.faults import Fault, Finding
from magnetar.repair.insight.verifying import Verified, Verifier
from magnetar.repair.throttle import Throttle
from magnetar.wire.bookie.availability import Group, condense
from magnetar.wire.bookie.digest import EntryDigest
from tests.memory_bookie import MemoryBookie

NAMES = tuple(BookieId(f"b{i}") for i in range(4))
DIGEST = EntryDigest(DigestType.CRC32C, 1, b"")
PAYLOAD = b"0123456789"


class Bookie(MemoryBookie):
    """``broken``: entries that its disk cannot read. ``busy``: reads that it refuses first.
    ``silent``: it does not answer. ``asked``: the flags of reads that came."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.broken: set[int] = set()
        self.busy = 0
        self.silent = False
        self.asked: set[int] = set()

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> list[bytes]:
        self.asked.add(flags)
        if self.busy:
            self.busy -= 1
            raise TooManyRequestsError("busy")
        found: list[bytes] = []
        for entry_id in range(first_entry_id, first_entry_id + max_entries):
            if entry_id in self.broken:
                if found:
                    break
                raise BookieIOError("cannot read")
            if entry_id not in self.ledgers[ledger_id].entries:
                break
            found.append(self.ledgers[ledger_id].entries[entry_id])
        return found

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        return (await self.read_batch(ledger_id, entry_id, 1, 1 << 20))[0]

    async def list_groups(self, ledger_id: int) -> Sequence[Group]:
        if self.silent:
            raise BookieUnavailableError("it is down")
        return condense(sorted(self.ledgers[ledger_id].entries))


class Lister:
    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    async def list_entries(self, ledger_id: int) -> Sequence[Group]:
        return await self._bookie.list_groups(ledger_id)


class Cluster:
    """A ledger of 30 entries on its bookies; catalog and pool in one."""

    def __init__(self, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        size, write_quorum, ack_quorum = quorums
        fragments = (Fragment(0, NAMES[:size]), Fragment(12, NAMES[4 - size :]))
        self.metadata = LedgerMetadata(
            LedgerId(1), size, write_quorum, ack_quorum, DigestType.CRC32C, b"", fragments
        ).with_close(29, 300)
        self.version = 0
        self.reads = 0
        self.changes = 0
        self.marked: list[tuple[int, tuple[BookieId, ...]]] = []
        self.bookies = {name: Bookie(name) for name in NAMES}
        for bookie in self.bookies.values():
            bookie._store(1, DIGEST.master_key, [], [], 0)
        for entry_id in range(30):
            self.put(
                entry_id, DIGEST.build(entry_id, entry_id - 1, 10 * entry_id + 10, b"0123456789")
            )

    def put(self, entry_id: int, entry: bytes, *names: BookieId) -> None:
        for name in names or self.metadata.write_set(entry_id):
            self.bookies[name].ledgers[1].entries[entry_id] = entry

    def spoil(self, name: BookieId, entry_id: int) -> None:
        entry = self.bookies[name].ledgers[1].entries[entry_id]
        self.put(entry_id, entry[:-1] + b"!", name)

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        if ledger_id == 3:
            raise MetadataFormatError("the metadata of ledger 3 cannot be read")
        if ledger_id != 1:
            raise NoSuchLedgerError("no such ledger")
        self.reads += 1
        if self.changes:
            self.changes -= 1
            self.version += 1
        return self.metadata, self.version

    def client(self, name: BookieId) -> Bookie:
        return self.bookies[name]

    def lister(self, name: BookieId) -> Lister:
        return Lister(self.bookies[name])

    async def mark(self, ledger_id: int, bookies: Sequence[BookieId]) -> None:
        self.marked.append((ledger_id, tuple(bookies)))

    @property
    def verifier(self) -> Verifier:
        return Verifier(self, self, Throttle(0), 5.0)  # type: ignore[arg-type]

    @property
    def copier(self) -> Copier:
        config = LedgerConfig()
        policy = read_policy(config, lambda _bookie: False)
        told = lambda entries, byte_count: None  # noqa: E731
        return Copier(self, config, policy, Throttle(0), told)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "RETRY_S", 0.0)
    monkeypatch.setattr(verifying, "WINDOW_ENTRIES", 7)


def places(found: Verified) -> list[tuple[str, Fault, list[int]]]:
    return [(str(each.bookie_id), each.fault, [*each.entry_ids]) for each in found.findings]


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 2, 1), (3, 1, 1)], ids=str)
def test_every_copy_of_a_sound_ledger_is_read_once(quorums: tuple[int, int, int]) -> None:
    cluster = Cluster(quorums)
    found = asyncio.run(cluster.verifier.verify(1))
    assert found.sound
    assert (found.entries, found.copies) == (30, 30 * quorums[1])
    assert found.byte_count == found.copies * (DIGEST.payload_offset + len(PAYLOAD))
    asked = set[int]().union(*(each.asked for each in cluster.bookies.values()))
    assert asked == {ReadFlag.STORED}, "what is cached proves nothing of the disk"


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)], ids=str)
def test_each_fault_is_told_with_its_place(quorums: tuple[int, int, int]) -> None:
    cluster = Cluster(quorums)
    entry_of = {
        name: [e for e in range(30) if name in cluster.metadata.write_set(e)] for name in NAMES
    }
    damaged, missing, broken = entry_of[NAMES[1]][3], entry_of[NAMES[2]][5], entry_of[NAMES[3]][2]
    cluster.spoil(NAMES[1], damaged)
    del cluster.bookies[NAMES[2]].ledgers[1].entries[missing]
    cluster.bookies[NAMES[3]].broken = {broken}
    found = asyncio.run(cluster.verifier.verify(1))
    assert sorted(places(found), key=lambda each: each[0]) == [
        ("b1", Fault.DAMAGED, [damaged]),
        ("b2", Fault.MISSING, [missing]),
        ("b3", Fault.DAMAGED, [broken]),
    ]
    assert found.copies == 30 * quorums[1] - 3
    assert found.unchecked == []


def test_sound_copies_that_differ() -> None:
    cluster = Cluster()
    other = DIGEST.build(20, 19, 210, b"012345678X")
    cluster.put(20, other, NAMES[3])
    cluster.put(21, DIGEST.build(21, 3, 220, b"0123456789"), NAMES[3])  # another LAC is no fault
    found = asyncio.run(cluster.verifier.verify(1))
    assert places(found) == [("b3", Fault.DIFFERS, [20])]
    mended = asyncio.run(cluster.verifier.mend(found, cluster.copier, cluster.mark))
    assert (mended.given, mended.marked) == (0, ())
    assert "no digest tells" in mended.left[0]
    assert cluster.bookies[NAMES[3]].ledgers[1].entries[20] == other


def test_who_is_busy_is_asked_again_and_who_is_silent_is_unchecked() -> None:
    cluster = Cluster()
    cluster.bookies[NAMES[2]].busy = 2
    assert asyncio.run(cluster.verifier.verify(1)).sound
    cluster.bookies[NAMES[2]].busy = 1000
    cluster.bookies[NAMES[0]].silent = True
    found = asyncio.run(cluster.verifier.verify(1))
    assert found.findings == []
    assert not found.sound
    silent = [each for each in found.unchecked if each.bookie_id == NAMES[0]]
    assert [(each.first, each.last) for each in silent] == [(0, 11)]
    busy = [each for each in found.unchecked if each.bookie_id == NAMES[2]]
    assert {e for each in busy for e in range(each.first, each.last + 1)} == {*range(30)}


def test_a_ledger_that_changes_meanwhile_is_looked_at_anew() -> None:
    cluster = Cluster()
    cluster.spoil(NAMES[1], 3)
    cluster.changes = 3
    found = asyncio.run(cluster.verifier.verify(1))
    assert places(found) == [("b1", Fault.DAMAGED, [3])]
    assert cluster.reads == 4, "twice looked at, twice seen to be the same or not"
    assert asyncio.run(cluster.verifier.verify(2)).gone


def test_a_ledger_with_damaged_metadata_is_unchecked_and_stops_nobody() -> None:
    found = asyncio.run(Cluster().verifier.verify(3))
    assert not found.sound
    assert [(each.first, each.last) for each in found.unchecked] == [(0, -1)]
    assert "metadata of ledger 3" in found.unchecked[0].why


def test_damaged_copies_are_given_again_and_missing_ones_marked() -> None:
    cluster = Cluster()
    sound = dict(cluster.bookies[NAMES[1]].ledgers[1].entries)
    for entry_id in (3, 4, 20):
        cluster.spoil(NAMES[1], entry_id)
    del cluster.bookies[NAMES[2]].ledgers[1].entries[7]

    async def work() -> None:
        found = await cluster.verifier.verify(1)
        mended = await cluster.verifier.mend(found, cluster.copier, cluster.mark)
        assert (mended.given, mended.marked, mended.left) == (3, (NAMES[2],), ())
        again = await cluster.verifier.verify(1)
        assert places(again) == [("b2", Fault.MISSING, [7])]

    asyncio.run(work())
    assert cluster.bookies[NAMES[1]].ledgers[1].entries == sound
    assert cluster.marked == [(1, (NAMES[2],))]


def test_what_no_bookie_holds_soundly_is_left() -> None:
    cluster = Cluster()
    for name in cluster.metadata.write_set(20):
        cluster.spoil(name, 20)

    async def work() -> None:
        found = await cluster.verifier.verify(1)
        assert len(found.findings) == 3
        mended = await cluster.verifier.mend(found, cluster.copier, cluster.mark)
        assert mended.given == 0
        assert len(mended.left) == 3
        assert "no other bookie has a sound copy" in mended.left[0]

    asyncio.run(work())


def still_written(cluster: Cluster) -> None:
    """Its last entry, 29, is not known to be confirmed."""
    cluster.metadata = replace(cluster.metadata, state=LedgerState.OPEN, last_entry_id=-1, length=0)


def test_what_may_still_be_written_is_neither_missing_nor_mended() -> None:
    """Of the last fragment of an open ledger a bookie may lack what the ack quorum holds."""
    cluster = Cluster()
    still_written(cluster)
    del cluster.bookies[NAMES[3]].ledgers[1].entries[25]
    cluster.spoil(NAMES[2], 29)

    async def work() -> None:
        found = await cluster.verifier.verify(1)
        assert found.entries == 29, "the last entry is not known to be confirmed"
        assert places(found) == []
        # As if it had been looked at it, and lost again by the one who confirmed it.
        found.findings.append(Finding(range(29, 30), NAMES[2], Fault.DAMAGED, ""))
        mended = await cluster.verifier.mend(found, cluster.copier, cluster.mark)
        assert (mended.given, mended.marked) == (0, ())
        del cluster.bookies[NAMES[2]].ledgers[1].entries[25]
        found = await cluster.verifier.verify(1)
        assert ("b3", Fault.MISSING, [25]) in places(found), "now the ack quorum lacks it"

    asyncio.run(work())


@pytest.mark.parametrize("closed_at", [None, 28, 30])
def test_what_an_open_ledger_has_confirmed_is_given_again(closed_at: int | None) -> None:
    """It was left damaged as long as the ledger was open, and ``verify`` said so for ever."""
    cluster = Cluster()
    still_written(cluster)
    sound = dict(cluster.bookies[NAMES[2]].ledgers[1].entries)
    for entry_id in (5, 12, 26, 28):
        cluster.spoil(NAMES[2], entry_id)

    async def work() -> None:
        found = await cluster.verifier.verify(1)
        assert [each[2] for each in places(found)] == [[5], [12], [26], [28]]
        cluster.put(30, DIGEST.build(30, 29, 310, PAYLOAD))  # its writer goes on
        if closed_at is not None:  # meanwhile
            cluster.metadata = cluster.metadata.with_close(closed_at, 10 * closed_at + 10)
        mended = await cluster.verifier.mend(found, cluster.copier, cluster.mark)
        assert (mended.given, mended.marked, mended.left) == (4, (), ())
        assert (await cluster.verifier.verify(1)).sound

    asyncio.run(work())
    entries = cluster.bookies[NAMES[2]].ledgers[1].entries
    assert {each: entries[each] for each in sound} == sound
