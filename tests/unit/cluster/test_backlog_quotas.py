"""Backlog quotas as Pulsar's clients say them, and which word counts."""

from __future__ import annotations

import pytest

from magnetar.cluster.policies.backlog_quotas import (
    NO_QUOTAS,
    NOTHING,
    UNLIMITED,
    BacklogQuota,
    BacklogQuotas,
    QuotaAction,
    check_retention,
)
from magnetar.cluster.policies.policies import Policies, decode_policies, encode_value
from magnetar.model.errors import InvalidPolicyError

HOLD, EVICTION = QuotaAction.HOLD, QuotaAction.EVICTION
JAVA = {"limit": -1, "limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"limit": "10240", "policy": "producer_request_hold"}, BacklogQuota(10_240, -1, HOLD)),
        ({"limit": 10, "policy": "producer_request_hold"}, BacklogQuota(10, -1, HOLD)),
        (JAVA, BacklogQuota(10, -1, HOLD)),
        (
            {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"},
            BacklogQuota(-1, 60, EVICTION),
        ),
        ({"policy": "producer_exception"}, BacklogQuota(-1, -1, QuotaAction.EXCEPTION)),
    ],
)
def test_what_clients_say(said: object, meant: BacklogQuota) -> None:
    assert BacklogQuota.decode(said) == meant
    assert BacklogQuota.decode(meant.encode()) == meant


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "a JSON object"),
        ({"limitSize": 10}, "policy"),
        ({"limitSize": 10, "policy": "odd"}, "producer_request_hold, producer_exception"),
        ({"limitSize": 10, "policy": 3}, "policy"),
        ({"limitSize": -2, "policy": "producer_exception"}, "limitSize"),
        ({"limitSize": 2**63, "policy": "producer_exception"}, "limitSize"),
        ({"limit": "many", "policy": "producer_exception"}, "limit"),
        ({"limitTime": 2**31, "policy": "producer_exception"}, "limitTime"),
        ({"limitTime": True, "policy": "producer_exception"}, "limitTime"),
        ({"other": 1, "policy": "producer_exception"}, "other"),
    ],
)
def test_what_cannot_be_meant(said: object, why: str) -> None:
    with pytest.raises(InvalidPolicyError, match=why):
        BacklogQuota.decode(said)


def test_each_kind_is_said_for_itself() -> None:
    size, age = BacklogQuota(10), BacklogQuota(-1, 60, EVICTION)
    said = NOTHING.with_kind("destination_storage", size)
    assert said == BacklogQuotas(storage=size)
    both = BacklogQuotas(storage=size).with_kind("message_age", age)
    assert both == BacklogQuotas(size, age)
    assert BacklogQuotas.decode(BacklogQuotas(size, age).encode()) == both
    assert BacklogQuotas(size).with_kind("destination_storage", None) is None
    with pytest.raises(InvalidPolicyError, match="odd"):
        BacklogQuotas.decode({"odd": size.encode()})


def test_a_topics_word_counts_before_its_namespaces_kind_by_kind() -> None:
    size, other, age = BacklogQuota(10), BacklogQuota(20), BacklogQuota(-1, 60, EVICTION)
    topic = Policies(backlog_quotas=BacklogQuotas(storage=size))
    namespace = Policies(backlog_quotas=BacklogQuotas(other, age))
    assert topic.over(namespace).backlog_quotas == BacklogQuotas(size, age)
    assert Policies().over(namespace).backlog_quotas == namespace.backlog_quotas
    assert topic.over(Policies()).backlog_quotas == topic.backlog_quotas


def test_they_stand_in_a_node_by_pulsars_name() -> None:
    quotas = BacklogQuotas(BacklogQuota(10), None)
    node = {"backlog_quota_map": encode_value(quotas)}
    assert decode_policies(node).backlog_quotas == quotas
    assert decode_policies({"backlog_quota_map": {}}).backlog_quotas == NOTHING


def test_which_limit_counts() -> None:
    mixed = BacklogQuotas(BacklogQuota(-1, 5), BacklogQuota(5, -1))
    assert not mixed.limited, "each kind has its own"
    assert not NO_QUOTAS.limited
    assert not NOTHING.limited
    assert BacklogQuotas(BacklogQuota(0), UNLIMITED).limited
    assert not BacklogQuotas(UNLIMITED, BacklogQuota(-1, 0, EVICTION)).evicts_by_age
    assert BacklogQuotas(UNLIMITED, BacklogQuota(-1, 1, EVICTION)).evicts_by_age
    assert BacklogQuotas(BacklogQuota(1, -1, EVICTION)).evicts_bytes
    assert not BacklogQuotas(BacklogQuota(-1, -1, EVICTION)).evicts_bytes


@pytest.mark.parametrize(
    ("quota", "minutes", "megabytes", "fits"),
    [
        (BacklogQuota(10 << 20), -1, -1, True),
        (BacklogQuota(10 << 20), 0, 0, True),
        (BacklogQuota(10 << 20), 5, 11, True),
        (BacklogQuota(10 << 20), 5, 10, False),
        (BacklogQuota(10 << 20), -1, 10, False),
        (BacklogQuota(-1, 60), 1, -1, False),
        (BacklogQuota(-1, 59), 1, -1, True),
        (BacklogQuota(-1, -1), 1, 1, True),
    ],
)
def test_retention_is_to_exceed_it(
    quota: BacklogQuota, minutes: int, megabytes: int, fits: bool
) -> None:
    check_retention(None, minutes, megabytes, "")
    if fits:
        check_retention(quota, minutes, megabytes, "keep more")
    else:
        with pytest.raises(InvalidPolicyError, match="keep more"):
            check_retention(quota, minutes, megabytes, "keep more")
