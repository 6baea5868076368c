"""What is set on fire: three ZooKeepers, five bookies, three brokers, two read-only brokers."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from tests.chaos.whole.modes import READ_ONLY as SENT_ON
from tests.chaos.whole.modes import TOPICS
from tests.chaos.whole.network import CLIENTS, small_disk
from tests.chaos.whole.servers import (
    Network,
    Quorum,
    Server,
    Supervisor,
    magnetar,
    session_setting,
    zookeeper_command,
)

ZOOKEEPERS, BOOKIES, BROKERS, READ_ONLY = HOSTS = (
    tuple(f"zookeeper-{n}" for n in range(1, 4)),
    tuple(f"bookie-{n}" for n in range(1, 6)),
    tuple(f"broker-{n}" for n in range(1, 4)),
    tuple(f"read-only-{n}" for n in range(1, 3)),
)
ZOOKEEPER_PORT, BOOKIE_PORT, BROKER_PORT, HTTP_PORT = 2181, 3181, 6650, 8080
COPIES: Final = ("ensemble_size=3", "write_quorum=3", "ack_quorum=2")
DISK_BYTES: Final = 320 << 20
BOOKIE_SETTINGS: Final = (
    session_setting(),
    "bookie.journal.file_bytes=8MiB",
    "bookie.write_cache_bytes=16MiB",
    "bookie.disk_check_interval_ms=100",
    "repair.lost_bookie_delay_ms=4000",
    "repair.silent_bookie_delay_ms=30000",
    "repair.open_ledger_grace_ms=4000",
    "repair.look_interval_ms=500",
    "repair.check_interval_ms=20000",
    "repair.give_up_interval_ms=10000",
)
"""Repair has little time between faults: everything comes soon."""
PORTS: Final = {
    **dict.fromkeys(ZOOKEEPERS, (ZOOKEEPER_PORT,)),
    **dict.fromkeys(BOOKIES, (BOOKIE_PORT,)),
    **dict.fromkeys((*BROKERS, *READ_ONLY), (BROKER_PORT, HTTP_PORT)),
}
ASK_S: Final = 60.0
LOOK_S: Final = 1.0
DISPATCHED: Final = re.compile(r"^magnetar_broker_dispatched_entries_total (\S+)$", re.M)
SERVERS: Final = "3 ZooKeepers, 5 bookies (E3 Qw3 Qa2) with repair, 3 brokers, 2 read-only brokers"


class Cluster:
    """``with_disks``: each bookie has a small file system of its own."""

    def __init__(
        self, folder: Path, network: Network, with_disks: bool, say: Callable[[str], None]
    ) -> None:
        self.network = network
        self._folder = folder
        self._data = folder / "data"
        if with_disks:
            for name in BOOKIES:
                small_disk(self._data / name, DISK_BYTES)
        zookeepers = [network.address(name) for name in ZOOKEEPERS]
        self.servers: dict[str, Server] = {}
        for number, name in enumerate(ZOOKEEPERS):
            self._add(
                name, zookeeper_command(number, zookeepers, self._data / name, ZOOKEEPER_PORT)
            )
        for name in BOOKIES:
            self._add(name, self._bookie(name))
        for name in (*BROKERS, *READ_ONLY):
            self._add(name, self._broker(name))
        self.quorum = Quorum([self.servers[name] for name in ZOOKEEPERS], self._modes)
        self.supervisor = Supervisor(list(self.servers.values()), say)

    def _add(self, name: str, command: Sequence[str]) -> None:
        self.servers[name] = Server(name, self.network.command(name, command), self._folder)

    def _metadata_url(self, caller: str) -> str:
        found = (self.network.reached(caller, name, ZOOKEEPER_PORT) for name in ZOOKEEPERS)
        return "zk://" + ",".join(f"{host}:{port}" for host, port in found) + "/chaos"

    def _bookie(self, name: str) -> list[str]:
        host, told = self.network.address(name), self.network.told(name)
        return magnetar(
            "bookie", "--data-dir", str(self._data / name / "bookie"),
            "--port", str(BOOKIE_PORT), "--metadata", self._metadata_url(name),
            sets=(*BOOKIE_SETTINGS, f"bookie.host={host}", f"bookie.advertised_host={told}"),
        )  # fmt: skip

    def _broker(self, name: str) -> list[str]:
        host, told = self.network.address(name), self.network.told(name)
        return magnetar(
            "broker", "--port", str(BROKER_PORT), "--http-port", str(HTTP_PORT),
            "--metadata", self._metadata_url(name), *(["--read-only"] if name in READ_ONLY else []),
            sets=(
                session_setting(), *(f"ledger.{each}" for each in COPIES),
                f"broker.host={host}", f"http.host={host}", f"broker.advertised_host={told}",
            ),
        )  # fmt: skip

    @property
    def service_url(self) -> str:
        addresses = (self.network.told(name) for name in BROKERS)
        return "pulsar://" + ",".join(f"{each}:{BROKER_PORT}" for each in addresses)

    def data_of(self, bookie: str) -> Path:
        return self._data / bookie

    def bookie_id(self, bookie: str) -> str:
        return f"{self.network.told(bookie)}:{BOOKIE_PORT}"

    @property
    def metadata_url(self) -> str:
        """As the clients reach it."""
        return self._metadata_url(CLIENTS)

    def start(self) -> None:
        """All that can start beside each other does."""
        for name in ZOOKEEPERS:
            self.servers[name].begin()
        self.quorum.wait_whole()
        for group in (BOOKIES, (*BROKERS, *READ_ONLY)):
            for name in group:
                self.servers[name].begin()
            for name in group:
                self.servers[name].wait_ready()
        self._make_topics()
        self.supervisor.start()

    def _make_topics(self) -> None:
        with httpx.Client(timeout=ASK_S, follow_redirects=True) as rest:
            rules = {"rules": [{"subscription": f"{SENT_ON}*", "to": "any"}]}
            self._ask(rest, "POST", "namespaces/public/default/readOnlyBrokers", rules)
            for topic in TOPICS:
                if topic.partitions:
                    path = f"persistent/public/default/{topic.name}/partitions"
                    self._ask(rest, "PUT", path, topic.partitions)

    def _ask(self, rest: httpx.Client, method: str, path: str, body: object) -> None:
        url = f"http://{self.network.told(BROKERS[0])}:{HTTP_PORT}/admin/v2/{path}"
        answer = rest.request(method, url, json=body)
        if not answer.is_success:
            raise RuntimeError(f"{method} {url}: {answer.status_code} {answer.text}")

    def loaded_brokers(self) -> list[str]:
        """Those that own anything, as far as one says in time."""
        ids = {f"{self.network.told(name)}:{HTTP_PORT}": name for name in BROKERS}
        for broker_id, name in ids.items():
            if self.servers[name].ready:
                url = f"http://{broker_id}/magnetar/v1/namespaces/public/default/bundles"
                with contextlib.suppress(httpx.HTTPError):
                    found = httpx.get(url, timeout=LOOK_S).raise_for_status().json()
                    return sorted({ids[each["owner"]] for each in found if each["owner"] in ids})
        return []

    def busiest_read_only(self) -> str | None:
        """The one that has dispatched most in a moment, as far as they say."""
        before = {name: self._dispatched(name) for name in READ_ONLY}
        time.sleep(LOOK_S)
        moved = {name: self._dispatched(name) - count for name, count in before.items()}
        busiest = max(moved, key=lambda name: moved[name])
        return busiest if moved[busiest] > 0 else None

    def _dispatched(self, name: str) -> float:
        url = f"http://{self.network.told(name)}:{HTTP_PORT}/metrics"
        with contextlib.suppress(httpx.HTTPError):
            found = DISPATCHED.search(httpx.get(url, timeout=LOOK_S).text)
            return float(found[1]) if found else 0.0
        return 0.0

    def _modes(self) -> dict[str, str]:
        """ZooKeeper -> what it says it is; those that do not answer are left out."""
        said = {name: _srvr(self.network.address(name)) for name in ZOOKEEPERS}
        return {name: mode for name, mode in said.items() if mode}

    def end(self) -> None:
        if self.supervisor.is_alive():
            self.supervisor.end()
        for server in self.servers.values():
            server.kill()


def _srvr(address: str, within_s: float = 1.0) -> str:
    """A ZooKeeper's mode (leader, follower), empty without one."""
    answer, deadline_s = b"", time.monotonic() + within_s
    try:
        with socket.create_connection((address, ZOOKEEPER_PORT), within_s) as connection:
            connection.sendall(b"srvr")
            while time.monotonic() < deadline_s and (chunk := connection.recv(4096)):
                answer += chunk
    except OSError:
        return ""
    found = [line for line in answer.decode("utf-8", "replace").splitlines() if "Mode:" in line]
    return found[0].split()[1] if found else ""
