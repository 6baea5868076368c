"""The ledger library as other programs use it: the guide's example as processes, the synchronous
face, tails and deferred sync, against bookies as processes with a real ZooKeeper."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import magnetar.ledger as library
from magnetar.ledger import sync
from tests.scenarios.cluster import SETTINGS, BookieMachine, Cluster

pytestmark = pytest.mark.zookeeper

EXAMPLE = Path(__file__).parents[2] / "examples" / "replicated_counter.py"
GUIDE = Path(__file__).parents[2] / "docs" / "ledger-library.md"
THREE = library.LedgerConfig(
    ensemble_size=3, write_quorum=3, ack_quorum=2, explicit_lac_interval_ms=200
)


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper_url: str) -> Iterator[Callable[[int], Cluster]]:
    started: list[Cluster] = []

    def start(bookies: int) -> Cluster:
        cluster = Cluster(tmp_path, zookeeper_url, bookies)
        started.append(cluster)
        cluster.start_bookies()
        return cluster

    yield start
    for cluster in started:
        cluster.end()


class ExampleProcess:
    """``replicated_counter.py``, line by line."""

    def __init__(self, metadata_url: str, role: str) -> None:
        command = [sys.executable, str(EXAMPLE), metadata_url, role]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.guard = threading.Timer(200, self.process.kill)  # a hang ends the reads below
        self.guard.start()

    def line(self) -> str:
        """The next line that is no log message."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if not line.startswith("20"):
                return line.strip()
        raise AssertionError(f"ended with {self.process.wait()}")

    def say(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> None:
        self.guard.cancel()
        self.process.kill()
        self.process.wait()


def test_the_guides_example(start_cluster: Callable[[int], Cluster]) -> None:
    url = start_cluster(3).metadata_url
    replicas = [ExampleProcess(url, "active")]
    try:
        active = replicas[0]
        assert active.line() == "active at 0"
        standby = ExampleProcess(url, "standby")
        replicas.append(standby)
        assert standby.line() == "standing by"
        for i in range(1, 21):
            assert active.say(str(i)) == f"total {i * (i + 1) // 2}"
        while standby.say("look") != "seen 20":
            pass  # each look is a turn of its loop
        assert standby.say("take over") == "active at 210"
        assert active.say("1000").startswith("lost: ")
        assert standby.say("5") == "total 215"
        late = ExampleProcess(url, "active")
        replicas.append(late)
        assert late.line() == "active at 215"
        assert standby.say("1").startswith("lost: ")
        assert late.say("1") == "total 216"
    finally:
        for replica in replicas:
            replica.end()


def test_the_guide_shows_the_example_as_it_is() -> None:
    guide, example = GUIDE.read_text(), EXAMPLE.read_text()
    shown = [part.split("```")[0] for part in guide.split("```python\n")[1:]]
    from_example = [part for part in shown if part.startswith("    async def ")]
    assert len(from_example) >= 2
    for part in from_example:
        assert part.strip() in example


def test_the_synchronous_face(start_cluster: Callable[[int], Cluster]) -> None:
    url = start_cluster(3).metadata_url
    with sync.connect(url, THREE) as client:
        with client.create({"owner": b"script"}) as writer:
            assert writer.add(b"first") == 0
            assert writer.add_all(b"%d" % i for i in range(5000)) == 5000
        with client.open(writer.ledger_id) as reader:
            assert reader.closed
            payloads = [bytes(entry.payload) for entry in reader]
            assert payloads == [b"first", *(b"%d" % i for i in range(5000))]
            last = reader.read_last()
            assert last is not None
            assert (last.entry_id, bytes(last.payload)) == (5000, b"4999")
        listed = client.read_list("mine")
        assert listed == ((), -1)
        listed = client.write_list("mine", [writer.ledger_id], listed.version)
        with pytest.raises(library.BadVersionError):
            client.write_list("mine", [], -1)
        assert client.read_list("mine") == listed
        client.delete(writer.ledger_id)
        client.delete(writer.ledger_id, missing_ok=True)
        with pytest.raises(library.NoSuchLedgerError):
            client.delete(writer.ledger_id)
        with pytest.raises(library.NoSuchLedgerError):
            client.open(writer.ledger_id)


def test_a_script_follows_what_another_writes(start_cluster: Callable[[int], Cluster]) -> None:
    url = start_cluster(3).metadata_url
    seen: list[bytes] = []
    with sync.connect(url, THREE) as writing, sync.connect(url, THREE) as reading:
        writer = writing.create()

        def follow() -> None:
            with reading.open_no_recovery(writer.ledger_id) as tail:
                seen.extend(bytes(entry.payload) for entry in tail.follow())

        follower = threading.Thread(target=follow)
        follower.start()
        for i in range(100):
            writer.add(b"%d" % i)
        with writing.open_no_recovery(writer.ledger_id) as tail:
            assert tail.wait_past(98, timeout_s=60) == 99  # the writer is idle, and says so
        writer.close()
        follower.join(60)
        assert not follower.is_alive()
    assert seen == [b"%d" % i for i in range(100)]


def test_two_scripts_fence_each_other(start_cluster: Callable[[int], Cluster]) -> None:
    url = start_cluster(3).metadata_url
    with sync.connect(url, THREE) as one, sync.connect(url, THREE) as two:
        writer = one.create()
        writer.add_all([b"a", b"b"])
        assert two.open(writer.ledger_id).last_add_confirmed == 1
        with pytest.raises(library.LedgerFencedError):
            writer.add(b"c")
        assert writer.close().last_entry_id == 1  # where the other one has closed it


def test_deferred_sync_and_force(start_cluster: Callable[[int], Cluster]) -> None:
    cluster = start_cluster(3)

    async def run() -> None:
        async with library.connect(cluster.metadata_url, THREE) as client:
            writer = await client.create(deferred_sync_unsafe=True)
            assert await writer.add([b"one", b"two"]) == 0
            assert writer.last_add_confirmed == -1
            await writer.force()
            assert writer.last_add_confirmed == 1
            await writer.add([b"three"])
            cluster.bookies[0].kill()
            cluster.bookies[0].start()

            async def one_more() -> None:
                await writer.add([b"four"])
                await writer.force()

            with pytest.raises(library.LedgerError):
                await one_more()
            closed = await writer.close()
            assert closed.last_entry_id == 1
            reader = await client.open(writer.ledger_id)
            entries = await reader.read(0, 10, 1000)
            assert [bytes(entry.payload) for entry in entries] == [b"one", b"two"]

    asyncio.run(run())


def test_an_address_that_cannot_be_used() -> None:
    with pytest.raises(library.MagnetarError, match="accepted: zk://"):
        sync.connect("http://localhost")


def test_a_client_closed_in_mid_write_leaves_nothing_behind(
    start_cluster: Callable[[int], Cluster],
) -> None:
    url = start_cluster(3).metadata_url
    before = threading.active_count()
    with sync.connect(url, THREE) as client:
        writer = client.create()
        writer.add_all([b"x"] * 100)
        tail = client.open_no_recovery(writer.ledger_id)
        assert tail.wait_past(98, timeout_s=60) == 99
    assert not [t for t in threading.enumerate() if t.name == "magnetar-ledger"]
    assert threading.active_count() <= before
    with sync.connect(url, THREE) as client:
        assert client.open(writer.ledger_id).last_add_confirmed == 99


def test_reads_go_on_while_a_bookie_hangs(start_cluster: Callable[[int], Cluster]) -> None:
    """The bookie that a ledger's reads go to first is stopped: connected, and silent."""
    cluster = start_cluster(3)
    patient = replace(THREE, read_timeout_ms=60_000)
    with sync.connect(cluster.metadata_url, patient) as client:
        with client.create() as writer:
            writer.add_all(b"%d" % i for i in range(2000))
        with client.open(writer.ledger_id) as reader:
            for entry_id in range(50):  # what is usual
                reader.read(entry_id, max_entries=1)
            bookies = reader.metadata.fragments[0].bookies
            hung = cluster.bookie(bookies[writer.ledger_id % 3])
            hung.role.pause()
            try:
                began_s = time.monotonic()
                assert [bytes(entry.payload) for entry in reader] == [
                    b"%d" % i for i in range(2000)
                ]
                seconds = time.monotonic() - began_s
            finally:
                hung.role.resume()
            assert seconds < patient.read_timeout_ms / 1000 / 2, "nobody waited for a time-out"


def test_bookies_tell_where_they_stand(tmp_path: Path, zookeeper_url: str) -> None:
    cluster = Cluster(tmp_path, zookeeper_url, 0)
    for index in range(4):
        told = (*SETTINGS, "--set", f"bookie.rack=r{index // 3}")
        cluster.bookies.append(BookieMachine(tmp_path, index, zookeeper_url, told))
    try:
        cluster.start_bookies()
        config = replace(
            THREE, ensemble_size=2, write_quorum=2, placement_domain="rack", placement_enforced=True
        )
        with sync.connect(zookeeper_url, config) as client:
            for _ in range(5):
                with client.create() as writer:
                    writer.add(b"x")
                names = client.read_metadata(writer.ledger_id).fragments[0].bookies
                assert cluster.bookies[3].bookie_id in names, "the only one in the other rack"
            three = replace(config, ensemble_size=4, write_quorum=2)
            refused = pytest.raises(library.NotEnoughBookiesError, match="2 racks in every")
            with sync.connect(zookeeper_url, three) as wide, refused:
                wide.create()
    finally:
        cluster.end()
