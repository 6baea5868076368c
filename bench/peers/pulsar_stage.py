"""Pulsar's own cluster as a stage of ``magnetar.proving``: bookies of BookKeeper's and brokers of
Pulsar's, on the ZooKeeper that our stage has.

Broker ``i`` serves at 127.0.7.(170 + i) and is told to others as 127.0.8.(170 + i), where its relay
is. A bookie listens at the address that it tells others, 127.0.7.(180 + i), so that there is no
relay to it, and its links cannot be cut; all reach ZooKeeper by its relay. Sockets are IPv4's, so
that the network finds who has made them.

Settings are those of the jars, but for these: the session and the quorums (as ours), repeats are
not stored (``pulsar_client``), messages are kept without a subscription, as Kafka's and ours are
without a reader, all topics of a scenario are one bundle, bundles are not moved by
the clock, topics have no policies of their own (which are a topic of the broker's, to be read
first), buffers and pools are of a small machine's size, and whether journals are synced where a
fault is about it.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, ClassVar, Final

from kazoo.client import KazooClient

from bench.peers.bookkeeper_ledgers import BookKeeperClient, BookKeeperLedgers
from bench.peers.pulsar import OPENED
from bench.peers.pulsar_client import NAMESPACE, PulsarProtocol
from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer, find_java
from magnetar.env.network.free_ports import free_port
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.errors import StartError
from magnetar.proving.counting import LaneSpec
from magnetar.proving.ledgers import LedgerStage, LedgerWork
from magnetar.proving.servers import ListeningServer, Server
from magnetar.proving.speaking import Address
from magnetar.proving.stage import SESSION_MS, Settings
from magnetar.wire.bookie.metadata_cookie import Cookie, encode_cookie

POM: Final = Path(__file__).with_name("pulsar.pom.xml")
BROKERS: Final = 2
CLUSTER: Final = "prove"
JVM_FLAGS: Final = (
    "-Xms64m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    *OPENED,
)  # fmt: skip
READY_S: Final = 300
"""On a machine that has other things to do."""
ASK_S: Final = 30.0
UNSYNCED: Final = {
    "journalSyncData": "false",
    # The journal is synced each second all the same, as it is shipped: a count would depend on when
    # the second was over.
    "journalPageCacheFlushIntervalMSec": "600000",
    "flushInterval": "600000",
}


class BookKeeperBookie(ListeningServer):
    """One that is ready when it is registered, too; ``metadata``: ZooKeeper's address."""

    def __init__(
        self, folder: Path, name: str, command: list[str], at: Address, metadata: Address
    ) -> None:
        super().__init__(folder, name, command, at, READY_S)
        self._metadata = metadata

    def wait_ready(self) -> None:
        """Raises ``StartError``."""
        super().wait_ready()
        deadline_s = time.monotonic() + READY_S
        client = KazooClient(_text(self._metadata), timeout=ASK_S)
        client.start(ASK_S)
        try:
            while not client.exists(f"/ledgers/available/{self.name}"):
                if not self.running or time.monotonic() > deadline_s:
                    raise self._not_started()
                time.sleep(0.1)
        finally:
            client.stop()
            client.close()


class PulsarBroker(ListeningServer):
    """One that is ready when it says so over HTTP at ``web``."""

    def __init__(self, folder: Path, name: str, command: list[str], web: Address) -> None:
        super().__init__(folder, name, command, web, READY_S)
        self.url = f"http://{_text(web)}/admin/v2"

    def wait_ready(self) -> None:
        """Raises ``StartError``."""
        super().wait_ready()
        deadline_s = time.monotonic() + READY_S
        while self.running and time.monotonic() < deadline_s:
            try:
                self.ask("GET", "brokers/ready")
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise self._not_started()

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """Raises ``OSError``."""
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            told: bytes = answer.read()
        return told


class _Repairer(Server):
    """One that does not say when it is ready: what it does shows it."""

    def _stdout(self, log: IO[bytes]) -> IO[bytes]:
        return log

    def wait_ready(self) -> None:
        pass


