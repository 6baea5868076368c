"""Bounds on what a client says of itself and that is kept: names and properties. Pure.

A frame may have megabytes, and what a producer or subscription is called is kept as long as it is
there, told to others and, for a durable subscription, stored. Raises ``NotAllowedError``, which no
client asks again on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from magnetar.model.errors import NotAllowedError
from magnetar.wire.pulsar.pulsar_pb2 import CommandProducer, CommandSubscribe, KeyValue

NAME_CHARACTERS_MAX: Final = 512
PROPERTIES_BYTES_MAX: Final = 64 << 10
PROPERTIES_MAX: Final = 10_000
"""Some milliseconds of the loop. All are counted; of several of one name the last is kept."""
ACK_BYTES_LONG: Final = 512 << 10
"""From here on it is asked how many ids an ACK has before they are read."""
ACK_IDS_MAX: Final = 60_000
"""More than may be out at a consumer of a shared subscription, and than any client collects. They
are read, and taken, in one turn of the loop."""


def kept_version(client_version: str) -> str:
    """What of a client's name and release is shown to others."""
    return client_version[:NAME_CHARACTERS_MAX]


def check_ack(id_count: int) -> None:
    if id_count > ACK_IDS_MAX:
        raise NotAllowedError(
            f"an acknowledgement of {id_count} messages; {ACK_IDS_MAX} at most are taken at a "
            "time: acknowledge in several"
        )


def check_producer(request: CommandProducer) -> Mapping[str, str]:
    """The properties of a PRODUCER whose names and properties can be kept."""
    _check_name("producer's", request.producer_name)
    _check_name("subscription's", request.initial_subscription_name)
    return _kept(f"a producer of {request.topic}", request.metadata)


def check_subscribe(request: CommandSubscribe) -> Mapping[str, str]:
    """The properties of a SUBSCRIBE whose names and properties can be kept."""
    _check_name("consumer's", request.consumer_name)
    return check_subscription(request.subscription, request.subscription_properties)


def check_subscription(name: str, pairs: Collection[KeyValue]) -> Mapping[str, str]:
    """The properties of a subscription whose name and properties can be kept."""
    _check_name("subscription's", name)
    return _kept(f"subscription {name}", pairs)


def consumer_properties(request: CommandSubscribe) -> Mapping[str, str]:
    """What the application says of its consumer."""
    return _kept(f"a consumer of {request.subscription}", request.metadata)


def _kept(whose: str, pairs: Collection[KeyValue]) -> Mapping[str, str]:
    if len(pairs) > PROPERTIES_MAX:
        raise NotAllowedError(
            f"{whose}: {len(pairs)} properties; at most {PROPERTIES_MAX} are taken"
        )
    found = {item.key: item.value for item in pairs}
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > PROPERTIES_BYTES_MAX:
        raise NotAllowedError(
            f"{whose}: properties of {size} characters; at most {PROPERTIES_BYTES_MAX} are kept"
        )
    return found


def _check_name(whose: str, name: str) -> None:
    if len(name) > NAME_CHARACTERS_MAX:
        raise NotAllowedError(
            f"a {whose} name has {NAME_CHARACTERS_MAX} characters at most, not {len(name)}"
        )
