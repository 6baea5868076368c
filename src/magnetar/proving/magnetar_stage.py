"""Magnetar's own cluster as a stage: ZooKeeper, bookies and brokers.

Owns their addresses, settings and data directories. Bookie ``i`` serves at 127.0.7.i and is reached
at 127.0.8.i, broker ``i`` likewise from 127.0.7.101 on; all reach ZooKeeper by its relay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from magnetar.log.policy import Engine
from magnetar.proving.counting import LaneSpec
from magnetar.proving.ledgers import LedgerStage, LedgerWork
from magnetar.proving.magnetar_ledgers import MagnetarLedgers
from magnetar.proving.servers import MAGNETAR, Server
from magnetar.proving.stage import SESSION_MS

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

UNSYNCED_BOOKIE: Final = "bookie.journal.sync=false", "bookie.flush_interval_ms=600000"
UNSYNCED_BROKER: Final = ("partition.sync=operating-system",)


class MagnetarStage(LedgerStage):
    """See the module's text."""

    metadata_name: ClassVar[str] = "zookeeper"

    def ledgers(self) -> LedgerWork:
        return MagnetarLedgers(self.metadata_url)

    def _set_up(self) -> None:
        zookeeper = self._stack.enter_context(ZooKeeperServer(self.folder / "zookeeper"))
        self._stack.enter_context(self.network)
        target = "127.0.0.1", zookeeper.port
        host, port = self.network.relay(self.metadata_name, target, ("127.0.0.1", 0))
        self.metadata_url = f"zk://{host}:{port}/prove"
        for number in range(self.settings.bookies):
            self.bookies.append(self._bookie(number))
        for number in range(self.settings.brokers):
            self.brokers.append(self._broker(number))
        for server in (*self.bookies, *self.brokers):
            self._stack.callback(server.kill)
        self.start(*self.bookies, *self.brokers)

    def add_bookie(self) -> Server:
        added = self._bookie(len(self.bookies))
        self.bookies.append(added)
        self._stack.callback(added.kill)
        self.start(added)
        return added

    def auto_recovery(self) -> Server:
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
            *(UNSYNCED_BOOKIE if self.settings.synced is False else ()),
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
            *self._lag(),
            *(UNSYNCED_BROKER if self.settings.synced is False else ()),
        )
        arguments = ["broker", "--port", "0", "--http-port", "0", "--kafka-port", str(port)]
        self.addresses.append(self.network.relay(name, (own, port), (told, port)))
        return self._server(name, arguments, settings)

    def _server(self, name: str, arguments: list[str], settings: Sequence[str]) -> Server:
        (self.folder / name).mkdir()
        words = [word for each in settings for word in ("--set", each)]
        command = [*MAGNETAR, *arguments, "--metadata", self.metadata_url, *words]
        return Server(self.folder / name, name, command)

    def _lag(self) -> Sequence[str]:
        most = self.settings.replica_lag_ms_max
        return () if most is None else (f"partition.replica_lag_ms_max={most}",)

    def _topic(self, spec: LaneSpec) -> tuple[int, Mapping[str, str]]:
        configs = {"magnetar.engine": spec.engine.value}
        if spec.engine is not Engine.PARTITION:
            return -1, configs
        configs["min.insync.replicas"] = str(spec.min_isr)
        configs["unclean.leader.election.enable"] = "true" if spec.unclean else "false"
        return self.settings.brokers, configs