class PulsarStage(LedgerStage):
    """See the module's text. ``jars``: directory of Pulsar's, BookKeeper's among them."""

    metadata_name: ClassVar[str] = "zookeeper"
    synced_names: ClassVar[bool] = True

    def __init__(self, jars: Path, folder: Path, settings: Settings) -> None:
        super().__init__(folder, settings._replace(brokers=min(settings.brokers, BROKERS)))
        self.protocol = PulsarProtocol(self.addresses)
        self._java = [find_java(), *JVM_FLAGS, "-cp", str(jars / "*")]
        self._metadata: Address = "", 0
        self._client: BookKeeperClient | None = None

    def _set_up(self) -> None:
        zookeeper = self._stack.enter_context(ZooKeeperServer(self.folder / "zookeeper"))
        self._stack.enter_context(self.network)
        target = "127.0.0.1", zookeeper.port
        self._metadata = self.network.relay(self.metadata_name, target, ("127.0.0.1", 0))
        self.metadata_url = f"zk://{_text(self._metadata)}"
        self.bookies += [self._bookie(number) for number in range(self.settings.bookies)]
        brokers = [self._broker(number + 1) for number in range(self.settings.brokers)]
        self.brokers += brokers
        for server in (*self.bookies, *brokers):
            self._stack.callback(server.kill)
        asyncio.run(self._new_cluster())
        self.start(*self.bookies, *brokers)
        if brokers:
            self._new_namespace(brokers[0])

    @property
    def _ledgers_uri(self) -> str:
        return f"zk+hierarchical://{_text(self._metadata)}/ledgers"

    def ledgers(self) -> LedgerWork:
        if self._client is None:
            self._client = BookKeeperClient(
                self._java, self._ledgers_uri, self.folder / "ledgers.log"
            )
            self._stack.callback(self._client.kill)
            self.network.name(self._client.pid, "ledgers")
        return BookKeeperLedgers(self._client)

    def add_bookie(self) -> Server:
        added = self._bookie(len(self.bookies))
        self.bookies.append(added)
        self._stack.callback(added.kill)
        self.start(added)
        return added

    def auto_recovery(self) -> Server:
        name = "autorecovery"
        settings = {
            "metadataServiceUri": self._ledgers_uri,
            "zkTimeout": str(SESSION_MS),
            "bookieId": name,
            "allowLoopback": "true",
            "lostBookieRecoveryDelay": "0",
        }
        config = self._written(name, "bookkeeper.conf", settings)
        command = [*self._java, "org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf"]
        made = _Repairer(self.folder / name, name, [*command, str(config)])
        self._stack.callback(made.kill)
        self.start(made)
        return made

    async def _new_cluster(self) -> None:
        """What bookies want to find; with their cookies: they do not sync those, and do not start
        without them when a cut has taken them."""
        store = await ZooKeeperMetadataStore.open(self.metadata_url)
        try:
            instance_id = await LedgerManager(store).initialize()
            for bookie in self.bookies:
                cookie = _stamped(self.data_dir(bookie), bookie.name, instance_id)
                await store.create(f"/ledgers/cookies/{bookie.name}", cookie)
        finally:
            await store.close()

    def _new_namespace(self, broker: PulsarBroker) -> None:
        """Raises ``StartError``."""
        told = self.addresses[0]
        tenant = NAMESPACE.partition("/")[0]
        bundles = {"numBundles": 1, "boundaries": ["0x00000000", "0xffffffff"]}
        made = {
            f"clusters/{CLUSTER}": {
                "serviceUrl": broker.url,
                "brokerServiceUrl": f"pulsar://{_text(told)}",
            },
            f"tenants/{tenant}": {"adminRoles": [], "allowedClusters": [CLUSTER]},
            f"namespaces/{NAMESPACE}": {"bundles": bundles, "replication_clusters": [CLUSTER]},
        }
        for path, body in made.items():
            try:
                broker.ask("PUT", path, body)
            except OSError as error:
                raise StartError(f"{broker.name} did not make {path}: {error}") from error

    def _bookie(self, number: int) -> Server:
        name, at = f"bookie-{number}", (f"127.0.7.{180 + number}", free_port())
        data = self.folder / name / "data"
        settings = {
            "metadataServiceUri": self._ledgers_uri,
            "zkTimeout": str(SESSION_MS),
            "bookieId": name,
            "bookiePort": str(at[1]),
            "advertisedAddress": at[0],
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "journalDirectories": str(data / "journal"),
            "ledgerDirectories": str(data / "ledgers"),
            "autoRecoveryDaemonEnabled": "false",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "journalPreAllocSizeMB": "1",
            "numAddWorkerThreads": "2",
            "numReadWorkerThreads": "2",
            "serverNumIOThreads": "2",
            **(UNSYNCED if self.settings.synced is False else {}),
        }
        config = self._written(name, "bookkeeper.conf", settings)
        command = [*self._java, "org.apache.bookkeeper.server.Main", "--conf", str(config)]
        return BookKeeperBookie(self.folder / name, name, command, at, self._metadata)

    def _broker(self, number: int) -> PulsarBroker:
        name, ports = f"broker-{number}", (free_port(), free_port())
        own, told = f"127.0.7.{170 + number}", f"127.0.8.{170 + number}"
        size, write, ack = map(str, self.settings.quorums)
        metadata = f"zk:{_text(self._metadata)}"
        settings = {
            "clusterName": CLUSTER,
            "metadataStoreUrl": metadata,
            "configurationMetadataStoreUrl": metadata,
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "bindAddress": own,
            "advertisedAddress": told,
            "brokerServicePort": str(ports[0]),
            "webServicePort": str(ports[1]),
            "managedLedgerDefaultEnsembleSize": size,
            "managedLedgerDefaultWriteQuorum": write,
            "managedLedgerDefaultAckQuorum": ack,
            "brokerDeduplicationEnabled": "true",
            # Nobody has subscribed to a lane's topic: else what is in closed ledgers is deleted.
            "defaultRetentionTimeInMinutes": "-1",
            "defaultRetentionSizeInMB": "-1",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "loadBalancerSheddingEnabled": "false",
            "loadBalancerAutoBundleSplitEnabled": "false",
            "systemTopicEnabled": "false",
            "topicLevelPoliciesEnabled": "false",
            "managedLedgerCacheSizeMB": "16",
            "numIOThreads": "2",
            "numOrderedExecutorThreads": "2",
            "numHttpServerThreads": "8",
            "numExecutorThreadPoolSize": "2",
            "bookkeeperClientNumWorkerThreads": "2",
            "bookkeeperClientNumIoThreads": "2",
        }
        config = self._written(name, "broker.conf", settings)
        command = [*self._java, "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf"]
        relayed = [self.network.relay(name, (own, port), (told, port)) for port in ports]
        self.addresses.append(relayed[0])
        web = own, ports[1]
        return PulsarBroker(self.folder / name, name, [*command, str(config)], web)

    def _written(self, name: str, file: str, settings: Mapping[str, str]) -> Path:
        folder = self.folder / name
        folder.mkdir()
        config = folder / file
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return config

    def _topic(self, spec: LaneSpec) -> tuple[int, Mapping[str, str]]:
        return -1, {}


def _stamped(data: Path, bookie: str, instance_id: str) -> bytes:
    """Make a bookie's directories with its cookie, which is returned."""
    journal, ledgers = data / "journal", data / "ledgers"
    cookie = encode_cookie(Cookie.of(bookie, [str(journal)], [str(ledgers)], instance_id))
    for each in (journal, ledgers):
        current = each / "current"
        current.mkdir(parents=True)
        (current / "VERSION").write_bytes(cookie)
    return cookie


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
