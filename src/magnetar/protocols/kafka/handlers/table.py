"""The table of requests: which function answers which, and which rule stands before it where
clients must show who they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from magnetar.cluster.security.permissions import Action
from magnetar.protocols.kafka.coordination.consumer_groups import ConsumerGroups
from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.share_groups import ShareGroups
from magnetar.protocols.kafka.coordination.share_states import ShareStates
from magnetar.protocols.kafka.coordination.transactions import Transactions
from magnetar.protocols.kafka.handlers import (
    acls,
    admin,
    authentication,
    authorizing,
    authorizing_cluster,
    authorizing_groups,
    authorizing_shares,
    cluster,
    configs,
    fetch,
    leader_elections,
    log_dirs,
    partition_admin,
    produce,
    producers,
    quotas,
    scram_users,
)
from magnetar.protocols.kafka.handlers.authorizing import Rule
from magnetar.protocols.kafka.handlers.consumer_groups import ConsumerGroupHandlers
from magnetar.protocols.kafka.handlers.group_admin import GroupAdminHandlers
from magnetar.protocols.kafka.handlers.groups import GroupHandlers
from magnetar.protocols.kafka.handlers.share_fetch import ShareFetchHandlers
from magnetar.protocols.kafka.handlers.share_groups import ShareGroupHandlers
from magnetar.protocols.kafka.handlers.share_leader import ShareLeader
from magnetar.protocols.kafka.handlers.share_states import ShareStateHandlers
from magnetar.protocols.kafka.handlers.transaction_requests import TransactionHandlers
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.apis import ApiKey, RequestHead

OF_ADMINS: Final[Mapping[int, Handler]] = MappingProxyType(
    {
        ApiKey.CREATE_TOPICS: admin.create_topics,
        ApiKey.DELETE_TOPICS: admin.delete_topics,
        ApiKey.DELETE_RECORDS: partition_admin.delete_records,
        ApiKey.DESCRIBE_ACLS: acls.describe_acls,
        ApiKey.CREATE_ACLS: acls.create_acls,
        ApiKey.DELETE_ACLS: acls.delete_acls,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        ApiKey.ALTER_CONFIGS: configs.alter_configs,
        ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.alter_replica_log_dirs,
        ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
        ApiKey.CREATE_PARTITIONS: admin.create_partitions,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
        ApiKey.ELECT_LEADERS: leader_elections.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: partition_admin.alter_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: partition_admin.list_reassignments,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: scram_users.describe_users,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: scram_users.alter_users,
        ApiKey.LIST_CONFIG_RESOURCES: configs.list_resources,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: partition_admin.describe_topic_partitions,
        ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
        ApiKey.DESCRIBE_PRODUCERS: producers.describe_producers,
    }
)
"""What admins ask for of topics, partitions and the cluster, and nobody keeps a state for."""


RULES: Final[Mapping[int, Rule]] = MappingProxyType(
    {
        ApiKey.PRODUCE: authorizing.produce,
        ApiKey.FETCH: authorizing.fetch,
        ApiKey.LIST_OFFSETS: authorizing.list_offsets,
        ApiKey.METADATA: authorizing.metadata,
        ApiKey.OFFSET_COMMIT: authorizing_groups.commit,
        ApiKey.OFFSET_FETCH: authorizing_groups.fetch_offsets,
        ApiKey.FIND_COORDINATOR: authorizing_groups.find_coordinator,
        ApiKey.JOIN_GROUP: authorizing_groups.join,
        ApiKey.HEARTBEAT: authorizing_groups.heartbeat,
        ApiKey.LEAVE_GROUP: authorizing_groups.leave,
        ApiKey.SYNC_GROUP: authorizing_groups.sync,
        ApiKey.DESCRIBE_GROUPS: authorizing_groups.describe,
        ApiKey.LIST_GROUPS: authorizing_groups.list_groups,
        ApiKey.SASL_HANDSHAKE: authorizing.anybody,
        ApiKey.API_VERSIONS: authorizing.anybody,
        ApiKey.CREATE_TOPICS: authorizing.create_topics,
        ApiKey.DELETE_TOPICS: authorizing.delete_topics,
        ApiKey.DELETE_RECORDS: authorizing.delete_records,
        ApiKey.INIT_PRODUCER_ID: authorizing_groups.begin,
        ApiKey.ADD_PARTITIONS_TO_TXN: authorizing_groups.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: authorizing_groups.add_offsets,
        ApiKey.END_TXN: authorizing_groups.end,
        ApiKey.WRITE_TXN_MARKERS: authorizing_groups.write_markers,
        ApiKey.TXN_OFFSET_COMMIT: authorizing_groups.commit_offsets,
        ApiKey.DESCRIBE_TRANSACTIONS: authorizing_groups.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: authorizing_groups.list_transactions,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: authorizing.offset_for_leader_epoch,
        ApiKey.DESCRIBE_ACLS: authorizing.anybody,
        ApiKey.CREATE_ACLS: authorizing.anybody,
        ApiKey.DELETE_ACLS: authorizing.anybody,
        ApiKey.DESCRIBE_CONFIGS: authorizing.describe_configs,
        ApiKey.ALTER_CONFIGS: authorizing.alter_configs,
        ApiKey.ALTER_REPLICA_LOG_DIRS: authorizing_cluster.alter_replica_log_dirs,
        ApiKey.DESCRIBE_LOG_DIRS: authorizing_cluster.describe_log_dirs,
        ApiKey.SASL_AUTHENTICATE: authorizing.anybody,
        ApiKey.CREATE_PARTITIONS: authorizing.create_partitions,
        ApiKey.DELETE_GROUPS: authorizing_groups.delete,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: authorizing.alter_configs,
        ApiKey.ELECT_LEADERS: authorizing_cluster.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: authorizing_cluster.alter_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: authorizing_cluster.list_reassignments,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: authorizing_cluster.describe_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: authorizing_cluster.alter_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: authorizing_cluster.describe_users,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: authorizing_cluster.alter_users,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: authorizing_groups.consumer_heartbeat,
        ApiKey.CONSUMER_GROUP_DESCRIBE: authorizing_groups.describe_consumers,
        ApiKey.LIST_CONFIG_RESOURCES: authorizing.list_resources,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: authorizing.describe_topic_partitions,
        ApiKey.SHARE_GROUP_HEARTBEAT: authorizing_shares.heartbeat,
        ApiKey.SHARE_GROUP_DESCRIBE: authorizing_shares.describe,
        ApiKey.SHARE_FETCH: authorizing_shares.fetch,
        ApiKey.SHARE_ACKNOWLEDGE: authorizing_shares.acknowledge,
        ApiKey.READ_SHARE_GROUP_STATE: authorizing_shares.read_state,
        ApiKey.WRITE_SHARE_GROUP_STATE: authorizing_shares.write_state,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: authorizing_shares.describe_starts,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: authorizing_shares.alter_starts,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: authorizing_shares.delete_starts,
        ApiKey.OFFSET_DELETE: authorizing_groups.delete_offsets,
        ApiKey.DESCRIBE_CLUSTER: authorizing.anybody,
        ApiKey.DESCRIBE_PRODUCERS: authorizing.describe_producers,
    }
)


class CoordinatedGroups(NamedTuple):
    """Who answers for groups whose members the coordinator knows by heartbeats alone: those whose
    partitions it assigns, and share groups."""

    consumers: ConsumerGroups
    shares: ShareGroups
    share_states: ShareStates
    share_leader: ShareLeader

    @classmethod
    def over(cls, services: KafkaServices, coordinator: Coordinator) -> CoordinatedGroups:
        states = ShareStates(services, coordinator)
        return cls(
            ConsumerGroups(services, coordinator),
            ShareGroups(services, coordinator),
            states,
            ShareLeader(services, states),
        )


class RequestTable:
    """``session.KafkaHandlers``."""

    def __init__(
        self, coordinator: Coordinator, transactions: Transactions, coordinated: CoordinatedGroups
    ) -> None:
        assigned, states = coordinated.consumers, coordinated.share_states
        handlers = TransactionHandlers(transactions)
        shares = ShareGroupHandlers(coordinator, coordinated.shares, states)
        records, state_requests = (
            ShareFetchHandlers(coordinated.share_leader),
            ShareStateHandlers(states),
        )
        groups, group_admin = GroupHandlers(coordinator, assigned), GroupAdminHandlers(coordinator)
        consumers = ConsumerGroupHandlers(coordinator, assigned)
        self.table: Mapping[int, Handler] = MappingProxyType(
            {
                **OF_ADMINS,
                ApiKey.PRODUCE: produce.produce,
                ApiKey.FETCH: fetch.fetch,
                ApiKey.LIST_OFFSETS: fetch.list_offsets,
                ApiKey.METADATA: cluster.metadata,
                ApiKey.OFFSET_COMMIT: groups.commit,
                ApiKey.OFFSET_FETCH: groups.fetch_offsets,
                ApiKey.FIND_COORDINATOR: groups.find,
                ApiKey.JOIN_GROUP: groups.join,
                ApiKey.HEARTBEAT: groups.heartbeat,
                ApiKey.LEAVE_GROUP: groups.leave,
                ApiKey.SYNC_GROUP: groups.sync,
                ApiKey.DESCRIBE_GROUPS: group_admin.describe,
                ApiKey.LIST_GROUPS: group_admin.list_groups,
                ApiKey.API_VERSIONS: cluster.api_versions,
                ApiKey.INIT_PRODUCER_ID: handlers.begin,
                ApiKey.ADD_PARTITIONS_TO_TXN: handlers.add_partitions,
                ApiKey.ADD_OFFSETS_TO_TXN: handlers.add_offsets,
                ApiKey.END_TXN: handlers.end,
                ApiKey.WRITE_TXN_MARKERS: handlers.write_markers,
                ApiKey.TXN_OFFSET_COMMIT: handlers.commit_offsets,
                ApiKey.DESCRIBE_TRANSACTIONS: handlers.describe,
                ApiKey.LIST_TRANSACTIONS: handlers.list_transactions,
                ApiKey.OFFSET_FOR_LEADER_EPOCH: fetch.offset_for_leader_epoch,
                ApiKey.DELETE_GROUPS: group_admin.delete,
                ApiKey.CONSUMER_GROUP_HEARTBEAT: consumers.heartbeat,
                ApiKey.CONSUMER_GROUP_DESCRIBE: consumers.describe,
                ApiKey.SHARE_GROUP_HEARTBEAT: shares.heartbeat,
                ApiKey.SHARE_GROUP_DESCRIBE: shares.describe,
                ApiKey.SHARE_FETCH: records.fetch,
                ApiKey.SHARE_ACKNOWLEDGE: records.acknowledge,
                ApiKey.READ_SHARE_GROUP_STATE: state_requests.read,
                ApiKey.WRITE_SHARE_GROUP_STATE: state_requests.write,
                ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: shares.describe_starts,
                ApiKey.ALTER_SHARE_GROUP_OFFSETS: shares.alter_starts,
                ApiKey.DELETE_SHARE_GROUP_OFFSETS: shares.delete_starts,
                ApiKey.OFFSET_DELETE: group_admin.delete_offsets,
                ApiKey.SASL_HANDSHAKE: authentication.handshake,
                ApiKey.SASL_AUTHENTICATE: authentication.authenticate,
            }
        )

    def produce_now(
        self, session: KafkaSession, head: RequestHead, request: Any, answer: Callable[[Any], None]
    ) -> bool:
        return produce.produce_now(session, head, request, answer)


class AuthorizedRequestTable(RequestTable):
    """With the rules before the handlers: a request without a rule has no place in it."""

    def __init__(
        self, coordinator: Coordinator, transactions: Transactions, coordinated: CoordinatedGroups
    ) -> None:
        super().__init__(coordinator, transactions, coordinated)
        plain = self.table
        assert plain.keys() == RULES.keys(), "every request has a rule"
        self.table = MappingProxyType(
            {key: _ruled(RULES[key], handler) for key, handler in plain.items()}
        )

    def produce_now(
        self, session: KafkaSession, head: RequestHead, request: Any, answer: Callable[[Any], None]
    ) -> bool:
        """What is not known to be granted goes the other way, where it is asked for."""
        if request.transactional_id is not None:
            return False
        known = session.grants.known
        if not all(known(Action.PRODUCE, topic.name) for topic in request.topics):
            return False
        return super().produce_now(session, head, request, answer)


def _ruled(rule: Rule, handler: Handler) -> Handler:
    async def ruled(session: KafkaSession, head: RequestHead, request: Any) -> Any:
        return await rule(session, head, request, handler)

    return ruled
