"""The cluster's registrations as replication asks for them (``log.partition.replication``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from magnetar.cluster.brokers.reports import BROKERS, BrokerReport
from magnetar.env.metadata import MetadataStore
from magnetar.log.partition.replication.brokers import PeerBroker
from magnetar.log.partition.replication.election import LiveBroker


class ReportedBrokers:
    """``PeerBrokers``. ``reports``: of all brokers, kept in memory by who gives them.
    ``by_tls``: brokers reach one another so."""

    def __init__(
        self,
        metadata: MetadataStore,
        reports: Callable[[], Awaitable[Mapping[str, BrokerReport]]],
        by_tls: bool = False,
    ) -> None:
        self._metadata = metadata
        self._reports = reports
        self._by_tls = by_tls

    async def look(self) -> Mapping[int, PeerBroker]:
        found = {}
        for report in (await self._reports()).values():
            if report.node_id >= 0:
                address = report.kafka_tls_address if self._by_tls else report.kafka_address
                host, _, port = address.rpartition(":")
                live = LiveBroker(report.process, report.lineage, report.draining)
                at = int(port) if port.isdigit() else 0
                found[report.node_id] = PeerBroker(live, host, at, report.zone)
        return found

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """A start of a broker makes a node of its own, so that the list tells of it."""
        return self._metadata.watch(BROKERS, lambda _path: changed())
