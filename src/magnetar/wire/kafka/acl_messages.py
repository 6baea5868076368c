"""ACLs: DescribeAcls, CreateAcls, DeleteAcls.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.kafka.schema import array, int8, int16, int32, message, text

LITERAL: Final = 3
"""Of ``pattern_type``, and what it is before version 1."""


@message(flexible=2)
class DescribeAclsRequest:
    """None in a name: any."""

    resource_type: int = int8()
    resource_name: str | None = text(None, null=0)
    pattern_type: int = int8(LITERAL, since=1)
    principal: str | None = text(None, null=0)
    host: str | None = text(None, null=0)
    operation: int = int8()
    permission_type: int = int8()


@message()
class AclDescription:
    principal: str = text()
    host: str = text()
    operation: int = int8()
    permission_type: int = int8()


@message()
class AclResource:
    resource_type: int = int8()
    resource_name: str = text()
    pattern_type: int = int8(LITERAL, since=1)
    acls: list[AclDescription] = array(AclDescription)


@message(flexible=2)
class DescribeAclsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    resources: list[AclResource] = array(AclResource)


@message()
class AclCreation:
    resource_type: int = int8()
    resource_name: str = text()
    pattern_type: int = int8(LITERAL, since=1)
    principal: str = text()
    host: str = text()
    operation: int = int8()
    permission_type: int = int8()


@message(flexible=2)
class CreateAclsRequest:
    creations: list[AclCreation] = array(AclCreation)


@message()
class CreatedAcl:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=2)
class CreateAclsResponse:
    """In the order of the request's."""

    throttle_time_ms: int = int32()
    results: list[CreatedAcl] = array(CreatedAcl)


@message()
class AclFilter:
    resource_type: int = int8()
    resource_name: str | None = text(None, null=0)
    pattern_type: int = int8(LITERAL, since=1)
    principal: str | None = text(None, null=0)
    host: str | None = text(None, null=0)
    operation: int = int8()
    permission_type: int = int8()


@message(flexible=2)
class DeleteAclsRequest:
    filters: list[AclFilter] = array(AclFilter)


@message()
class DeletedAcl:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    resource_type: int = int8()
    resource_name: str = text()
    pattern_type: int = int8(LITERAL, since=1)
    principal: str = text()
    host: str = text()
    operation: int = int8()
    permission_type: int = int8()


@message()
class FilteredAcls:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    deleted: list[DeletedAcl] = array(DeletedAcl)


@message(flexible=2)
class DeleteAclsResponse:
    """In the order of the request's filters."""

    throttle_time_ms: int = int32()
    results: list[FilteredAcls] = array(FilteredAcls)
