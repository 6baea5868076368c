"""ACLs are not there, and clients are told so in the words that they know."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.protocols.kafka.handlers.acls import NOBODY_IS_ASKED, PERMISSIONS_INSTEAD
from magnetar.wire.kafka.acl_messages import (
    AclCreation,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run
from tests.unit.protocols.kafka.secured import SecuredWorld, run_secured

NONE = ErrorCode.SECURITY_DISABLED
TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3


async def told(peer: KafkaPeer, version: int) -> set[tuple[int, str | None]]:
    """What is said of each part of each request."""
    described = await peer.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(), version)
    assert described.resources == []
    rule = AclCreation(TOPIC, "t", LITERAL, "User:bob", "*", READ, ALLOW)
    created = await peer.ask(ApiKey.CREATE_ACLS, CreateAclsRequest([rule, rule]), version)
    of = AclFilter(TOPIC, None, LITERAL, None, None, READ, ALLOW)
    deleted = await peer.ask(ApiKey.DELETE_ACLS, DeleteAclsRequest([of, of, of]), version)
    assert (len(created.results), len(deleted.results)) == (2, 3)
    answers = [described, *created.results, *deleted.results]
    return {(each.error_code, each.error_message) for each in answers}


@pytest.mark.parametrize("version", range(4))
def test_without_authentication_there_is_no_authorizer(version: int) -> None:
    async def scenario(world: KafkaWorld) -> None:
        assert await told(world.peer(), version) == {(NONE, NOBODY_IS_ASKED)}

    run(scenario)


def test_with_authentication_permissions_are_named_instead(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        assert await told(await world.known("alice"), 3) == {(NONE, PERMISSIONS_INSTEAD)}

    run_secured(tmp_path, scenario)
