"""Ledgers that lose bookies: the ledger client by itself, on bookies that are processes.

One stage for all lanes, one after the other; bookies that a lane has lost are replaced by empty
ones, under names of their own, before the next. Every ledger is on all bookies that there are, so
that what a loss costs follows from the layout alone.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.storage import open_cluster, open_ledgers, open_metadata
from magnetar.config import Config, LedgerConfig, MetadataConfig
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import (
    LedgerError,
    LedgerRecoveryError,
    NoEntryError,
)
from magnetar.model.ledger import LedgerMetadata
from magnetar.proving.counting import Back, Observed, count
from magnetar.proving.faults import Making, Outcome
from magnetar.proving.magnetar_stage import MagnetarStage
from magnetar.proving.scenarios import ENTRIES, HELD
from magnetar.proving.servers import Server
from magnetar.proving.stage import SESSION_MS, Settings

REPAIR_S: Final = 60.0
REFUSALS: Final = 2
READ_BYTES: Final = 1 << 20


@asynccontextmanager
async def _client(stage: MagnetarStage, ack_quorum: int = 2) -> AsyncIterator[LedgerClient]:
    """With a session and connections of its own: it knows nothing of what others have seen."""
    config = Config(
        metadata=MetadataConfig(url=stage.metadata_url, session_timeout_ms=SESSION_MS),
        ledger=LedgerConfig(ensemble_size=3, write_quorum=2, ack_quorum=ack_quorum),
    )
    async with AsyncExitStack() as stack:
        process = Process(config, real(), stack, Fate(asyncio.Event()))
        cluster = await open_cluster(await open_metadata(process), process.outside)
        yield open_ledgers(process, cluster, {}).client


async def _append(writer: LedgerWriter, messages: int) -> None:
    """So many more entries, each with its id; returns when all are acknowledged."""
    first = writer.last_add_pushed + 1
    await writer.add([b"%d" % number for number in range(first, first + messages)])


async def _closed(stage: MagnetarStage) -> LedgerMetadata:
    async with _client(stage) as client:
        writer = await client.create()
        await _append(writer, ENTRIES)
        return await writer.close()


async def _read(reader: LedgerReader) -> list[int]:
    """The numbers that some replica gives."""
    found: list[int] = []
    entry_id = 0
    while entry_id <= reader.last_add_confirmed:
        try:
            entries = await reader.read(entry_id, 500, READ_BYTES)
        except (LedgerError, NoEntryError):
            entry_id += 1
            continue
        found += [int(bytes(entry.payload)) for entry in entries]
        entry_id += len(entries)
    return found


async def _observed(stage: MagnetarStage, ledger_id: int, messages: int, exposed: int) -> Observed:
    begun_s = time.monotonic()
    async with _client(stage) as client:
        read = await _read(await client.open(ledger_id))
    lost, duplicated, reordered = count(range(messages), read)
    found = Observed(messages, exposed, lost, duplicated, reordered, back=Back.ALWAYS)
    found.unavailable_s = 0.0
    found.notes.append(f"all that is there was read in {time.monotonic() - begun_s:.1f} s")
    return found


class _Bookies:
    """Which there are; a wiped one is gone for good."""

    def __init__(self, stage: MagnetarStage) -> None:
        self._stage = stage
        self._there = {each.name: each for each in stage.bookies}

    def of(self, ledger: LedgerMetadata) -> Sequence[str]:
        return [str(each) for each in ledger.fragments[0].bookies]

    def server(self, name: str) -> Server:
        return self._there[name]

    def wipe(self, name: str) -> None:
        server = self._there.pop(name)
        server.kill()
        shutil.rmtree(self._stage.data_dir(server))

    def fill_up(self) -> None:
        """Three are there, empty ones if need be."""
        while len(self._there) < 3:
            added = self._stage.add_bookie()
            self._there[added.name] = added


def ledger_loses_bookies(making: Making) -> Outcome:
    with MagnetarStage(making.folder, Settings(brokers=0, quorums=(3, 2, 2))) as stage:
        bookies = _Bookies(stage)
        found = asyncio.run(_wiped_and_repaired(making, stage, bookies))
        bookies.fill_up()
        found["closed-two-wiped"] = asyncio.run(_two_wiped(making, stage, bookies))
        bookies.fill_up()
        found["open-only-copy-away"] = asyncio.run(_only_copy_away(making, stage, bookies))
        return found


async def _wiped_and_repaired(
    making: Making, stage: MagnetarStage, bookies: _Bookies
) -> dict[str, Observed]:
    ledger = await _closed(stage)
    first, second, _ = bookies.of(ledger)
    making.say(f"{first} is wiped")
    bookies.wipe(first)
    one = await _observed(stage, ledger.ledger_id, ENTRIES, 0)
    bookies.fill_up()
    making.say("auto-recovery is started")
    repair = stage.auto_recovery()
    begun_s = time.monotonic()
    async with _client(stage) as client, asyncio.timeout(REPAIR_S):
        while True:
            if first not in bookies.of(await client.read_metadata(ledger.ledger_id)):
                break
            await asyncio.sleep(0.2)
    repaired_s = time.monotonic() - begun_s
    repair.kill()
    making.say(f"{second} is wiped")
    bookies.wipe(second)
    repaired = await _observed(stage, ledger.ledger_id, ENTRIES, 0)
    repaired.notes.append(f"repaired in {repaired_s:.1f} s")
    return {"closed-one-wiped": one, "closed-repaired": repaired}


async def _two_wiped(making: Making, stage: MagnetarStage, bookies: _Bookies) -> Observed:
    ledger = await _closed(stage)
    pair = bookies.of(ledger)[:2]
    theirs = [
        number for number in range(ENTRIES) if set(map(str, ledger.write_set(number))) == set(pair)
    ]
    making.say(f"{' and '.join(pair)} are wiped")
    for each in pair:
        bookies.wipe(each)
    return await _observed(stage, ledger.ledger_id, ENTRIES, len(theirs))


async def _only_copy_away(making: Making, stage: MagnetarStage, bookies: _Bookies) -> Observed:
    async with _client(stage, ack_quorum=1) as owner:
        writer = await owner.create()
        ledger_id = writer.ledger_id
        first, second, _ = bookies.of(writer.metadata)
        await _append(writer, HELD - 3)
        bookies.server(second).kill()
        await _append(writer, 3)  # the first of them is on the first bookie only
        await asyncio.sleep(1.0)  # one copy was enough: the others may be later
        making.say(f"{first}, with the only copy, and the owner are gone")
        fault_s = time.monotonic()
        bookies.server(first).kill()
        await writer.abandon()
    stage.start(bookies.server(second))
    refused = 0
    for _ in range(REFUSALS):
        async with _client(stage, ack_quorum=1) as other:
            try:
                await other.open(ledger_id)
            except LedgerRecoveryError as error:
                refused += 1
                why = str(error)
    making.say(f"recovery has refused {refused} times; {first} comes back")
    stage.start(bookies.server(first))
    found = await _observed(stage, ledger_id, HELD, 0)
    found.refused, found.back = refused, Back.SAME
    found.unavailable_s = time.monotonic() - fault_s
    if refused:
        found.notes.append(f"recovery refused: {why[:160]}")
    return found
