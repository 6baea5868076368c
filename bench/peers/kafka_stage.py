"""Kafka's own cluster as a stage of ``magnetar.proving``: a controller and brokers (KRaft).

The controller is one node by itself, as ZooKeeper is on our stage: brokers ask it, and it asks
nobody. Broker ``i`` listens at 127.0.7.(150 + i) and is told to others as 127.0.8.(150 + i), where
its relay is; the controller is at 127.0.7.200 likewise. Sockets are IPv4's, so that the network
finds who has made them.

Settings are those that Kafka is shipped with, but for these: the session (as ours), the lag of
followers and whether disks are synced where a fault is about it, topics are not made by themselves,
leaders are not moved by the clock, and a broker may take its time to start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from bench.peers.kafka import new_id
from magnetar.env.metadata_stores.zookeeper_server import find_java
from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import StartError
from magnetar.proving.client import Address
from magnetar.proving.counting import LaneSpec
from magnetar.proving.servers import ListeningServer, Server
from magnetar.proving.stage import SESSION_MS, Settings, Stage

CONTROLLER_ID: Final = 100
JVM_FLAGS: Final = (
    "-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip
FORMAT_S: Final = 180.0
READY_S: Final = 300
"""On a machine that has other things to do; Kafka gives itself one minute."""


class KafkaStage(Stage):
    """See the module's text. ``jars``: directory of Kafka's."""

    metadata_name: ClassVar[str] = "controller"
    rebuilt_files: ClassVar[tuple[str, ...]] = (".index", ".timeindex", ".deleted")

    def __init__(self, jars: Path, folder: Path, settings: Settings) -> None:
        super().__init__(folder, settings)
        self._java = [find_java(), *JVM_FLAGS, "-cp", str(jars / "*")]
        self._cluster = new_id()
        self._voters = ""

    def _set_up(self) -> None:
        self._stack.enter_context(self.network)
        controller = self._controller()
        self.brokers += [self._broker(number + 1) for number in range(self.settings.brokers)]
        servers = controller, *self.brokers
        for server in servers:
            self._stack.callback(server.kill)
        self._format(controller)
        for broker in self.brokers:
            self._copy_format(controller, broker)
        self.start(controller)  # whom brokers would ask for in vain, all the time
        self.start(*self.brokers)

    def _format(self, server: Server) -> None:
        config = str(self._config(server.name))
        tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster, "-c", config]
        found = subprocess.run(
            [*self._java, *tool], capture_output=True, text=True, timeout=FORMAT_S, check=False
        )
        if found.returncode:
            raise StartError(f"{server.name}'s directory was not formatted: {found.stderr[-500:]}")

    def _copy_format(self, source: Server, target: Server) -> None:
        """As the tool would make it, which takes a JVM each: the ids differ."""
        made = self.data_dir(target)
        shutil.copytree(self.data_dir(source), made)
        number = self.brokers.index(target) + 1
        meta = made / "meta.properties"
        text = re.sub(r"(?m)^node\.id=.*$", f"node.id={number}", meta.read_text())
        meta.write_text(re.sub(r"(?m)^directory\.id=.*$", f"directory.id={new_id()}", text))

    def _config(self, name: str) -> Path:
        return self.folder / name / "server.properties"

    def _controller(self) -> Server:
        port = free_port()
        own, told = ("127.0.7.200", port), ("127.0.8.200", port)
        self.network.relay(self.metadata_name, own, told)
        self._voters = f"{CONTROLLER_ID}@{_text(told)}"
        settings = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{_text(own)}",
            "advertised.listeners": f"CONTROLLER://{_text(told)}",
            "broker.session.timeout.ms": str(SESSION_MS),
            "auto.leader.rebalance.enable": "false",
        }
        return self._server(self.metadata_name, own, settings)

    def _broker(self, number: int) -> Server:
        name, port = f"broker-{number}", free_port()
        own, told = (f"127.0.7.{150 + number}", port), (f"127.0.8.{150 + number}", port)
        settings = {
            "process.roles": "broker",
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{_text(own)}",
            "advertised.listeners": f"PLAINTEXT://{_text(told)}",
            "broker.heartbeat.interval.ms": str(SESSION_MS // 4),
            "auto.create.topics.enable": "false",
            "initial.broker.registration.timeout.ms": str(READY_S * 1000),
        }
        if self.settings.synced:
            settings["log.flush.interval.messages"] = "1"
        if self.settings.replica_lag_ms_max is not None:
            settings["replica.lag.time.max.ms"] = str(self.settings.replica_lag_ms_max)
        self.addresses.append(self.network.relay(name, own, told))
        return self._server(name, own, settings)

    def _server(self, name: str, own: Address, settings: Mapping[str, str]) -> Server:
        folder = self.folder / name
        folder.mkdir()
        lines = {
            **settings,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self._voters,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
        }
        config = self._config(name)
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return ListeningServer(
            folder, name, [*self._java, "kafka.Kafka", str(config)], own, READY_S
        )

    def _topic(self, spec: LaneSpec) -> tuple[int, Mapping[str, str]]:
        return self.settings.brokers, {
            "min.insync.replicas": str(spec.min_isr),
            "unclean.leader.election.enable": "true" if spec.unclean else "false",
        }


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
