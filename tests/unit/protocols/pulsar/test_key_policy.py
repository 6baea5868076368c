"""What a SUBSCRIBE asks for of a Key_Shared subscription, and what of it is refused."""

from __future__ import annotations

import pytest

from magnetar.model.errors import ConsumerAssignError, NotAllowedError
from magnetar.protocols.pulsar.key_shared import key_policy
from magnetar.topics.consuming.subscription import Kind
from magnetar.topics.dispatch.key_policy import HashRange, KeyMode, KeyPolicy
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe, KeySharedMode


def asked(mode: KeySharedMode.ValueType, count: int) -> CommandSubscribe:
    request = CommandSubscribe(subscription="s")
    request.keySharedMeta.keySharedMode = mode
    for number in range(count):
        request.keySharedMeta.hashRanges.add(start=number, end=number)
    return request


def test_ranges_are_those_of_a_sticky_consumer() -> None:
    found = key_policy(asked(KeySharedMode.STICKY, 2), Kind.KEY_SHARED)
    assert found == KeyPolicy(KeyMode.STICKY, False, [HashRange(0, 0), HashRange(1, 1)])
    assert key_policy(asked(KeySharedMode.AUTO_SPLIT, 0), Kind.KEY_SHARED) == KeyPolicy()
    assert key_policy(CommandSubscribe(), Kind.SHARED) is None


@pytest.mark.parametrize(
    ("mode", "count", "why"),
    [
        (KeySharedMode.AUTO_SPLIT, 1, "sticky"),
        (KeySharedMode.STICKY, 65_537, "65536 hashes"),
        (KeySharedMode.STICKY, 0, "empty"),
    ],
)
def test_ranges_that_mean_nothing_are_refused(
    mode: KeySharedMode.ValueType, count: int, why: str
) -> None:
    with pytest.raises(ConsumerAssignError, match=why):
        key_policy(asked(mode, count), Kind.KEY_SHARED)
    if count:
        with pytest.raises(NotAllowedError):
            key_policy(asked(mode, count), Kind.EXCLUSIVE)
        reader = asked(mode, count)
        reader.durable = False
        with pytest.raises(ConsumerAssignError, match=why):
            key_policy(reader, Kind.EXCLUSIVE)
        with pytest.raises(NotAllowedError):
            key_policy(reader, Kind.SHARED)


def test_a_reader_has_ranges() -> None:
    request = asked(KeySharedMode.STICKY, 2)
    request.durable = False
    found = key_policy(request, Kind.EXCLUSIVE)
    assert found is not None
    assert [found.takes(each) for each in (0, 1, 2, 65_536, 65_537, 65_538)] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]
