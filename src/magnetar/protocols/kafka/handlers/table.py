"""The table of requests: which function answers which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.transactions import Transactions
from magnetar.protocols.kafka.handlers import admin, cluster, fetch, partition_admin, produce
from magnetar.protocols.kafka.handlers.group_admin import GroupAdminHandlers
from magnetar.protocols.kafka.handlers.groups import GroupHandlers
from magnetar.protocols.kafka.handlers.transaction_requests import TransactionHandlers
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.apis import ApiKey, RequestHead


class RequestTable:
    """``session.KafkaHandlers``."""

    def __init__(self, coordinator: Coordinator, transactions: Transactions) -> None:
        handlers = TransactionHandlers(transactions)
        groups, group_admin = GroupHandlers(coordinator), GroupAdminHandlers(coordinator)
        self.table: Mapping[int, Handler] = MappingProxyType(
            {
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
                ApiKey.CREATE_TOPICS: admin.create_topics,
                ApiKey.DELETE_TOPICS: admin.delete_topics,
                ApiKey.DELETE_RECORDS: partition_admin.delete_records,
                ApiKey.INIT_PRODUCER_ID: handlers.begin,
                ApiKey.ADD_PARTITIONS_TO_TXN: handlers.add_partitions,
                ApiKey.ADD_OFFSETS_TO_TXN: handlers.add_offsets,
                ApiKey.END_TXN: handlers.end,
                ApiKey.WRITE_TXN_MARKERS: handlers.write_markers,
                ApiKey.TXN_OFFSET_COMMIT: handlers.commit_offsets,
                ApiKey.DESCRIBE_TRANSACTIONS: handlers.describe,
                ApiKey.LIST_TRANSACTIONS: handlers.list_transactions,
                ApiKey.OFFSET_FOR_LEADER_EPOCH: fetch.offset_for_leader_epoch,
                ApiKey.DESCRIBE_CONFIGS: admin.describe_configs,
                ApiKey.ALTER_CONFIGS: admin.alter_configs,
                ApiKey.CREATE_PARTITIONS: admin.create_partitions,
                ApiKey.DELETE_GROUPS: group_admin.delete,
                ApiKey.INCREMENTAL_ALTER_CONFIGS: admin.incremental_alter_configs,
                ApiKey.ELECT_LEADERS: partition_admin.elect_leaders,
                ApiKey.LIST_PARTITION_REASSIGNMENTS: partition_admin.list_reassignments,
                ApiKey.DESCRIBE_TOPIC_PARTITIONS: partition_admin.describe_topic_partitions,
                ApiKey.OFFSET_DELETE: group_admin.delete_offsets,
                ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
            }
        )

    def produce_now(
        self, session: KafkaSession, head: RequestHead, request: Any, answer: Callable[[Any], None]
    ) -> bool:
        return produce.produce_now(session, head, request, answer)
