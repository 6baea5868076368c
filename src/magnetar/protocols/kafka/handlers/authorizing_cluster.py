"""Requests about the cluster: super-users' alone. See ``authorizing``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from magnetar.protocols.kafka.handlers.authorizing import NO_CLUSTER, WHY_CLUSTER, Rule
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.log_dir_messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsResponse,
    MovedPartition,
    MovedTopic,
)
from magnetar.wire.kafka.partition_messages import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)
from magnetar.wire.kafka.quota_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasResponse,
)
from magnetar.wire.kafka.scram_messages import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponse,
)


def for_super_users(refusal: Callable[[Any], Any]) -> Rule:
    """``refusal`` makes the answer for everybody else, of the request."""

    async def rule(session: KafkaSession, head: RequestHead, request: Any, handler: Handler) -> Any:
        return await handler(session, head, request) if session.grants.cluster else refusal(request)

    return rule


def _not_moved(request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            MovedTopic(topic.name, [MovedPartition(each, NO_CLUSTER) for each in topic.partitions])
            for where in request.dirs
            for topic in where.topics
        ]
    )


def _not_altered(request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[AlteredUser(name, NO_CLUSTER, WHY_CLUSTER) for name in request.names()]
    )


def _no_quotas(request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[AlteredQuotas(NO_CLUSTER, WHY_CLUSTER, each.entities) for each in request.entries]
    )


elect_leaders: Final = for_super_users(lambda _: ElectLeadersResponse(error_code=NO_CLUSTER))
list_reassignments: Final = for_super_users(
    lambda _: ListPartitionReassignmentsResponse(error_code=NO_CLUSTER, error_message=WHY_CLUSTER)
)
alter_reassignments: Final = for_super_users(
    lambda _: AlterPartitionReassignmentsResponse(error_code=NO_CLUSTER, error_message=WHY_CLUSTER)
)
# Before version 3 an answer without directories says it, as in Kafka.
describe_log_dirs: Final = for_super_users(lambda _: DescribeLogDirsResponse(error_code=NO_CLUSTER))
alter_replica_log_dirs: Final = for_super_users(_not_moved)
describe_quotas: Final = for_super_users(
    lambda _: DescribeClientQuotasResponse(
        error_code=NO_CLUSTER, error_message=WHY_CLUSTER, entries=None
    )
)
alter_quotas: Final = for_super_users(_no_quotas)
describe_users: Final = for_super_users(
    lambda _: DescribeUserScramCredentialsResponse(error_code=NO_CLUSTER, error_message=WHY_CLUSTER)
)
alter_users: Final = for_super_users(_not_altered)
