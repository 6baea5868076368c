"""The ZooKeeper store against a real server: the common suite, sessions, broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import CreateMode, MetadataStore, SessionState, Versioned
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from magnetar.log.managed.node import RecordNode
from magnetar.model.errors import (
    BadVersionError,
    ConfigError,
    LogFencedError,
    MetadataError,
    MetadataUnavailableError,
    NoNodeError,
    SessionExpiredError,
)
from magnetar.repair.marks import ShortageMarks
from tests.scenarios.link import Link
from tests.unit.env.metadata_contract import MetadataContract, Tree, eventually

pytestmark = pytest.mark.zookeeper

LOOP_STALL_S_MAX = 0.5
"""Far below any of kazoo's waits."""
BEAT_S = 0.01


class TestZooKeeperContract(MetadataContract):
    @pytest.fixture
    def tree(self, zookeeper_url: str) -> Tree:
        return Tree(lambda: ZooKeeperMetadataStore.open(zookeeper_url))


@asynccontextmanager
async def opened(
    url: str, session_timeout_ms: int = 10_000, operation_timeout_ms: int = 15_000
) -> AsyncIterator[ZooKeeperMetadataStore]:
    store = await ZooKeeperMetadataStore.open(
        url, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def responsive_loop() -> AsyncIterator[None]:
    """Fails if the loop stood still meanwhile. Time is told by another thread of the process: when
    the machine gives the whole process none, that is not the loop's fault."""
    beats = 0
    ended = threading.Event()
    stalls: list[int] = []

    def count() -> None:
        nonlocal beats
        while not ended.wait(BEAT_S):
            beats += 1

    async def beat() -> None:
        while True:
            before = beats
            await asyncio.sleep(BEAT_S)
            stalls.append(beats - before)

    thread = threading.Thread(target=count, name="beats")
    thread.start()
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        ended.set()
        thread.join()
    assert max(stalls) * BEAT_S < LOOP_STALL_S_MAX


def end_session_of(store: ZooKeeperMetadataStore) -> None:
    """What a partition of more than the session timeout does, at once: a second client takes the
    session over and closes it. Blocking."""
    ended = store.session
    assert ended is not None
    for _ in range(20):
        intruder = KazooClient(hosts=store.address.hosts, client_id=ended)
        intruder.start(timeout=60)
        intruder.stop()
        intruder.close()
        # The store comes back with its session at once, and may take it over from the intruder
        # before that has closed it.
        deadline_s = time.monotonic() + 5
        while store.session in (None, ended) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        if store.session != ended:
            return
    raise AssertionError("the session does not end")


# -- two sessions ---------------------------------------------------------------------------------


def test_sessions_see_each_other(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as one:
            told: list[str] = []
            one.watch("/shared", told.append)

            async def shows(names: list[str]) -> None:
                """To who reads after each time that it is told; what is told while it reads may
                be of what it reads, and is no word of what comes after it."""
                while True:
                    await eventually(lambda: bool(told), f"the first session was told of {names}")
                    told.clear()
                    if await one.children("/shared") == names:
                        return

            async with opened(zookeeper_url) as two:
                await two.create("/shared/e", b"", CreateMode.EPHEMERAL)
                await shows(["e"])
            await shows([])

    asyncio.run(main())


def test_a_watched_node_costs_two_requests_and_each_change_of_it_two_more(
    zookeeper_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To set the watch, and to read; a thousand topics that come at once ask for a thousand."""
    asked: list[str] = []
    call = KazooClient._call

    def counted(self: KazooClient, request: object, result: object) -> object:
        asked.append(type(request).__name__)
        return call(self, request, result)

    async def main() -> None:
        async with opened(zookeeper_url) as store, opened(zookeeper_url) as other:
            await other.create("/counted", b"1")
            monkeypatch.setattr(store._client, "_call", partial(counted, store._client))
            nodes = WatchedNodes(store, lambda _path, value: value or b"none")
            assert await nodes.get("/counted") == b"1"
            assert await nodes.get("/counted/none") == b"none"
            assert sorted(asked) == ["Exists", "Exists", "GetData", "GetData"]
            asked.clear()
            changed = asyncio.Event()
            nodes.watch_changes(lambda _path: changed.set())
            await other.put("/counted", b"2", 0)
            await changed.wait()
            assert await nodes.get("/counted") == b"2"
            assert sorted(asked) == ["Exists", "GetData"]
            nodes.close()

    asyncio.run(main())


def test_compare_and_set_between_sessions(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as one, opened(zookeeper_url) as two:
            await one.create("/cas", b"0")

            async def count(store: ZooKeeperMetadataStore) -> None:
                done = 0
                while done < 50:
                    value, version = await store.get("/cas")
                    try:
                        await store.put("/cas", b"%d" % (int(value) + 1), version)
                    except BadVersionError:
                        continue
                    done += 1

            await asyncio.gather(count(one), count(two))
            assert await one.get("/cas") == Versioned(b"100", 100)

    asyncio.run(main())


def test_a_store_knows_which_session_it_was_granted(zookeeper_url: str) -> None:
    """The ensemble may grant less than was asked for: others take over after that."""

    async def run() -> None:
        for asked_ms, granted_s in ((90_000, 60.0), (10_000, 10.0)):  # at most a minute here
            async with opened(zookeeper_url, session_timeout_ms=asked_ms) as store:
                found = store.granted_s()
                assert found is not None
                assert abs(found - granted_s) < 0.01

    asyncio.run(run())


def test_servers_that_take_no_connection_cost_no_session(zookeeper_url: str) -> None:
    """One that is cut off cost the whole session timeout, one that stands still a third of it."""
    real, _, root = zookeeper_url.removeprefix("zk://").partition("/")
    with contextlib.ExitStack() as stack:
        still, cut_off = (socket.create_server(("127.0.0.1", 0), backlog=0) for _ in range(2))
        for each in (still, cut_off):
            stack.enter_context(each)
        for _ in range(3):  # a queue that is full lets requests for connections go unanswered
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(cut_off.getsockname())
        hosts = [real, *(f"127.0.0.1:{each.getsockname()[1]}" for each in (still, cut_off))]

        async def run() -> None:
            for _ in range(6):  # the order in which they are tried is drawn each time
                begun_s = time.monotonic()
                async with opened(f"zk://{','.join(hosts)}/{root}", session_timeout_ms=9_000):
                    assert time.monotonic() - begun_s < 2.9

        asyncio.run(run())


def test_a_server_that_is_cut_off_is_left_in_time(zookeeper_url: str) -> None:
    """Whoever asked all the time found another one only when the session was over."""
    real, _, root = zookeeper_url.removeprefix("zk://").partition("/")

    async def run(link: Link) -> None:
        url, told = f"zk://{link.address}/{root}", list[SessionState]()
        async with opened(url, session_timeout_ms=6_000) as store:
            session = await store.session_id()
            store._client.set_hosts(real)  # the next one
            end = store.watch_session(told.append)
            link.cut()
            cut_s = time.monotonic()
            while SessionState.CONNECTED not in told and time.monotonic() - cut_s < 15:
                with contextlib.suppress(MetadataError, TimeoutError):
                    async with asyncio.timeout(0.1):
                        await store.get("/")
                await asyncio.sleep(0.05)
            assert time.monotonic() - cut_s < 5.5
            assert told == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert await store.session_id() == session
            end()

    with Link(real) as link:
        asyncio.run(run(link))


# -- an expired session ---------------------------------------------------------------------------


def test_a_mark_that_was_made_again_is_not_taken_for_the_one_before(zookeeper_url: str) -> None:
    """A slow worker has read a mark, and its session ends: another takes over, takes the mark away,
    and the ledger is marked anew, at version 0 as before."""

    async def main() -> None:
        async with opened(zookeeper_url) as one, opened(zookeeper_url) as other:
            slow, quick = ShortageMarks(one), ShortageMarks(other)
            await quick.initialize()
            await quick.mark(7, ["b1"], 1000)
            late, mark = await slow.lock(7, "slow"), await slow.read(7)
            assert late is not None
            assert mark is not None
            await asyncio.to_thread(end_session_of, one)
            assert await one.session_id() != late.session_id
            lock = await quick.lock(7, "quick")
            assert lock is not None
            assert await quick.unmark(lock, mark.version)
            await quick.mark(7, ["b2"], 2000)
            with pytest.raises(SessionExpiredError):
                await slow.unmark(late, mark.version)
            await slow.unlock(late._replace(holder="quick"))  # as if it had seen its own
            assert await quick.holder(7) == "quick"
            found = await quick.read(7)
            assert found is not None
            assert found.bookies == ("b2",)
            assert await quick.unmark(lock, found.version)

    asyncio.run(main())


def test_a_record_that_was_made_again_is_not_written_by_its_former_owner(
    zookeeper_url: str,
) -> None:
    async def opened_record(store: MetadataStore) -> RecordNode[bytes]:
        node = await RecordNode.load_or_create(store, "/log", bytes, bytes, b"first")
        await node.update(lambda record: record + b"+")
        return node

    async def main() -> None:
        async with opened(zookeeper_url) as one, opened(zookeeper_url) as other:
            late = await opened_record(one)
            await asyncio.to_thread(end_session_of, one)
            await one.session_id()  # there is another one
            await other.delete("/log")
            node = await opened_record(other)
            assert node.stored == late.stored
            with pytest.raises(LogFencedError):
                await late.update(lambda record: record + b" and on")
            await node.update(lambda record: record + b"!")
            assert (await one.get("/log")).value == b"first+!"

    asyncio.run(main())


def test_an_expired_session_is_told_and_its_nodes_are_gone(zookeeper_url: str) -> None:
    async def main() -> None:
        async with opened(zookeeper_url) as store, opened(zookeeper_url) as witness:
            states: list[SessionState] = []
            end = store.watch_session(states.append)
            await store.create("/e", b"", CreateMode.EPHEMERAL)
            await store.create("/p", b"")
            told: list[str] = []
            store.watch("/e", told.append)
            before = store.session
            async with responsive_loop():
                await asyncio.to_thread(end_session_of, store)
                await eventually(
                    lambda: states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED],
                    "the store told of the expiry and connected again",
                )
            assert store.session is not None
            assert store.session[0] != before[0]  # type: ignore[index]
            for other in (witness, store):
                with pytest.raises(NoNodeError):
                    await other.get("/e")
                assert await other.get("/p") == Versioned(b"", 0)
            assert told, "what happened to a watched path while away is told on return"
            told.clear()
            await witness.create("/e", b"new")
            await eventually(lambda: bool(told), "the watch lives on in the new session")
            end()
            states.clear()
            await store.create("/e2", b"", CreateMode.EPHEMERAL)
        assert states == []

    asyncio.run(main())


def test_nodes_in_memory_follow_other_sessions_and_survive_an_expiry(zookeeper_url: str) -> None:
    def count(_path: str, value: bytes | None) -> int:
        return -1 if value is None else int(value)

    async def main() -> None:
        async with opened(zookeeper_url) as store, opened(zookeeper_url) as other:
            nodes = WatchedNodes(store, count)

            async def shows(value: int) -> None:
                async with asyncio.timeout(30):
                    while await nodes.get("/n") != value:  # noqa: ASYNC110 - the store tells the nodes, not us
                        await asyncio.sleep(0.01)

            assert await nodes.get("/n") == -1
            await other.create("/n", b"1")
            await shows(1)
            await other.put("/n", b"2", -1)
            await shows(2)
            await expire_once(store)
            await other.put("/n", b"3", -1)
            await shows(3)
            await other.delete("/n")
            await shows(-1)
            nodes.close()

    asyncio.run(main())


async def expire_once(store: ZooKeeperMetadataStore) -> None:
    """End the store's session from outside and wait until it has another."""
    states: list[SessionState] = []
    end_watch = store.watch_session(states.append)
    await asyncio.to_thread(end_session_of, store)
    while SessionState.CONNECTED not in states:  # noqa: ASYNC110 - states come by a callback
        await asyncio.sleep(0.01)
    end_watch()


def test_writes_under_way_while_the_session_expires(zookeeper_url: str) -> None:
    """At the moment of one expiry every write may just have been answered: several are tried."""

    async def main() -> None:
        async with opened(zookeeper_url) as store:
            await store.create("/n", b"")
            failures: list[MetadataError] = []
            done = asyncio.Event()

            async def write() -> None:
                while not done.is_set():
                    try:
                        await store.put("/n", b"", -1)
                    except (SessionExpiredError, MetadataUnavailableError) as error:
                        failures.append(error)

            writers = [asyncio.create_task(write()) for _ in range(8)]
            async with asyncio.timeout(120):
                for _ in range(10):
                    await expire_once(store)
                    if failures:
                        break
                done.set()
                await asyncio.gather(*writers)
            assert failures, "a write under way is told that it may not have happened"
            version = (await store.get("/n")).version
            assert await store.put("/n", b"", version) == version + 1

    asyncio.run(main())


# -- a server that goes away ----------------------------------------------------------------------


def test_a_restarted_server_keeps_session_nodes_and_watches(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk")

    async def main() -> None:
        url = f"zk://{server.address}/root"
        # A busy machine takes its time to start the server again.
        async with opened(url, session_timeout_ms=60_000, operation_timeout_ms=50_000) as store:
            states: list[SessionState] = []
            told: list[str] = []
            store.watch_session(states.append)
            await store.create("/e", b"1", CreateMode.EPHEMERAL)
            store.watch("/e", told.append)
            await asyncio.to_thread(server.kill)
            await eventually(lambda: SessionState.SUSPENDED in states, "the loss was told")
            reading = asyncio.create_task(store.get("/e"))  # waits for the server to return
            await asyncio.to_thread(server.start)
            assert await reading == Versioned(b"1", 0)
            assert SessionState.EXPIRED not in states
            assert states[-1] is SessionState.CONNECTED
            told.clear()
            assert await store.put("/e", b"2", 0) == 1
            await eventually(lambda: bool(told), "the watch was armed again")

    with server:
        asyncio.run(main())


def test_a_silent_server_is_noticed_while_it_is_asked(tmp_path: Path) -> None:
    """kazoo puts off its own look with each request: it would go on asking for as long as there is
    something to ask, while the ensemble has given the session to others."""

    async def main() -> None:
        pid, states = server.pid, list[SessionState]()
        assert pid is not None
        url = f"zk://{server.address}/root"
        async with opened(url, session_timeout_ms=4_000, operation_timeout_ms=60_000) as store:
            store.watch_session(states.append)
            await store.create("/there", b"")
            asked: set[asyncio.Task[Versioned]] = set()
            stopped_s = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            try:
                deadline_s = time.monotonic() + 60
                while SessionState.SUSPENDED not in states and time.monotonic() < deadline_s:
                    asked.add(asyncio.create_task(store.get("/there")))
                    await asyncio.sleep(0.1)
                # What is sent now and not heard is none of it.
                since_s = time.monotonic() - store.silent_s()
                assert since_s < stopped_s + 0.5
            finally:
                os.kill(pid, signal.SIGCONT)
            assert states == [SessionState.SUSPENDED]
            for each in asyncio.as_completed(asked):
                assert (await each).value == b""
            assert states.count(SessionState.SUSPENDED) == 1
            assert states[-1] is SessionState.CONNECTED
            assert time.monotonic() - store.silent_s() > stopped_s + 0.5

    with ZooKeeperServer(tmp_path / "zk") as server:
        asyncio.run(main())


def test_operations_on_a_lost_server_fail_in_bounded_time(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk")

    async def main() -> None:
        url = f"zk://{server.address}/root"
        async with opened(url, operation_timeout_ms=1_000) as store:
            await store.create("/a", b"")
            await asyncio.to_thread(server.kill)
            async with responsive_loop(), asyncio.timeout(40):
                for attempt in (store.get("/a"), store.put("/a", b"", -1), store.create("/b", b"")):
                    with pytest.raises(MetadataUnavailableError, match=server.address):
                        await attempt
                await store.close()

    with server:
        asyncio.run(main())


def test_a_write_whose_connection_breaks_says_that_and_no_time(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk")

    async def main() -> None:
        async with opened(f"zk://{server.address}/root") as store:
            await store.create("/a", b"")
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            writing = asyncio.create_task(store.put("/a", b"", -1))
            await asyncio.sleep(0.5)  # it is sent
            await asyncio.to_thread(server.kill)
            async with asyncio.timeout(40):
                with pytest.raises(MetadataUnavailableError, match="lost before it answered, chan"):
                    await writing
                await store.close()

    with server:
        asyncio.run(main())


def test_nobody_there_is_a_clear_error_soon() -> None:
    async def main() -> None:
        url = f"zk://127.0.0.1:{free_port()}/root"
        async with responsive_loop(), asyncio.timeout(30):
            with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:\d+.* check that"):
                await ZooKeeperMetadataStore.open(url, operation_timeout_ms=500)

    asyncio.run(main())


def test_closing_wakes_who_waits(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk")

    async def main() -> None:
        store = await ZooKeeperMetadataStore.open(f"zk://{server.address}/")
        await asyncio.to_thread(server.kill)
        reading = asyncio.create_task(store.get("/zookeeper"))
        await asyncio.sleep(0.3)
        async with asyncio.timeout(40):
            await store.close()
            with pytest.raises(MetadataUnavailableError):
                await reading

    with server:
        asyncio.run(main())


# -- the server process ---------------------------------------------------------------------------


def test_a_taken_port_is_a_clear_error(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    second = ZooKeeperServer(tmp_path / "second", zookeeper.port)
    with pytest.raises(ConfigError, match=f"{zookeeper.port}"):
        second.start()
    assert second.pid is None


def test_a_server_that_was_left_behind_is_named(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zk") as server:
        with pytest.raises(ConfigError, match=f"process {server.pid} is a ZooKeeper server"):
            ZooKeeperServer(tmp_path / "zk", server.port).start()
        assert server.exit_code() is None
    assert not (tmp_path / "zk" / "zookeeper.pid").exists()


def test_data_survives_a_stop(tmp_path: Path) -> None:
    async def write(url: str) -> None:
        async with opened(url) as store:
            await store.create("/kept", b"1")

    async def read(url: str) -> Versioned:
        async with opened(url) as store:
            return await store.get("/kept")

    for scenario in (write, read):
        with ZooKeeperServer(tmp_path / "zk") as server:
            result = asyncio.run(scenario(f"zk://{server.address}/root"))
    assert result == Versioned(b"1", 0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("PATH", "/nowhere", "install"), ("JAVA_HOME", "/nowhere", "JAVA_HOME")],
)
def test_without_java(
    name: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        ZooKeeperServer(tmp_path).start()


def test_without_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'magnetar\[spark\]'"):
        ZooKeeperServer(tmp_path).start()
