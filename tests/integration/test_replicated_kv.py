"""``examples/replicated_kv`` as processes, on bookies as processes and a real ZooKeeper: the active
replica is killed and paused under load. What was confirmed is there; there are never two
actives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.ledger import LedgerConfig, sync
from tests.scenarios.cluster import Cluster

pytestmark = pytest.mark.zookeeper

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from replicated_kv.client import Client  # noqa: E402
from replicated_kv.state import NOWHERE, Command, Position, Store  # noqa: E402

PATIENCE_S = 120.0
ENTRIES_PER_LEDGER = 60
WRITERS = 3


class Process:
    """``python -m replicated_kv``."""

    def __init__(self, role: str, metadata_url: str, folder: Path) -> None:
        command = [
            *(sys.executable, "-m", "replicated_kv", role, metadata_url),
            *("--entries-per-ledger", str(ENTRIES_PER_LEDGER), "--session-timeout-ms", "4000"),
        ]
        paths = [str(EXAMPLES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.log_path = folder / f"{role}-{time.monotonic_ns()}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._guard = threading.Timer(500, self.process.kill)  # a hang ends the read below
        self._guard.start()
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline().decode()).startswith("ready"):
            assert line, self.log_path.read_text()
        self.address = line.split()[1]
        self._rest = threading.Thread(target=self.process.stdout.read)  # so that it never waits
        self._rest.start()

    def ask(self, **asked: Any) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(json.dumps(asked).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline())
            return answer

    @property
    def role(self) -> str:
        return str(self.ask(op="status")["role"])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self._guard.cancel()
        self.process.kill()
        self.process.wait()
        self._rest.join()


class Writer(threading.Thread):
    """Writes its own keys, one after the other, and keeps what was confirmed."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        super().__init__(name=name)
        self.confirmed: dict[str, tuple[str, tuple[int, int]]] = {}
        self.error: BaseException | None = None
        self._client = Client(addresses)
        self._over = threading.Event()

    def run(self) -> None:
        count = 0
        try:
            while not self._over.is_set():
                key, value = f"{self.name}-{count % 50}", f"{count}"
                position = self._client.put(key, value, PATIENCE_S)
                self.confirmed[key] = (value, position)
                count += 1
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error
        finally:
            self._client.close()

    @property
    def last(self) -> tuple[int, int]:
        return max((at for _, at in [*self.confirmed.values()]), default=(-1, -1))

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


@pytest.fixture
def url(tmp_path: Path, zookeeper_url: str) -> Iterator[str]:
    cluster = Cluster(tmp_path, zookeeper_url, 3)
    cluster.start_bookies()
    yield zookeeper_url
    cluster.end()


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for each in processes:
        each.end()


def test_the_active_replica_is_killed_and_paused_under_load(
    url: str, started: list[Process], tmp_path: Path
) -> None:
    one = Process("replica", url, tmp_path)
    started.append(one)
    eventually(lambda: one.role == "active", "the first replica is active")
    two, three = (Process("replica", url, tmp_path) for _ in range(2))
    observer = Process("observer", url, tmp_path)
    started += [two, three, observer]
    addresses = [each.address for each in (one, two, three)]
    writers = [Writer(f"w{number}", addresses) for number in range(WRITERS)]
    for writer in writers:
        writer.start()

    def confirmed_past(position: tuple[int, int]) -> bool:
        return all(writer.error or writer.last > position for writer in writers)

    def last() -> tuple[int, int]:
        return max(writer.last for writer in writers)

    eventually(lambda: confirmed_past((0, 20)) or last() > (0, 20), "writes are confirmed")
    one.send(signal.SIGKILL)
    before = last()
    eventually(lambda: confirmed_past((before[0] + 1, 0)), "they go on after the kill")
    roles = {each: each.role for each in (two, three)}
    assert sorted(roles.values()) == ["active", "standby"]
    paused, other = (two, three) if roles[two] == "active" else (three, two)

    paused.send(signal.SIGSTOP)
    eventually(lambda: other.role == "active", "the other takes over from the paused one")
    before = last()
    eventually(lambda: confirmed_past(before), "they go on after the pause")
    paused.send(signal.SIGCONT)
    refused = paused.ask(op="put", key="late", value="x", client="late", number=1)
    assert (refused["ok"], refused["again"]) == (False, True), refused
    refused = paused.ask(op="get", key="w0-0")
    assert not refused["ok"], "a replica that was overtaken has answered a read"
    for writer in writers:
        writer.stop()

    client = Client(addresses[1:])
    assert client.get("late") is None
    for writer in writers:
        assert writer.confirmed
        for key, (value, _) in writer.confirmed.items():
            found = client.get(key)
            assert found == value, f"{key} was confirmed as {value} and is {found}"
    client.close()
    at = other.ask(op="status")["position"]
    for replica in (paused, observer):
        eventually(
            lambda replica=replica: replica.ask(op="status")["position"] >= at,  # type: ignore[misc]
            "the others have all of it",
        )
        for writer in writers:
            for key, (value, _) in writer.confirmed.items():
                assert replica.ask(op="peek", key=key)["value"] == value
    assert (paused.role, other.role, observer.role) == ("standby", "active", "observer")


def test_old_ledgers_go_and_a_late_replica_begins_with_the_snapshot(
    url: str, started: list[Process], tmp_path: Path
) -> None:
    one = Process("replica", url, tmp_path)
    started.append(one)
    client = Client([one.address])
    for number in range(5 * ENTRIES_PER_LEDGER):
        client.put(f"k{number % 90}", str(number))
    client.delete("k0")
    with sync.connect(url, LedgerConfig()) as ledgers:

        def only_what_follows_the_snapshot() -> bool:
            # The list of ledgers is shortened after the snapshot is named.
            named = ledgers.read_list("kv-snapshot").ledger_ids
            left = ledgers.read_list("kv").ledger_ids
            return len(left) <= 2 and len(named) == 2 and named[1] < min(left)

        eventually(only_what_follows_the_snapshot, "ledgers leave the list")
        snapshot, covered = ledgers.read_list("kv-snapshot").ledger_ids
        with ledgers.open_no_recovery(snapshot) as reader:
            stored = Store.load(bytes(entry.payload) for entry in reader)
        assert stored.position.ledger_id == covered
    late = Process("observer", url, tmp_path)
    started.append(late)
    at = one.ask(op="status")
    eventually(lambda: late.ask(op="status")["position"] == at["position"], "it has all of it")
    assert late.ask(op="status")["keys"] == at["keys"] == 89
    one.send(signal.SIGKILL)
    two = Process("replica", url, tmp_path)
    started.append(two)
    again = Client([two.address])
    assert again.get("k1") == str(5 * ENTRIES_PER_LEDGER - 1 - (5 * ENTRIES_PER_LEDGER - 2) % 90)
    assert again.get("k0") is None
    again.close()
    client.close()


def test_a_request_that_comes_again_is_applied_once() -> None:
    store = Store()
    store.apply(Position(1, 0), Command("put", "k", "old", "c", 1))
    store.apply(Position(1, 1), Command("put", "k", "new", "d", 1))
    store.apply(Position(2, 0), Command("put", "k", "old", "c", 1))
    assert store.values == {"k": "new"}
    store.apply(Position(1, 1), Command("delete", "k", "", "c", 2))
    assert store.values == {"k": "new"}, "an entry from before its position was applied"
    again = Store.load(store.dump())
    assert (again.values, again.position) == (store.values, Position(2, 0))
    again.apply(Position(2, 1), Command("put", "k", "old", "d", 1))
    assert again.values == {"k": "new"}
    assert Store.load(Store().dump()).position == NOWHERE
