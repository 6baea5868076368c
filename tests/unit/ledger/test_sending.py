"""What goes down to the bookies, and when: one call per bookie and turn of the loop."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.writing.writer import SEND_BYTES
from magnetar.model.errors import LedgerClosedError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)], ids=str)
def test_appends_of_one_turn_reach_each_bookie_in_one_call(quorums: tuple[int, int, int]) -> None:
    async def run() -> None:
        cluster = Cluster(3, quorums)
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            bookies = cluster.ensemble(writer.ledger_id)
            for first in (0, 2, 4):
                writer.append(payloads(first, 2), outcomes)
            assert [bookie.adds for bookie in bookies] == [[]] * len(bookies)
            await outcomes.wait(6)
            assert outcomes.confirmed == list(range(6))
            assert [len(bookie.adds) for bookie in bookies] == [1] * len(bookies)
            writer.append(payloads(6, 1), outcomes)
            await outcomes.wait(7)
            sent = sorted(
                entry_id for bookie in bookies for ids, _ in bookie.adds for entry_id in ids
            )
            assert sent == sorted(list(range(7)) * quorums[1])

    run_virtual(run())


def test_much_is_sent_before_the_turn_ends() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            (bookie,) = cluster.ensemble(writer.ledger_id)
            large = bytes(SEND_BYTES // 2)
            writer.append([large], outcomes)
            assert bookie.adds == []
            writer.append([large], outcomes)
            assert [list(ids) for ids, _ in bookie.adds] == [[0, 1]]
            writer.append([b"small"], outcomes)
            await outcomes.wait(3)
            assert [list(ids) for ids, _ in bookie.adds] == [[0, 1], [2]]
            assert outcomes.confirmed == [0, 1, 2]

    run_virtual(run())


def test_a_writer_given_up_within_the_turn_sends_nothing_more() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            (bookie,) = cluster.ensemble(writer.ledger_id)
            writer.append(payloads(0, 3), outcomes)
            await writer.abandon()
            await asyncio.sleep(0.1)
            assert bookie.adds == []
            assert outcomes.confirmed == []
            assert [type(error) for error in outcomes.errors] == [LedgerClosedError]

    run_virtual(run())
