"""What can be set for single groups, by Kafka's names: for share groups what ``share_settings``
has, and of all groups whose coordinator knows the members by heartbeats:

===================================  ======================  ======================================
name                                 milliseconds            where nothing is set
===================================  ======================  ======================================
``consumer.session.timeout.ms``      1000 to 1800000         ``kafka.consumer_session_timeout_ms``
``consumer.heartbeat.interval.ms``   1000 to 600000          ``.consumer_heartbeat_interval_ms``
``share.session.timeout.ms``         as consumers'           as consumers'
``share.heartbeat.interval.ms``      as consumers'           as consumers'
===================================  ======================  ======================================

Who sends heartbeats more seldom than his session lasts would be out between two of them: a
heartbeat's interval is less than the session's timeout, and less than the configured one, with
which members are waited for where a coordinator has just taken a group over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.config import KafkaConfig
from magnetar.model.errors import InvalidPolicyError
from magnetar.protocols.kafka.shares import share_settings
from magnetar.protocols.kafka.shares.share_settings import WORDS

CONSUMER, SHARE = "consumer", "share"
SESSION, HEARTBEAT = "session.timeout.ms", "heartbeat.interval.ms"
TIMES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        f"{kind}.{name}": bounds
        for kind in (CONSUMER, SHARE)
        for name, bounds in ((SESSION, (1_000, 1_800_000)), (HEARTBEAT, (1_000, 600_000)))
    }
)
NUMBERS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {**share_settings.NUMBERS, **TIMES}
)
NAMES: Final = (*WORDS, *NUMBERS)
NUMBER: Final = re.compile(r"[0-9]{1,9}")


class GroupTimes(NamedTuple):
    """Of a group's members. ``heartbeat_ms``: what they are told."""

    session_ms: int
    heartbeat_ms: int


def texts(config: KafkaConfig, said: Mapping[str, str]) -> dict[str, str]:
    """What holds for a group for which ``said`` is set."""
    usual = {SESSION: config.consumer_session_timeout_ms}
    usual[HEARTBEAT] = config.consumer_heartbeat_interval_ms
    times = {name: str(usual[name.partition(".")[2]]) for name in TIMES}
    return {**share_settings.texts(config, {}), **times, **said}


def times_of(config: KafkaConfig, said: Mapping[str, str], kind: str) -> GroupTimes:
    """``kind``: ``CONSUMER`` or ``SHARE``."""
    found = texts(config, said)
    return GroupTimes(int(found[f"{kind}.{SESSION}"]), int(found[f"{kind}.{HEARTBEAT}"]))


def told_times(config: KafkaConfig, said: Mapping[str, str], kind: str) -> GroupTimes:
    """As ``times_of``, for members: heartbeats come before anybody is taken for gone, also where
    what was set does not fit what is configured by now, or was set by two at once."""
    times = times_of(config, said, kind)
    below_ms = _heard_within_ms(config, times)
    fits = times.heartbeat_ms < below_ms
    return times if fits else times._replace(heartbeat_ms=max(1, below_ms // 3))


def _heard_within_ms(config: KafkaConfig, times: GroupTimes) -> int:
    """Who is not heard of for so long may be taken for gone."""
    return min(times.session_ms, config.consumer_session_timeout_ms)


def check(name: str, value: str) -> None:
    """Raises ``InvalidPolicyError``."""
    if name in WORDS:
        if value not in WORDS[name]:
            raise InvalidPolicyError(
                f"{name} = {value[:80]!r}: it is {' or '.join(WORDS[name])} here"
            )
        return
    if name not in NUMBERS:
        raise InvalidPolicyError(
            f"{name[:200]} cannot be set for a group here; what can be: {', '.join(NAMES)}"
        )
    least, most = NUMBERS[name]
    if NUMBER.fullmatch(value) is None or not least <= int(value) <= most:
        raise InvalidPolicyError(
            f"{name} = {value[:80]!r}: a whole number from {least} to {most} is expected"
        )


def check_times(config: KafkaConfig, said: Mapping[str, str], wanted: Iterable[str]) -> None:
    """Of all that is to be set for a group, where ``wanted`` are what changes. Raises
    ``InvalidPolicyError``."""
    kinds = {name.partition(".")[0] for name in wanted}
    for kind in kinds & {CONSUMER, SHARE}:
        times = times_of(config, said, kind)
        if times.heartbeat_ms >= _heard_within_ms(config, times):
            raise InvalidPolicyError(
                f"{kind}.{HEARTBEAT} = {times.heartbeat_ms}: it must be less than "
                f"{kind}.{SESSION} ({times.session_ms}) and than kafka.consumer_session_timeout_ms "
                f"({config.consumer_session_timeout_ms})"
            )
