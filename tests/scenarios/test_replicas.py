"""The count of copies sees what is missing, damaged, or another entry's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.model.errors import DigestError
from tests.scenarios.ledgers import append
from tests.scenarios.replicas import WINDOW, copies
from tests.unit.ledger.doubles import Cluster, opened

COUNT = 2 * WINDOW + 7


async def counted(
    quorums: tuple[int, int, int], harm: Callable[[dict[int, bytes]], object]
) -> bytes:
    """The copies of ``COUNT`` entries, after harm to what the ledger's first bookie holds."""
    cluster = Cluster(3, quorums)
    async with opened(cluster) as writer:
        await append(writer, COUNT)
        await asyncio.sleep(0)
        ledger = await writer.close()
    first = ledger.fragments[0].bookies[0]
    harm(cluster.pool.bookies[first].entries[ledger.ledger_id])
    found = await copies(cluster.pool, ledger, COUNT)
    await cluster.client.close()
    return found


def test_every_copy_is_counted() -> None:
    assert asyncio.run(counted((3, 3, 3), lambda held: None)) == bytes([3]) * COUNT
    assert asyncio.run(counted((3, 2, 2), lambda held: None)) == bytes([2]) * COUNT


@pytest.mark.parametrize("entry_id", [0, 3, WINDOW - 1, WINDOW, COUNT - 1])
def test_a_missing_copy_is_not_counted(entry_id: int) -> None:
    found = asyncio.run(counted((3, 3, 3), lambda held: held.pop(entry_id)))
    assert [i for i, copies_of in enumerate(found) if copies_of != 3] == [entry_id]
    assert found[entry_id] == 2


def test_a_damaged_copy_is_told() -> None:
    def damage(held: dict[int, bytes]) -> None:
        held[5] = held[5][:-1] + bytes([held[5][-1] ^ 1])

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(counted((3, 3, 3), damage))
    assert raised.value.subgroup(DigestError) is not None


def test_a_sound_copy_of_another_entry_is_told() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(counted((3, 3, 3), lambda held: held.update({5: held[6]})))
    assert raised.value.subgroup(DigestError) is not None
