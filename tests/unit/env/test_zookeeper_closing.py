"""A process that ends does not wait for an ensemble that does not answer."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_url import parse_zookeeper_url


def test_the_end_of_the_process_does_not_wait_for_the_session_to_be_closed() -> None:
    """Who closed it gave up in time, and the end of the loop waited for its thread: as long as a
    session may last."""
    answered = threading.Event()

    async def main() -> None:
        store = ZooKeeperMetadataStore(parse_zookeeper_url("zk://127.0.0.1:1/r"), 10_000, 15_000)
        store._client.stop = lambda: answered.wait(30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.close(), 0.1)

    began_s = time.monotonic()
    try:
        asyncio.run(main())
        assert time.monotonic() - began_s < 10
    finally:
        answered.set()


def test_what_closing_fails_with_is_told() -> None:
    def fails() -> None:
        raise OSError("no socket")

    async def main() -> None:
        store = ZooKeeperMetadataStore(parse_zookeeper_url("zk://127.0.0.1:1/r"), 10_000, 15_000)
        store._client.stop = fails
        with pytest.raises(OSError, match="no socket"):
            await store.close()

    asyncio.run(main())
