"""``magnetar standalone`` as users run it: a process, the official client, REST, commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.config import LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connections.channel import Address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.ids import BookieId
from tests.standalone import Standalone

QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


def connected(platform: Standalone) -> pulsar.Client:
    return pulsar.Client(platform.service_url, operation_timeout_seconds=60, logger=QUIET)


def publish(platform: Standalone, topic: str, bodies: list[bytes]) -> None:
    """Every body was acknowledged when this returns."""
    client = connected(platform)
    producer = client.create_producer(topic, batching_enabled=False)
    for body in bodies:
        producer.send(body)
    client.close()


def read_all(platform: Standalone, topic: str, count: int) -> list[bytes]:
    client = connected(platform)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]
    assert not reader.has_message_available()
    client.close()
    return found


def magnetar(
    *arguments: str, platform: Standalone | None = None
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if platform is not None:
        environment["MAGNETAR_URL"] = platform.http_url
        environment["MAGNETAR_SERVICE_URL"] = platform.service_url
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone") / "data") as running:
        yield running


# -- one platform, many questions -----------------------------------------------------------------


def test_the_ready_line_tells_where(platform: Standalone) -> None:
    assert platform.service_url in platform.ready_line
    assert platform.http_url in platform.ready_line
    assert str(platform.data_dir) in platform.ready_line


def test_rest_answers_for_real(platform: Standalone) -> None:
    publish(platform, "rest", [b"one", b"two"])
    with httpx.Client(base_url=platform.http_url, trust_env=False, timeout=60) as rest:
        assert rest.get("/admin/v2/brokers/health").text == "ok"
        lookup = rest.get("/lookup/v2/topic/persistent/public/default/rest").json()
        assert lookup["brokerUrl"] == platform.service_url
        assert lookup["httpUrl"] == platform.http_url
        base = "/admin/v2/persistent/public/default"
        assert "persistent://public/default/rest" in rest.get(base).json()
        stats = rest.get(f"{base}/rest/stats").json()
        assert stats["entriesInCounter"] == 2
        internal = rest.get(f"{base}/rest/internalStats").json()
        assert internal["numberOfEntries"] == 2
        ledger_id = internal["ledgers"][0]["ledgerId"]
        entries = rest.get(f"/magnetar/v1/ledgers/{ledger_id}/entries").json()
        assert entries[0]["message"]["messages"] == 1
        (bookie,) = rest.get("/magnetar/v1/bookies").json()
        waiting = bookie.pop("waitingSpace")
        assert bookie == {"bookieId": "bookie-0", "available": True, "local": True}
        assert (waiting["byteCount"], waiting["deletedLedgers"]) == (0, 0)
        assert rest.put(f"{base}/new/partitions", json=3).status_code == 204
        assert rest.put(f"{base}/new/partitions", json=3).status_code == 409
        assert rest.get(f"{base}/new/partitions").json() == {"partitions": 3}
        assert rest.put(f"{base}/rest/partitions", json=3).status_code == 409
        assert rest.delete(f"{base}/new/partitions").status_code == 204
        assert rest.get(f"{base}/none/stats").status_code == 404
        assert rest.put("/admin/v2/tenants/private", json={}).status_code == 204
        assert rest.put("/admin/v2/namespaces/private/auth", json={}).status_code == 204
        assert rest.get("/admin/v2/namespaces/private").json() == ["private/auth"]
        metrics = rest.get("/metrics").text
        published = re.search(r"^magnetar_broker_published_entries_total (\S+)", metrics, re.M)
        assert published is not None
        assert float(published[1]) >= 2
        assert "process_resident_memory_bytes" in metrics
        budgets = dict(re.findall(r"^magnetar_(\w+) (\S+)$", metrics, re.M))
        assert float(budgets["receive_bytes_max"]) == 128 << 20
        assert float(budgets["unsent_bytes_max"]) == 256 << 20
        assert 0 < float(budgets["descriptors"]) < float(budgets["descriptors_max"])


def test_the_command_line_publishes_and_consumes(platform: Standalone) -> None:
    done = magnetar("produce", "cli", "-m", "hello", "-m", "world", "--key", "k", platform=platform)
    assert done.returncode == 0, done.stderr
    assert "published 2" in done.stderr
    consume = ("consume", "cli", "--subscription", "s", "--from", "earliest")
    first = magnetar(*consume, "--count", "1", platform=platform)
    assert (first.returncode, first.stdout) == (0, "hello\n"), first.stderr
    second = magnetar(*consume, "--count", "1", "--json", platform=platform)
    assert '"data": "world"' in second.stdout, "the subscription goes on where it was"
    nothing = magnetar(*consume, "--count", "1", "--timeout", "0.5", platform=platform)
    assert nothing.returncode == 1
    made = magnetar("produce", "cli", "--count", "500", "--size", "64", platform=platform)
    assert "published 500" in made.stderr
    stats = magnetar("topics", "stats", "cli", platform=platform)
    assert "cli" in stats.stdout


def test_messages_show_in_their_ledger(platform: Standalone) -> None:
    publish(platform, "shown", [b"look at me"])
    listed = magnetar("ledger", "list", "--json", platform=platform)
    assert listed.returncode == 0, listed.stderr
    base = f"{platform.http_url}/admin/v2/persistent/public/default/shown/internalStats"
    ledger = httpx.get(base, trust_env=False, timeout=60).json()["ledgers"][0]["ledgerId"]
    read = magnetar("ledger", "read", str(ledger), platform=platform)
    assert "look at me" in read.stdout
    assert magnetar("ledger", "show", str(ledger), platform=platform).returncode == 0


def test_wrong_uses_of_the_commands(platform: Standalone) -> None:
    missing = magnetar("topics", "stats", "missing", platform=platform)
    assert missing.returncode == 1
    assert "does not exist" in missing.stderr
    silent = magnetar("produce", "x", "-m", "y", "--service-url", "pulsar://127.0.0.1:9")
    assert silent.returncode == 1
    assert "is a platform running there?" in silent.stderr
    for done in (missing, silent):
        assert "Traceback" not in done.stderr


def test_its_data_directory_is_its_own(platform: Standalone) -> None:
    ports = ("--broker-port", "0", "--http-port", "0")
    second = magnetar("standalone", "--data-dir", str(platform.data_dir), *ports)
    assert second.returncode == 1
    assert f"in use by magnetar standalone, process {platform.pid}" in second.stderr


@pytest.mark.parametrize(
    ("flag", "setting"), [("--broker-port", "broker.port"), ("--http-port", "http.port")]
)
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, flag: str, setting: str) -> None:
    other = "--http-port" if flag == "--broker-port" else "--broker-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = magnetar("standalone", "--data-dir", str(tmp_path / "d"), flag, port, other, "0")
    assert done.returncode == 1
    assert f"{setting} = {port}: another process listens" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = magnetar("standalone", "--data-dir", str(tmp_path / "file" / "d"))
    assert done.returncode == 1
    assert "cannot use the data directory" in done.stderr


# -- starting and ending --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_and_keeps_everything(tmp_path: Path, number: signal.Signals) -> None:
    bodies = [f"message {n}".encode() for n in range(100)]
    with Standalone(tmp_path / "data") as platform:
        publish(platform, "t", bodies)
        assert platform._end(number) == 0
        platform.start()
        assert read_all(platform, "t", 100) == bodies


def test_it_comes_back_after_a_kill_with_every_acknowledged_message(tmp_path: Path) -> None:
    bodies = [f"message {n}".encode() for n in range(200)]
    with Standalone(tmp_path / "data") as platform:
        for start in range(0, 200, 50):
            publish(platform, "t", bodies[start : start + 50])
            platform.kill()
            platform.start()
        assert read_all(platform, "t", 200) == bodies


def test_what_a_lost_journal_had_is_given_up_by_an_operators_word(tmp_path: Path) -> None:
    """No other bookie has it: without that word the topic could never be opened again."""
    platform = Standalone(tmp_path / "data")
    with platform:
        publish(platform, "t", [b"stored"])
        assert platform.stop() == 0
        platform.start()
        publish(platform, "t", [b"lost"])
        platform.kill()
        for path in platform.data_dir.glob("bookie-0/journal/*.journal"):
            path.unlink()
        platform.start()
        told = magnetar("health", platform=platform)
        assert told.returncode == 1
        assert "--leave-limbo" in told.stdout
        assert platform.stop() == 0
        platform.arguments = ("--leave-limbo",)
        platform.start()
        publish(platform, "t", [b"new"])
        assert read_all(platform, "t", 2) == [b"stored", b"new"]


def test_a_metadata_store_that_went_back_does_not_start(tmp_path: Path) -> None:
    """Its topics would lack their last messages, and the ledgers of those be deleted."""
    platform = Standalone(tmp_path / "data")
    with platform:
        publish(platform, "t", [b"first"])
        assert platform.stop() == 0
        platform.start()
        publish(platform, "t", [b"second"])
        platform.kill()
        (platform.data_dir / "metadata.sqlite-wal").unlink()
        with pytest.raises(RuntimeError, match="ended with 1"):
            platform.start()
        platform.kill()  # it has ended
        assert "metadata.sqlite-wal was damaged" in platform.log_path.read_text()
        platform.arguments = ("--leave-limbo",)
        platform.start()
        publish(platform, "t", [b"third"])
        assert read_all(platform, "t", 2) == [b"first", b"third"]


def test_acknowledgements_outlive_a_restart(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as platform:
        publish(platform, "t", [b"%d" % n for n in range(10)])
        client = connected(platform)
        options = {"initial_position": pulsar.InitialPosition.Earliest}
        consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, **options)
        for _ in range(10):
            message = consumer.receive(timeout_millis=60_000)
            if int(message.data()) % 3:
                consumer.acknowledge(message)
        client.close()
        assert platform.stop() == 0
        platform.start()
        client = connected(platform)
        consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
        again = sorted(int(consumer.receive(timeout_millis=60_000).data()) for _ in range(4))
        assert again == [0, 3, 6, 9]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=300)
        client.close()


def test_an_idle_platform_sleeps(tmp_path: Path) -> None:
    """No part polls: a handful of timers, far apart, is all that runs. Where starting takes long,
    its end may reach into the first looks."""
    with Standalone(tmp_path / "data", "--bookies", "3") as platform:
        time.sleep(1)
        looks: list[int] = []
        while len(looks) < 10 and (not looks or looks[-1] >= 150):
            before = switches(platform.pid)
            time.sleep(3)
            looks.append(switches(platform.pid) - before)
        assert looks[-1] < 150, looks


def switches(pid: int) -> int:
    """How often threads of the process have gone to sleep, and so have woken."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total


