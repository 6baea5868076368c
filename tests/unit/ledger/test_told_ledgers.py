"""Ledgers described to somebody who has no metadata store, and read by that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from magnetar.env.free_ports import free_port
from magnetar.ledger.directory import LedgerDirectory
from magnetar.ledger.told_ledgers import ToldLedgers
from magnetar.model.entry import Entry
from magnetar.model.errors import LedgerError, MetadataFormatError, NoSuchLedgerError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
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
