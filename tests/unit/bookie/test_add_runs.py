"""The runs of a chunk in one call: as if each had been added by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.bookie import RECOVERY, Bookie
from magnetar.bookie.ledgers.adds import DEFERRED_SYNC
from magnetar.config import BookieConfig
from magnetar.model.errors import BookieError, MagnetarError, TooManyRequestsError
from magnetar.wire.bookie.messages import AddRun
from tests.unit.bookie import storage_kit
from tests.unit.bookie.storage_kit import KEY, OTHER_KEY, add, crashed, entry, running

LEDGERS, ENTRIES = range(1, 5), range(8)

RUNS = st.lists(
    st.tuples(
        st.sampled_from(LEDGERS),
        st.sets(st.sampled_from(ENTRIES), min_size=1, max_size=3),
        st.sampled_from((0, 0, 0, RECOVERY, DEFERRED_SYNC)),
        st.sampled_from((KEY, KEY, KEY, OTHER_KEY)),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
"""Ledger, entries, flags, key, and whether the headers are of the ledger."""

Told = list[tuple[str, tuple[int, ...]]]


def run_of(
    ledger_id: int,
    entry_ids: Sequence[int],
    number: int,
    flags: int = 0,
    key: bytes = KEY,
    sound: bool = True,
) -> AddRun:
    """``number`` tells its entries from others of the same ids."""
    named = ledger_id if sound else ledger_id + 1
    entries = [entry(named, each, lac=number) for each in entry_ids]
    return AddRun(ledger_id, key, flags, list(entry_ids), entries, sum(map(len, entries)))


class Answers:
    """What each run was told, in which order."""

    def __init__(self, runs: Sequence[AddRun]) -> None:
        self.told: dict[int, Told] = {id(run): [] for run in runs}
        self._left = sum(len(run.entry_ids) for run in runs)
        self._all = asyncio.Event()
        self.calls = 0

    def done(
        self, error: MagnetarError | None, runs: Sequence[AddRun], entry_ids: Sequence[int]
    ) -> None:
        self.calls += 1
        assert entry_ids == () or len(runs) == 1
        for run in runs:
            ids = tuple(entry_ids or run.entry_ids)
            self.told[id(run)].append((type(error).__name__, ids))
            self._left -= len(ids)
        if not self._left:
            self._all.set()

    async def wait(self) -> list[Told]:
        async with asyncio.timeout(60):
            await self._all.wait()
        return list(self.told.values())


async def added_together(bookie: Bookie, runs: Sequence[AddRun]) -> list[Told]:
    answers = Answers(runs)
    bookie.add_runs(runs, answers.done)
    return await answers.wait()


async def added_one_by_one(bookie: Bookie, runs: Sequence[AddRun]) -> list[Told]:
    answers = Answers(runs)
    for run in runs:

        def done(error: MagnetarError | None, ids: Sequence[int], run: AddRun = run) -> None:
            answers.done(error, (run,), ids)

        asked = (run.ledger_id, run.master_key, run.entry_ids, run.entries, run.flags)
        bookie.add_entries(*asked, done)
    return await answers.wait()


async def held(bookie: Bookie) -> dict[tuple[int, int], bytes | str]:
    found: dict[tuple[int, int], bytes | str] = {}
    for key in [(ledger_id, entry_id) for ledger_id in LEDGERS for entry_id in ENTRIES]:
        try:
            found[key] = await bookie.read_entry(*key)
        except BookieError as error:
            found[key] = type(error).__name__
    return found


def config_of(root: Path, journals: int = 1) -> BookieConfig:
    return storage_kit.settings(root, journals)


@settings(max_examples=20, deadline=None)
@given(RUNS, RUNS, st.integers(1, 2))
def test_runs_of_a_chunk_are_added_as_each_by_itself(
    first: list[tuple[int, set[int], int, bytes, bool]],
    second: list[tuple[int, set[int], int, bytes, bool]],
    journals: int,
) -> None:
    """What they are told, what is held then, and what a replay finds after a kill."""

    async def outcome(root: Path, together: bool) -> list[object]:
        config = config_of(root, journals)
        added = added_together if together else added_one_by_one
        found: list[object] = []
        async with running(config) as bookie:
            number = 0
            for chunk in (first, second):  # the second one's ledgers are in memory
                runs = []
                for ledger_id, ids, flags, key, sound in chunk:
                    number += 1
                    runs.append(run_of(ledger_id, sorted(ids), number, flags, key, sound))
                found.append(await added(bookie, runs))
                for ledger_id in LEDGERS:  # what was answered before it is durable is so now
                    await bookie.force(ledger_id)
            found.append(await held(bookie))
            after = crashed(config, root)
        async with running(after) as bookie:
            found.append(await held(bookie))
        return found

    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        together = asyncio.run(outcome(Path(one) / "bookie", True))
        assert together == asyncio.run(outcome(Path(other) / "bookie", False))


def test_runs_of_one_entry_are_answered_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(config_of(tmp_path)) as bookie:
            for ledger_id in LEDGERS:
                await add(bookie, ledger_id, [0])
            runs = [run_of(ledger_id, [1], 7) for ledger_id in LEDGERS]
            answers = Answers(runs)
            bookie.add_runs(runs, answers.done)
            assert await answers.wait() == [[("NoneType", (1,))]] * len(LEDGERS)
            assert answers.calls == 1

    asyncio.run(scenario())


def test_the_runs_of_a_chunk_go_to_the_journals_of_their_ledgers(tmp_path: Path) -> None:
    """A ledger's key, fence and barrier are in its own journal: an entry in another one would be
    answered before the key that it depends on, and whoever forces the ledger would not wait for
    it."""

    async def scenario() -> None:
        config = config_of(tmp_path, journals=2)
        async with running(config) as bookie:
            for ledger_id in LEDGERS:
                await add(bookie, ledger_id, [0])
            runs = [run_of(ledger_id, [7], 0) for ledger_id in LEDGERS]
            told = await added_together(bookie, runs)
            assert told == [[("NoneType", (7,))]] * len(LEDGERS)
            for journal in range(2):
                files = storage_kit.journal_files(config, journal)
                held = b"".join(path.read_bytes() for path in files)
                there = [each for each in LEDGERS if f";{each}:7;".encode() in held]
                assert there == [each for each in LEDGERS if each % 2 == journal]

    asyncio.run(scenario())


def test_a_replay_finds_what_was_added_last(tmp_path: Path) -> None:
    """An add with flags is a request of its own to the journal: it goes behind those that were
    collected before it, not ahead of them."""

    async def scenario() -> None:
        config = config_of(tmp_path / "bookie")
        async with running(config) as bookie:
            await add(bookie, 1, [0])
            runs = [run_of(1, [5], 1), run_of(1, [5], 2, RECOVERY), run_of(1, [6], 3)]
            await added_together(bookie, runs)
            after = crashed(config, tmp_path / "bookie")
        async with running(after) as bookie:
            assert await bookie.read_entry(1, 5) == entry(1, 5, lac=2)

    asyncio.run(scenario())


def test_what_waits_for_the_journal_is_bounded_within_a_chunk(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = storage_kit.settings(tmp_path, journal_pending_bytes_max=4000)
        async with running(config) as bookie:
            await add(bookie, 1, [0])
            runs = [run_of(1, [i], 0) for i in range(1, 101)]
            told = await added_together(bookie, runs)
            refused = [each for each in told if each[0][0] == TooManyRequestsError.__name__]
            taken = [each for each in told if each[0][0] == "NoneType"]
            assert len(refused) + len(taken) == len(runs)
            size = len(runs[0].entries[0])
            assert len(taken) == 4000 // size

    asyncio.run(scenario())
