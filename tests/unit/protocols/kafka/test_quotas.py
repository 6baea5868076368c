"""Quotas of clients: none can be set, and none is there to be removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.protocols.kafka.handlers.quotas import NO_QUOTAS
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.quota_messages import (
    AlterClientQuotasRequest,
    QuotaChange,
    QuotaChanges,
    QuotaEntity,
)
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run
from tests.unit.protocols.kafka.secured import ROOT, SecuredWorld, run_secured

USER = [QuotaEntity("user", "bob")]
DEFAULT = [QuotaEntity("user", None), QuotaEntity("client-id", "c")]


async def altered(peer: KafkaPeer, version: int) -> list[tuple[int, str | None]]:
    """Of one that sets, and one that removes."""
    sets, removes = QuotaChange("producer_byte_rate", 1.0), QuotaChange("x", removes=True)
    entries = [QuotaChanges(USER, [sets, removes]), QuotaChanges(DEFAULT, [removes])]
    answer = await peer.ask(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(entries), version)
    assert [each.entities for each in answer.entries] == [USER, DEFAULT]
    return [(each.error_code, each.error_message) for each in answer.entries]


@pytest.mark.parametrize("version", range(2))
def test_none_is_set_and_the_reason_is_told(version: int) -> None:
    """It was not advertised, and ended the connection of clients that asked all the same."""

    async def scenario(world: KafkaWorld) -> None:
        refused = ErrorCode.POLICY_VIOLATION, NO_QUOTAS
        assert await altered(world.peer(), version) == [refused, (ErrorCode.NONE, None)]

    run(scenario)


def test_they_are_super_users(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        found = await altered(await world.known("alice"), 1)
        assert {code for code, _ in found} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert (await altered(await world.known(ROOT), 1))[1] == (ErrorCode.NONE, None)

    run_secured(tmp_path, scenario)
