"""What clients may take: DescribeClientQuotas, AlterClientQuotas.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import array, boolean, float64, int8, int16, int32, message, text


@message()
class QuotaFilter:
    """``match``: 0 the name, 1 the default, 2 any name."""

    entity_type: str = text()
    match: int = int8()
    name: str | None = text(None, null=0)


@message(flexible=1)
class DescribeClientQuotasRequest:
    filters: list[QuotaFilter] = array(QuotaFilter)
    is_strict: bool = boolean()


@message()
class QuotaEntity:
    """``name`` None: the default of its type."""

    entity_type: str = text()
    name: str | None = text(None, null=0)


@message()
class QuotaValue:
    key: str = text()
    value: float = float64()


@message()
class QuotaEntry:
    entities: list[QuotaEntity] = array(QuotaEntity)
    values: list[QuotaValue] = array(QuotaValue)


@message(flexible=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    entries: list[QuotaEntry] | None = array(QuotaEntry, null=0)


@message()
class QuotaChange:
    key: str = text()
    value: float = float64()
    removes: bool = boolean()


@message()
class QuotaChanges:
    entities: list[QuotaEntity] = array(QuotaEntity)
    changes: list[QuotaChange] = array(QuotaChange)


@message(flexible=1)
class AlterClientQuotasRequest:
    entries: list[QuotaChanges] = array(QuotaChanges)
    validate_only: bool = boolean()


@message()
class AlteredQuotas:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    entities: list[QuotaEntity] = array(QuotaEntity)


@message(flexible=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int = int32()
    entries: list[AlteredQuotas] = array(AlteredQuotas)
