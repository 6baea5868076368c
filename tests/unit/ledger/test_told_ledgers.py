"""Ledgers described to somebody who has no metadata store, and read by that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig
from magnetar.env.loop_thread import LoopThread
from magnetar.env.network.free_ports import free_port
from magnetar.ledger.directory import LedgerDirectory
from magnetar.ledger.told_ledgers import ToldLedgers
from magnetar.metrics import Metrics
from magnetar.model.entry import Entry
from magnetar.model.errors import LedgerError, MetadataFormatError, NoSuchLedgerError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.wire.bookie.digest import EntryDigest
from magnetar.wire.bookie.metadata import decode_ledger_metadata, encode_ledger_metadata
from magnetar_sim.world.virtual_time import run_virtual

METADATA = LedgerMetadata(
    ledger_id=LedgerId(3),
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    digest_type=DigestType.CRC32C,
    password=b"secret",
    fragments=(Fragment(0, (BookieId("b-1"),)),),
)


class Manager:
    """``LedgerManager``, as far as it is asked."""

    def __init__(self, *ledgers: LedgerMetadata) -> None:
        self._ledgers = {metadata.ledger_id: metadata for metadata in ledgers}

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        metadata = self._ledgers.get(LedgerId(ledger_id))
        if metadata is None:
            raise NoSuchLedgerError(f"no ledger {ledger_id}")
        return metadata, 0


class Registry:
    async def all(self) -> dict[BookieId, tuple[str, int]]:
        return {BookieId("b-1"): ("host", 3181)}


def directory(*ledgers: LedgerMetadata) -> LedgerDirectory:
    return LedgerDirectory(Manager(*ledgers), Registry())  # type: ignore[arg-type]


def test_passwords_are_not_told() -> None:
    async def run() -> None:
        ledgers, bookies = await directory(METADATA).describe([3])
        assert bookies == {"b-1": ("host", 3181)}
        assert decode_ledger_metadata(3, ledgers[3]) == replace(METADATA, password=b"")
        assert b"secret" not in ledgers[3]

    run_virtual(run())


def test_what_is_gone_or_needs_its_password_is_left_out() -> None:
    async def run() -> None:
        other = replace(METADATA, ledger_id=LedgerId(4), digest_type=DigestType.HMAC)
        ledgers, _ = await directory(METADATA, other).describe([2, 3, 4])
        assert list(ledgers) == [3]

    run_virtual(run())


def entries_of(ledgers: ToldLedgers, told: bytes) -> Iterator[Entry]:
    return ledgers.entries(3, told, 0, 5)


def test_a_bookie_that_is_not_told_of_or_does_not_answer_is_named() -> None:
    told = encode_ledger_metadata(METADATA)
    with (
        ToldLedgers({}) as ledgers,
        pytest.raises(LedgerError, match=r"3:0 .*bookie b-1 is not registered"),
    ):
        list(entries_of(ledgers, told))
    with (
        ToldLedgers({"b-1": ("127.0.0.1", free_port())}) as ledgers,
        pytest.raises(LedgerError, match=r"3:0 .*b-1: cannot be connected to"),
    ):
        list(entries_of(ledgers, told))


def test_metadata_that_is_none_is_refused() -> None:
    with ToldLedgers({}) as ledgers, pytest.raises(MetadataFormatError, match="ledger 3"):
        list(entries_of(ledgers, b"nothing"))


def test_it_closes_twice() -> None:
    ledgers = ToldLedgers({})
    ledgers.close()
    ledgers.close()


def test_large_entries_stay_as_they_came_while_others_are_read(tmp_path: Path) -> None:
    """They are views of what was received; and nobody writes over what somebody looks at."""
    draw, digest = random.Random(5), EntryDigest(DigestType.CRC32C, 3, b"")
    sizes = [draw.choice((40_000, 60_000, 300_000)) for _ in range(150)] + [10, 20, 30]
    payloads = [draw.randbytes(size) for size in sizes]
    made, _ = digest.build_run(0, -1, 0, payloads)
    config = BookieConfig(
        ledger_directories=(tmp_path / "ledgers",),
        journal=JournalConfig(directories=(tmp_path / "journal",)),
        read_cache_bytes=0,
    )

    async def serve(stack: AsyncExitStack) -> int:
        bookie = Bookie(config, Metrics())
        await bookie.start()
        stack.push_async_callback(bookie.close)
        added: asyncio.Queue[Exception | None] = asyncio.Queue()
        for entry_id, entry in enumerate(made):
            bookie.add_entries(
                3, bytes(20), (entry_id,), (entry,), 0, lambda error, _: added.put_nowait(error)
            )
            assert await added.get() is None
        server = BookieServer(bookie, "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.close)
        return server.port

    loop, stack = LoopThread("bookie", "the bookie"), AsyncExitStack()
    told = encode_ledger_metadata(replace(METADATA, password=b""))
    try:
        port = loop.run(serve(stack))
        with ToldLedgers({"b-1": ("127.0.0.1", port)}) as ledgers:
            for _ in range(2):
                found = list(ledgers.entries(3, told, 0, len(made)))
                assert [bytes(entry.payload) for entry in found] == payloads
                assert any(isinstance(entry.data, memoryview) for entry in found)
    finally:
        loop.end(stack.aclose())
