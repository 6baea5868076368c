"""A cluster's metadata in a real ZooKeeper: ledgers, registrations, cookies, expired sessions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.bookie.cookie import check_cookie
from magnetar.bookie.registration import BookieRegistration
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import (
    BadVersionError,
    BookieRegisteredError,
    CookieError,
    MetadataUnavailableError,
)
from magnetar.model.ids import BookieId
from magnetar.wire.bookie.metadata_service import BookieServiceInfo
from tests.integration.test_zookeeper_metadata import end_session_of, opened
from tests.unit.env.metadata_contract import eventually
from tests.unit.ledger.test_ledger_metadata import ledger

pytestmark = pytest.mark.zookeeper

ID = BookieId("127.0.0.1:3181")
INFO = BookieServiceInfo.of_address("127.0.0.1", 3181)


BOOKIE = """
import asyncio, sys
from magnetar.bookie.registration import BookieRegistration
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.wire.bookie.metadata_service import BookieServiceInfo

async def main():
    store = await ZooKeeperMetadataStore.open(sys.argv[1], session_timeout_ms=3_000)
    info = BookieServiceInfo.of_address("127.0.0.1", 3181)
    await BookieRegistration(store, sys.argv[2], info).register()
    print("registered", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_ledgers_of_two_brokers(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as one, opened(zookeeper_url) as two:
            managers = [LedgerManager(one), LedgerManager(two)]
            instances = await asyncio.gather(*(manager.initialize() for manager in managers))
            assert instances[0] == instances[1] != ""
            ids = [await managers[n % 2].new_ledger_id() for n in range(6)]
            assert ids == sorted({*ids})
            for ledger_id in ids:
                await managers[0].create(ledger(ledger_id))
            assert await managers[1].ledger_ids() == ids

            told: list[int] = []
            end = managers[0].watch(ids[0], told.append)
            # As whoever watches does: what changes before this read need not be told.
            metadata, version = await managers[0].read(ids[0])
            assert await managers[1].read(ids[0]) == (metadata, version)
            assert await managers[1].write(metadata.with_close(5, 50), version) == version + 1
            await eventually(lambda: told == [ids[0]], "the first broker was told")
            with pytest.raises(BadVersionError):
                await managers[0].write(metadata.with_close(9, 90), version)
            end()
            await asyncio.gather(*(managers[0].delete(ledger_id) for ledger_id in ids))
            assert await managers[1].ledger_ids() == []
            assert len(await one.children("/ledgers/idgen")) <= len(managers)

    asyncio.run(main())


def test_the_nodes_are_where_bookkeeper_looks(zookeeper_url: str) -> None:
    async def main() -> str:
        async with opened(zookeeper_url) as store:
            manager = LedgerManager(store)
            await manager.initialize()
            await manager.create(ledger(1652))
            return store.address.hosts + store.address.root

    plain = KazooClient(hosts=asyncio.run(main()))
    plain.start(timeout=60)
    try:
        layout = plain.get("/ledgers/LAYOUT")[0]
        assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        assert len(plain.get("/ledgers/INSTANCEID")[0]) == 36
        assert plain.get("/ledgers/00/0000/L1652")[0].startswith(
            b"BookieMetadataFormatVersion\t3\n"
        )
        assert plain.exists("/ledgers/available/readonly")
    finally:
        plain.stop()
        plain.close()


def test_a_bookie_survives_its_expired_session(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as store, opened(zookeeper_url) as client:
            registration = BookieRegistration(store, ID, INFO)
            registry = BookieRegistry(client)
            await registration.register()
            assert await registry.available() == {ID: ("127.0.0.1", 3181)}
            seen: list[bool] = []

            async def follow() -> None:
                seen.append(ID in await registry.available())

            tasks: list[asyncio.Task[None]] = []
            registry.watch(lambda: tasks.append(asyncio.create_task(follow())))
            await asyncio.to_thread(end_session_of, store)
            await eventually(lambda: seen[-1:] == [True], "the bookie was there again")
            await eventually(lambda: all(task.done() for task in tasks), "all was read")
            assert await BookieRegistry(client, cached=False).available() != {}
            registry.close()
            await registration.close()
            assert await BookieRegistry(client, cached=False).available() == {}

    asyncio.run(main())


def test_a_killed_bookie_comes_back_within_its_session_timeout(zookeeper_url: str) -> None:
    bookie = subprocess.Popen(
        [sys.executable, "-c", BOOKIE, zookeeper_url, ID], stderr=subprocess.PIPE
    )
    assert bookie.stderr is not None
    bookie.stderr.readline()

    async def main() -> None:
        async with opened(zookeeper_url) as store:  # before the kill: its session ends soon
            registry = BookieRegistry(store, cached=False)
            bookie.kill()
            bookie.wait()
            assert [*await registry.available()] == [ID], "its session lives on for a while"
            registration = BookieRegistration(store, ID, INFO, session_timeout_ms=60_000)
            await registration.register()  # waits until the server drops the old session
            await asyncio.sleep(0.5)
            assert [*await registry.available()] == [ID]
            await registration.close()

    asyncio.run(main())


def test_a_twin_is_refused(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as one, opened(zookeeper_url) as two:
            await BookieRegistration(one, ID, INFO).register()
            twin = BookieRegistration(two, ID, INFO, session_timeout_ms=200)
            with pytest.raises(BookieRegisteredError, match="another process"):
                await twin.register()
            await twin.close()
            assert [*await BookieRegistry(two).available()] == [ID]

    asyncio.run(main())


def test_cookies(zookeeper_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as store:
            instance = await LedgerManager(store).initialize()
            directories = [tmp_path / "a", tmp_path / "b"]
            for _ in range(2):
                await check_cookie(store, "/ledgers", ID, directories, instance)
            assert await store.children("/ledgers/cookies") == [ID]
            with pytest.raises(CookieError, match="journal directories"):
                await check_cookie(store, "/ledgers", ID, directories[:1], instance)

    asyncio.run(main())


def test_ledger_ids_survive_a_killed_server(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk")

    async def main() -> None:
        url = f"zk://{server.address}/root"
        async with opened(url, session_timeout_ms=30_000) as store:
            manager = LedgerManager(store)
            await manager.initialize()
            before = await manager.new_ledger_id()
            await manager.create(ledger(before))
            await asyncio.to_thread(server.kill)
            making = asyncio.create_task(manager.create(ledger(before + 100, b"waits")))
            await asyncio.to_thread(server.start)
            assert await making == 0
            assert await manager.new_ledger_id() > before
            assert await manager.ledger_ids() == [before, before + 100]

    with server:
        asyncio.run(main())


def test_ledgers_made_while_the_server_is_killed(tmp_path: Path) -> None:
    """Whatever happens to a request or its answer, a ledger that was created is ours, is there
    once, and its id is given to nobody else."""
    server = ZooKeeperServer(tmp_path / "zk")
    made: dict[int, bytes] = {}
    lost: list[MetadataUnavailableError] = []

    async def make(manager: LedgerManager, stop: asyncio.Event, name: bytes) -> None:
        while not stop.is_set():
            try:
                ledger_id = await manager.new_ledger_id()
                await manager.create(ledger(ledger_id, name))
            except MetadataUnavailableError as error:
                lost.append(error)
                continue
            assert made.setdefault(ledger_id, name) is name

    async def main() -> None:
        stop = asyncio.Event()
        url = f"zk://{server.address}/root"
        async with opened(url, session_timeout_ms=30_000) as store:
            manager = LedgerManager(store)
            await manager.initialize()
            makers = [asyncio.create_task(make(manager, stop, b"%d" % n)) for n in range(8)]
            for _ in range(3):
                before = len(made)
                await asyncio.sleep(0.4)
                await eventually(lambda: len(made) > before + 16, "ledgers are made")  # noqa: B023
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            before = len(made)
            await eventually(lambda: len(made) > before + 8, "ledgers are made again")
            stop.set()
            await asyncio.gather(*makers)
            assert {*made} <= {*await manager.ledger_ids()}
            for ledger_id, name in made.items():
                assert (await manager.read(ledger_id))[0].password == name

    with server:
        asyncio.run(main())
    assert len(made) > 50
