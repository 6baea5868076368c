"""Staged ledgers are made when there are bookies for them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from magnetar.ledger.client import CatalogClient
from magnetar.model.errors import MagnetarError, NoSpaceError, NotEnoughBookiesError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.writing.staged_session import LedgersWith


class Client:
    """Fails so often; then there is a ledger."""

    def __init__(self, error: MagnetarError, times: int) -> None:
        self.error, self.times = error, times
        self.asked: list[Quorums] = []

    async def create(self, _custom: Any, *, quorums: Quorums) -> str:
        self.asked.append(quorums)
        if len(self.asked) <= self.times:
            raise self.error
        return "a ledger"

    async def delete(self, _ledger_id: int) -> None:
        raise AssertionError


async def quorums() -> Quorums:
    return Quorums(3, 3, 2)


def made(client: Client, patience_s: float) -> object:
    ledgers = LedgersWith(cast("CatalogClient", client), quorums, patience_s)
    return asyncio.run(ledgers.create())  # type: ignore[arg-type]


def test_a_bookie_that_restarts_is_waited_for() -> None:
    client = Client(NotEnoughBookiesError("an ensemble needs 3 bookies and 2 can be used"), 2)
    assert made(client, 60.0) == "a ledger"
    assert client.asked == [Quorums(3, 3, 2)] * 3


def test_not_for_ever_and_not_for_full_disks() -> None:
    with pytest.raises(NotEnoughBookiesError, match="2 can be used"):
        made(Client(NotEnoughBookiesError("2 can be used"), 99), 0.0)
    full = Client(NoSpaceError("all are full"), 99)
    with pytest.raises(NoSpaceError):
        made(full, 60.0)
    assert len(full.asked) == 1
