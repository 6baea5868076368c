"""A stage: ZooKeeper, bookies and brokers of one cluster, as processes, with relays between them.

Owns their addresses, settings and data directories. Bookie ``i`` serves at 127.0.7.i and is reached
at 127.0.8.i, broker ``i`` likewise from 127.0.7.101 on, under one port each; all reach ZooKeeper by
its relay. So every link between any two can be cut (``network``). Topics are led, and owned, by one
broker: the one that the fault is made for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from magnetar.env.free_ports import free_port
from magnetar.env.zookeeper_server import ZooKeeperServer
from magnetar.log.policy import Engine
from magnetar.model.errors import ConfigError, MagnetarError, StartError
from magnetar.proving.client import Address, PartitionView, RefusedError, create_topic, look
from magnetar.proving.counting import LaneSpec
from magnetar.proving.network import RelayNetwork
from magnetar.proving.servers import Server

T = TypeVar("T")

SESSION_MS: Final = 4000
BROKERS: Final = 3
ZOOKEEPER: Final = "zookeeper"
WAIT_S: Final = 60.0
NAMES_TRIED: Final = 60
BOOKIE_SETTINGS: Final = (
    "bookie.entry_bytes_max=65536",
    "broker.message_bytes_max=32768",
    "bookie.journal.file_bytes=1048576",
    "bookie.journal.recycled_files_max=2",
    "bookie.write_cache_bytes=1048576",
    "bookie.entry_log_bytes_max=1048576",
    "bookie.disk_reserve_bytes=0",
    "bookie.disk_warn_percent=100",
    "bookie.disk_full_percent=100",
    "bookie.disk_low_water_percent=100",
)
"""Small files: what is done to a disk is written down (``power_cut``)."""


class Settings(NamedTuple):
    """``NAME=VALUE`` each."""

    bookies: int = 3
    quorums: tuple[int, int, int] = (3, 3, 2)
    bookie: Sequence[str] = ()
    broker: Sequence[str] = ()
    brokers: int = BROKERS


class Stage:
    """A context manager; all that it has started ends with it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.network = RelayNetwork()
        self.bookies: list[Server] = []
        self.brokers: list[Server] = []
        self.addresses: list[Address] = []
        """Of brokers, for clients of Kafka's protocol."""
        self.metadata_url = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        zookeeper = self._stack.enter_context(ZooKeeperServer(self.folder / "zookeeper"))
        self._stack.enter_context(self.network)
        target = "127.0.0.1", zookeeper.port
        host, port = self.network.relay(ZOOKEEPER, target, ("127.0.0.1", 0))
        self.metadata_url = f"zk://{host}:{port}/prove"
        for number in range(self.settings.bookies):
            self.bookies.append(self._bookie(number))
        for number in range(self.settings.brokers):
            self.brokers.append(self._broker(number))
        for server in (*self.bookies, *self.brokers):
            self._stack.callback(server.kill)
        self.start(*self.bookies, *self.brokers)

    def start(self, *servers: Server) -> None:
        """All at once; again too. One that does not come up is started once more, as by whoever
        looks after servers. Raises ``StartError``."""
        for server in servers:
            self._begin(server)
        for server in servers:
            try:
                server.wait_ready()
            except StartError:
                server.kill()
                self._begin(server)
                server.wait_ready()

    def _begin(self, server: Server) -> None:
        server.begin()
        self.network.name(server.pid, server.name)

    def data_dir(self, server: Server) -> Path:
        return self.folder / server.name / "data"

    def add_bookie(self) -> Server:
        """A new, empty one joins."""
        added = self._bookie(len(self.bookies))
        self.bookies.append(added)
        self._stack.callback(added.kill)
        self.start(added)
        return added

    def auto_recovery(self) -> Server:
        """A process that repairs as soon as a bookie is gone."""
        settings = ("repair.lost_bookie_delay_ms=0", "repair.look_interval_ms=200")
        made = self._server("autorecovery", ["autorecovery"], settings)
        self._stack.callback(made.kill)
        self.start(made)
        return made

    def _bookie(self, number: int) -> Server:
        name, port = f"bookie-{number}", free_port()
        own, told = f"127.0.7.{number + 1}", f"127.0.8.{number + 1}"
        settings = (
            f"bookie.host={own}",
            f"bookie.advertised_host={told}",
            f"bookie.bookie_id={name}",
            f"metadata.session_timeout_ms={SESSION_MS}",
            "repair.in_bookies=false",  # what is lost is counted before it is mended
            *BOOKIE_SETTINGS,
            *self.settings.bookie,
        )
        data = str(self.folder / name / "data")
        arguments = ["bookie", "--data-dir", data, "--port", str(port)]
        self.network.relay(name, (own, port), (told, port))
        return self._server(name, arguments, settings)

    def _broker(self, number: int) -> Server:
        name, port = f"broker-{number + 1}", free_port()
        own, told = f"127.0.7.{number + 101}", f"127.0.8.{number + 101}"
        size, write, ack = self.settings.quorums
        settings = (
            f"kafka.host={own}",
            f"kafka.advertised_host={told}",
            f"partition.directory={self.folder / name / 'data'}",
            f"partition.broker_id={number + 1}",
            f"metadata.session_timeout_ms={SESSION_MS}",
            f"ledger.ensemble_size={size}",
            f"ledger.write_quorum={write}",
            f"ledger.ack_quorum={ack}",
            "ledger.add_timeout_ms=1500",
            "bookie.entry_bytes_max=65536",
            "broker.message_bytes_max=32768",
            *self.settings.broker,
        )
        arguments = ["broker", "--port", "0", "--http-port", "0", "--kafka-port", str(port)]
        self.addresses.append(self.network.relay(name, (own, port), (told, port)))
        return self._server(name, arguments, settings)

    def _server(self, name: str, arguments: list[str], settings: Sequence[str]) -> Server:
        (self.folder / name).mkdir()
        words = [word for each in settings for word in ("--set", each)]
        command = [*arguments, "--metadata", self.metadata_url, *words]
        return Server(self.folder / name, name, command)

    # -- topics -------------------------------------------------------------------------------

    def leader_of(self, number: int) -> Server:
        """The broker of that number among replicas."""
        return self.brokers[number - 1]

    def others(self, leader: int) -> list[str]:
        """The other brokers' names."""
        return [each.name for each in self.brokers if each is not self.leader_of(leader)]

    def create(self, spec: LaneSpec, prefix: str, leader: int | None) -> tuple[str, int]:
        """A topic for a lane, at ``leader`` (None: at whoever gets it); (its name, the leader)."""
        configs = {"magnetar.engine": spec.engine.value}
        if spec.engine is Engine.PARTITION:
            configs["min.insync.replicas"] = str(spec.min_isr)
            configs["unclean.leader.election.enable"] = "true" if spec.unclean else "false"
        copies = self.settings.brokers if spec.engine is Engine.PARTITION else -1
        for number in range(NAMES_TRIED):
            topic = f"{prefix}-{spec.name}-{number}"
            create_topic(self.addresses[0], topic, copies, configs)
            found = self.wait(lambda topic=topic: self._owner(topic), f"an owner of {topic}")  # type: ignore[misc]
            if leader in (None, found):
                return topic, found
        raise ConfigError(f"none of {NAMES_TRIED} topics came to broker {leader}")

    def _owner(self, topic: str) -> int | None:
        found = self.view(topic).leader
        return found if found > 0 else None

    def view(self, topic: str, but: int | None = None) -> PartitionView:
        """As the first broker that answers says it, ``but`` that one. Raises ``OSError``,
        ``RefusedError``."""
        error: Exception = ConfigError("there is no broker to ask")
        for number, address in enumerate(self.addresses, 1):
            if number == but or not self.brokers[number - 1].running:
                continue
            try:
                return look(address, topic)
            except (OSError, RefusedError) as failed:
                error = failed
        raise error

    def wait(self, what: Callable[[], T | None], said: str, within_s: float = WAIT_S) -> T:
        """Until it is something true. Raises ``MagnetarError``."""
        deadline_s = time.monotonic() + within_s
        last: object = None
        while time.monotonic() < deadline_s:
            try:
                found = what()
            except (OSError, MagnetarError) as error:
                last = error
            else:
                if found:
                    return found
                last = found
            time.sleep(0.1)
        raise MagnetarError(f"not in {within_s:g} s: {said} (last: {last})")
