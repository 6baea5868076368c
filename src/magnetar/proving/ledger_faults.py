"""Ledgers that lose bookies: a ledger client by itself, on bookies that are processes.

One stage for all lanes, one after the other; bookies that a lane has lost are replaced by empty
ones, under names of their own, before the next. Every ledger is on all bookies that there are, so
that what a loss costs follows from the layout alone. Where its entries are is asked of its
metadata, by our client, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from typing import Final

from magnetar.model.errors import LedgerRecoveryError
from magnetar.model.ledger import LedgerMetadata
from magnetar.proving.counting import Back, Observed, count
from magnetar.proving.faults import Making, Outcome
from magnetar.proving.ledgers import LedgerStage
from magnetar.proving.magnetar_ledgers import ledger_client, registered
from magnetar.proving.scenarios import ENTRIES, HELD
from magnetar.proving.servers import Server
from magnetar.proving.stage import Settings

REPAIR_S: Final = 180.0
RECOVERED_S: Final = 60.0
REGISTERED_S: Final = 60.0
REFUSALS: Final = 2
ACK_QUORUM: Final = 2


async def _metadata(stage: LedgerStage, ledger_id: int) -> LedgerMetadata:
    async with ledger_client(stage.metadata_url) as client:
        return await client.read_metadata(ledger_id)


async def _closed(stage: LedgerStage) -> LedgerMetadata:
    async with stage.ledgers().owner(ACK_QUORUM) as owner:
        await owner.append(ENTRIES)
        await owner.close()
        return await _metadata(stage, owner.ledger_id)


async def _observed(stage: LedgerStage, ledger_id: int, messages: int, exposed: int) -> Observed:
    begun_s = time.monotonic()
    read = await stage.ledgers().read(ledger_id)
    lost, duplicated, reordered = count(range(messages), read)
    found = Observed(messages, exposed, lost, duplicated, reordered, back=Back.ALWAYS)
    found.unavailable_s = 0.0
    found.notes.append(f"all that is there was read in {time.monotonic() - begun_s:.1f} s")
    return found


class _Bookies:
    """Which there are; a wiped one is gone for good."""

    def __init__(self, stage: LedgerStage) -> None:
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

    async def settled(self) -> None:
        """Nothing is put on one that is gone: it stays registered as long as its session lasts."""
        async with asyncio.timeout(REGISTERED_S):
            url, there = self._stage.metadata_url, self._there.keys()
            while await registered(url) != there:  # noqa: ASYNC110 (no event tells of it)
                await asyncio.sleep(0.2)


def ledger_loses_bookies(making: Making) -> Outcome:
    with making.stage(Settings(brokers=0, quorums=(3, 2, 2))) as stage:
        assert isinstance(stage, LedgerStage), "it has no bookies"
        bookies = _Bookies(stage)
        found = asyncio.run(_wiped_and_repaired(making, stage, bookies))
        bookies.fill_up()
        found["closed-two-wiped"] = asyncio.run(_two_wiped(making, stage, bookies))
        bookies.fill_up()
        found["open-only-copy-away"] = asyncio.run(_only_copy_away(making, stage, bookies))
        return found


async def _wiped_and_repaired(
    making: Making, stage: LedgerStage, bookies: _Bookies
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
    async with ledger_client(stage.metadata_url) as client, asyncio.timeout(REPAIR_S):
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


async def _two_wiped(making: Making, stage: LedgerStage, bookies: _Bookies) -> Observed:
    await bookies.settled()
    ledger = await _closed(stage)
    pair = bookies.of(ledger)[:2]
    theirs = [
        number for number in range(ENTRIES) if set(map(str, ledger.write_set(number))) == set(pair)
    ]
    making.say(f"{' and '.join(pair)} are wiped")
    for each in pair:
        bookies.wipe(each)
    return await _observed(stage, ledger.ledger_id, ENTRIES, len(theirs))


async def _recovered(stage: LedgerStage, ledger_id: int) -> Observed:
    """As soon as all its bookies take requests, which may be later than that they are there."""
    deadline_s = time.monotonic() + RECOVERED_S
    while True:
        try:
            return await _observed(stage, ledger_id, HELD, 0)
        except LedgerRecoveryError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.5)


async def _only_copy_away(making: Making, stage: LedgerStage, bookies: _Bookies) -> Observed:
    await bookies.settled()
    async with stage.ledgers().owner(1) as owner:
        ledger_id = owner.ledger_id
        first, second, _ = bookies.of(await _metadata(stage, ledger_id))
        await owner.append(HELD - 3)
        bookies.server(second).kill()
        await owner.append(3)  # the first of them is on the first bookie only
        await asyncio.sleep(1.0)  # one copy was enough: the others may be later
        making.say(f"{first}, with the only copy, and the owner are gone")
        fault_s = time.monotonic()
        bookies.server(first).kill()
        await owner.abandon()
    stage.start(bookies.server(second))
    refused = 0
    for _ in range(REFUSALS):
        try:
            await stage.ledgers().read(ledger_id)
        except LedgerRecoveryError as error:
            refused += 1
            why = str(error)
    making.say(f"recovery has refused {refused} times; {first} comes back")
    stage.start(bookies.server(first))
    found = await _recovered(stage, ledger_id)
    found.refused, found.back = refused, Back.SAME
    found.unavailable_s = time.monotonic() - fault_s
    if refused:
        found.notes.append(f"recovery refused: {why[:160]}")
    return found
