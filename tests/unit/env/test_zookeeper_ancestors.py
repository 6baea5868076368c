"""What is missing above a new node is made in two round trips."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.env.metadata import CreateMode
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_url import parse_zookeeper_url
from magnetar.model.errors import MetadataUnavailableError, NodeExistsError, NoNodeError
from magnetar_sim.world.virtual_time import run_virtual

ROUND_TRIP_S = 1.0


class Answering(ZooKeeperMetadataStore):
    """Of a server that is ``ROUND_TRIP_S`` away, and carries requests out as they come."""

    def __init__(self, nodes: set[str]) -> None:
        super().__init__(parse_zookeeper_url("zk://127.0.0.1:1/root"), 10_000, 10_000)
        self.nodes = nodes
        self.fails = ""

    async def _is_missing(self, ancestor: str) -> bool:
        missing = ancestor not in self.nodes
        await asyncio.sleep(ROUND_TRIP_S)
        return missing

    async def _create_once(self, path: str, full: str, value: bytes, mode: CreateMode) -> str:
        error: Exception | None = None
        if full == self.fails:
            error = MetadataUnavailableError("no answer")
        elif full in self.nodes:
            error = NodeExistsError(full)
        elif full.count("/") > 1 and full.rpartition("/")[0] not in self.nodes:
            error = NoNodeError(full)
        else:
            self.nodes.add(full)
        await asyncio.sleep(ROUND_TRIP_S)
        if error is not None:
            raise error
        return full


def test_ancestors_take_two_round_trips() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        store, begun_s = Answering({"/root"}), loop.time()
        await store.create("/managed-ledgers/tenant/namespace/persistent/topic", b"")
        assert {each.rpartition("/")[2] for each in store.nodes} == {
            "root", "managed-ledgers", "tenant", "namespace", "persistent", "topic"
        }  # fmt: skip
        # It is tried, what is missing is asked for and made, and it is tried again.
        assert round((loop.time() - begun_s) / ROUND_TRIP_S) == 4

    run_virtual(scenario())


def test_an_ancestor_that_cannot_be_made_is_told_of() -> None:
    async def scenario() -> None:
        store = Answering({"/root"})
        store.fails = "/root/a"
        with pytest.raises(MetadataUnavailableError):
            await store.create("/a/b/c", b"")

    run_virtual(scenario())