# -- several bookies ------------------------------------------------------------------------------


def test_three_bookies_hold_three_copies_that_tcp_clients_read(tmp_path: Path) -> None:
    bodies = [f"message {n}".encode() for n in range(20)]
    with Standalone(tmp_path / "data", "--bookies", "3") as platform:
        publish(platform, "t", bodies)
        url = f"{platform.http_url}/admin/v2/persistent/public/default/t/internalStats"
        ledger_id = httpx.get(url, trust_env=False, timeout=60).json()["ledgers"][0]["ledgerId"]
        copies = asyncio.run(read_over_tcp(platform.data_dir, ledger_id, len(bodies)))
    ports = ("--broker-port", "0", "--http-port", "0")
    fewer = magnetar("standalone", "--data-dir", str(tmp_path / "data"), *ports, "--bookies", "2")
    assert (fewer.returncode, "start with --bookies 3" in fewer.stderr) == (1, True)
    assert sorted(copies) == ["bookie-0", "bookie-1", "bookie-2"]
    for entries in copies.values():
        assert [
            body for body, entry in zip(bodies, entries, strict=True) if body in entry
        ] == bodies


async def read_over_tcp(data_dir: Path, ledger_id: int, count: int) -> dict[str, list[bytes]]:
    """The entries of a ledger as each of its bookies gives them over BookKeeper's protocol."""
    store = await SqliteMetadataStore.open(data_dir / "metadata.sqlite", read_only=True)
    registry = BookieRegistry(store, cached=False)

    async def resolve(bookie_id: BookieId) -> Address:
        return (await registry.all())[bookie_id]

    async def available() -> list[BookieId]:
        return list(await registry.available())

    pool = ConnectionPool(resolve, available)
    manager = LedgerManager(store)
    await manager.initialize(create=False)
    metadata = await LedgerClient(manager, pool, LedgerConfig()).read_metadata(ledger_id)
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
    copies = {}
    for bookie_id in metadata.fragments[-1].bookies:
        client = pool.client(bookie_id)
        copies[str(bookie_id)] = [await client.read_entry(ledger_id, n) for n in range(count)]
    await pool.close()
    await store.close()
    return copies


# -- space ----------------------------------------------------------------------------------------


def test_the_space_of_a_deleted_topic_comes_back(tmp_path: Path) -> None:
    settings = (
        "collect_interval_ms=200",
        "collect_grace_ms=0",
        "flush_interval_ms=200",
        "entry_log_bytes_max=1MiB",
    )
    flags = [word for setting in settings for word in ("--set", f"bookie.{setting}")]
    ledgers = tmp_path / "data" / "bookie-0" / "ledgers"
    with Standalone(tmp_path / "data", *flags) as platform:
        publish(platform, "kept", [b"keep me"])
        publish(platform, "t", [os.urandom(512 << 10) for _ in range(32)])
        wait_until(lambda: stored_bytes(ledgers) > 16 << 20)
        assert magnetar("topics", "delete", "t", platform=platform).returncode == 0
        wait_until(lambda: stored_bytes(ledgers) < 4 << 20)
        said = magnetar("ledger", "list", platform=platform).stdout
        assert re.search(r"bookie-0: \S+ \w+ on disk are not used any more", said), said
        assert read_all(platform, "kept", 1) == [b"keep me"]


def wait_until(holds: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def stored_bytes(directory: Path) -> int:
    """Of the entry logs below a ledger directory."""
    total = 0
    for path in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
