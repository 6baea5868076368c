"""Whom a broker chooses for the replicas of a new partition."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.app.replication import Replication
from magnetar.cluster.sharing.led_topics import LedBy
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.log.partition.replication.brokers import PeerBroker
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.node import ReplicationNode
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import NotLeaderError
from magnetar.protocols.kafka.services import KnownReplicas


def _node(image: StateImage) -> ReplicationNode:
    return cast("ReplicationNode", SimpleNamespace(image=image))


class _Brokers:
    async def look(self) -> Mapping[int, PeerBroker]:
        return {each: PeerBroker(LiveBroker(1, each), "host", 1) for each in (1, 2)}


def test_a_partition_is_made_while_a_broker_is_away(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata.db")
        image = StateImage(metadata)
        replication = Replication.__new__(Replication)
        replication.me, replication._brokers = LedBy(1, 1), _Brokers()  # type: ignore[assignment]
        replication.node = _node(image)
        with pytest.raises(NotLeaderError, match="not made yet"):
            await replication.replicas(("t", 0), 3)
        assert await replication.brokers_away() == 0
        image.stored(("other", 0), VersionedState(PartitionState((2, 3), 1, ()), 0))
        assert await replication.replicas(("t", 0), 3) == (1, 2, 3)
        assert await replication.replicas(("t", 0), 2) == (1, 2)
        assert (await replication.brokers(), await replication.brokers_away()) == (2, 1)
        name = parse_topic("t-partition-0")
        assert await replication.planned(name, 1, 3) == KnownReplicas(1, -1, (1, 2, 3), [1, 2])
        assert await replication.planned(name, 2, 2) == KnownReplicas(2, -1, (2, 1), [2, 1])
        assert await replication.planned(name, 1, 4) is None, "there are too few brokers"
        assert await replication.planned(name, 9, 1) is None, "it has no partitions"
        image.close()
        await metadata.close()

    asyncio.run(main())


def test_a_leader_that_is_asked_for_is_elected(tmp_path: Path) -> None:
    """Whoever asked for the preferred leader was told that it leads already, when another did."""

    async def main() -> None:
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata.db")
        image = StateImage(metadata)
        replication = Replication.__new__(Replication)
        replication._brokers, replication.node = _Brokers(), _node(image)  # type: ignore[assignment]
        name = parse_topic("t-partition-0")
        assert await replication.elect(name, False) is None, "it is on ledgers, or not made yet"
        members = (Member(1, 1), Member(2, 2))
        state = PartitionState((1, 2), 1, members, leader=2, leader_start=1, leader_epoch=5)
        image.stored(("t", 0), await image.store.create("t", 0, state))
        assert await replication.elect(name, True) == KnownReplicas(2, 5, (1, 2), [1, 2])
        found = await replication.elect(name, False)
        assert found == replication.replicas_of(name) == KnownReplicas(1, 6, (1, 2), [1, 2])
        assert (await image.store.read("t", 0)).state.leader == 1
        await image.store.delete("t", 0)
        assert await replication.elect(name, False) is None
        image.close()
        await metadata.close()

    asyncio.run(main())
