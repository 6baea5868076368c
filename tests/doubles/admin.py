"""Admin's services over a broker that has no REST."""

from __future__ import annotations

from magnetar.admin.brokers import BrokerService
from magnetar.admin.compaction import CompactionService
from magnetar.admin.deletions import DeletionService
from magnetar.admin.namespaces import NamespaceService
from magnetar.admin.peers import NoPeers, Peers, Transport
from magnetar.admin.policies import PolicyService, quorums_of
from magnetar.admin.topics import TopicService
from magnetar.app.broker import Broker
from magnetar.config import Config, LedgerConfig

HTTP_URL = "http://here:8080"


def topic_service(broker: Broker, transport: Transport | None = None) -> TopicService:
    return TopicService(
        broker.control,
        broker.topics,
        broker.rates,
        broker.service_url,
        HTTP_URL,
        broker.pulsar.services.now_ms,
        Peers(transport or NoPeers()),
        broker.followed,
    )


def broker_service(broker: Broker) -> BrokerService:
    return BrokerService(broker.control, HTTP_URL, Peers(NoPeers()), broker.topics.names, Config())


def compaction_service(broker: Broker) -> CompactionService:
    return CompactionService(broker.control, broker.topics, broker.compactions, Peers(NoPeers()))


def deletion_service(broker: Broker) -> DeletionService:
    return DeletionService(broker.control, topic_service(broker), broker_service(broker))


def namespace_service(broker: Broker) -> NamespaceService:
    return NamespaceService(broker.control, broker.service_url, HTTP_URL)


def policy_service(broker: Broker) -> PolicyService:
    return PolicyService(broker.control, broker.topics, quorums_of(LedgerConfig()))
