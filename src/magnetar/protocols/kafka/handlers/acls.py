"""ACLs, of which there are none: DescribeAcls, CreateAcls, DeleteAcls.

They are answered as by a broker of Kafka's without an authorizer, with ``SECURITY_DISABLED``, which
admin clients show with the text, and tools take for what it is. The text says what stands for
ACLs here, or that nobody is asked who it is. No request changes anything, so that anybody may
ask.

Why: docs/adr/0189-acls-are-refused-in-clients-words.md.
"""

from __future__ import annotations

from typing import Final

from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.acl_messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    FilteredAcls,
)
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode

_NONE: Final = ErrorCode.SECURITY_DISABLED
_NO_AUTHORIZER: Final = "No Authorizer is configured"
NOBODY_IS_ASKED: Final = (
    f"{_NO_AUTHORIZER}: clients are not asked who they are, and may do anything "
    "(security.authentication is off)"
)
PERMISSIONS_INSTEAD: Final = (
    f"{_NO_AUTHORIZER} for ACLs: what a role may do is said of namespaces and topics, by "
    "`magnetar namespaces permissions`, `magnetar topics permissions` or REST"
)


def _why(session: KafkaSession) -> str:
    return NOBODY_IS_ASKED if session.services.access is None else PERMISSIONS_INSTEAD


async def describe_acls(
    session: KafkaSession, head: RequestHead, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_NONE, error_message=_why(session))


async def create_acls(
    session: KafkaSession, head: RequestHead, request: CreateAclsRequest
) -> CreateAclsResponse:
    why = _why(session)
    return CreateAclsResponse(results=[CreatedAcl(_NONE, why) for _ in request.creations])


async def delete_acls(
    session: KafkaSession, head: RequestHead, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    why = _why(session)
    return DeleteAclsResponse(results=[FilteredAcls(_NONE, why) for _ in request.filters])
