"""Quotas of clients, of which there are none: DescribeClientQuotas, AlterClientQuotas.

`kafka-configs` asks for them before it describes a user. One that is to be set is refused, with the
reason; one that is to be removed is not there, and so is not when that is answered.
"""

from __future__ import annotations

from typing import Final

from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.quota_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaChanges,
)

NO_QUOTAS: Final = (
    "there are no quotas of clients: what one connection may take is bounded for all by the "
    "broker's settings (broker.connections_max, .pending_publish_bytes_per_connection)"
)


async def describe_quotas(
    session: KafkaSession, head: RequestHead, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse()


async def alter_quotas(
    session: KafkaSession, head: RequestHead, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[_altered(each) for each in request.entries])


def _altered(asked: QuotaChanges) -> AlteredQuotas:
    if all(change.removes for change in asked.changes):
        return AlteredQuotas(entities=asked.entities)
    return AlteredQuotas(ErrorCode.POLICY_VIOLATION, NO_QUOTAS, asked.entities)
