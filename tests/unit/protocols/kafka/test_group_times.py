"""What members of groups are told of times that were set, and what may be set."""

from __future__ import annotations

import pytest

from magnetar.config import KafkaConfig
from magnetar.model.errors import InvalidPolicyError
from magnetar.protocols.kafka.group_settings import GroupTimes, check_times, told_times

CONFIG = KafkaConfig(consumer_session_timeout_ms=30_000, consumer_heartbeat_interval_ms=5_000)
SLOW = {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "40000"}


def test_heartbeats_come_before_anybody_is_taken_for_gone() -> None:
    """Also where what was set before does not fit what is configured by now."""
    assert told_times(CONFIG, {}, "consumer") == GroupTimes(30_000, 5_000)
    assert told_times(CONFIG, SLOW, "consumer") == GroupTimes(60_000, 10_000)
    assert told_times(CONFIG, SLOW, "share") == GroupTimes(30_000, 5_000)


def test_times_of_one_kind_of_group_do_not_keep_those_of_the_other_from_being_set() -> None:
    said = {**SLOW, "share.heartbeat.interval.ms": "2000"}
    check_times(CONFIG, said, ["share.heartbeat.interval.ms"])
    with pytest.raises(InvalidPolicyError, match=r"consumer\.heartbeat\.interval\.ms"):
        check_times(CONFIG, said, SLOW)
