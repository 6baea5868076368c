"""Bounds on what a client says of itself and that is kept: names and properties. Pure.

A frame may have megabytes, and what a producer or subscription is called is kept as long as it is
there, told to others and, for a durable subscription, stored. Raises ``NotAllowedError``, which no
client asks again on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from magnetar.model.errors import NotAllowedError
from magnetar.wire.pulsar.pulsar_pb2 import CommandProducer, CommandSubscribe, KeyValue

NAME_CHARACTERS_MAX: Final = 512
PROPERTIES_BYTES_MAX: Final = 64 << 10


def kept_version(client_version: str) -> str:
    """What of a client's name and release is shown to others."""
    return client_version[:NAME_CHARACTERS_MAX]


def check_producer(request: CommandProducer) -> Mapping[str, str]:
    """The properties of a PRODUCER whose names and properties can be kept."""
    _check_name("producer's", request.producer_name)
    _check_name("subscription's", request.initial_subscription_name)
    return _kept(f"a producer of {request.topic}", request.metadata)


def check_subscribe(request: CommandSubscribe) -> Mapping[str, str]:
    """The properties of a SUBSCRIBE whose names and properties can be kept."""
    _check_name("consumer's", request.consumer_name)
    return check_subscription(request.subscription, request.subscription_properties)


def check_subscription(name: str, pairs: Iterable[KeyValue]) -> Mapping[str, str]:
    """The properties of a subscription whose name and properties can be kept."""
    _check_name("subscription's", name)
    return _kept(f"subscription {name}", pairs)


def consumer_properties(request: CommandSubscribe) -> Mapping[str, str]:
    """What the application says of its consumer."""
    return _kept(f"a consumer of {request.subscription}", request.metadata)


def _kept(whose: str, pairs: Iterable[KeyValue]) -> Mapping[str, str]:
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
