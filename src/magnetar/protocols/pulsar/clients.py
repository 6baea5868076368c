"""What is known of the official clients, by the version that they name in CONNECT. Pure."""

from __future__ import annotations

import re
from typing import Final

_JAVA: Final = re.compile(r"Pulsar-Java-v(\d+)")
_NAMED: Final = re.compile(r"Pulsar[- ](Java|CPP|Go)[- ]v?(\d+)\.(\d+)")
_PIPELINE: Final = "magnetar-pipeline"
_DEAF_AT_FIRST: Final = re.compile(r"Pulsar[- ](CPP|Go)")
_JAVA_PATCH: Final = re.compile(r"Pulsar-Java-v(\d+)\.(\d+)\.(\d+)")
_JAVA_SKIPS_UNPAID: Final = {(2, 11): 4, (3, 0): 3, (3, 1): 3, (3, 2): 1}
_FOLLOWS_SINCE: Final = {"Java": (3, 2), "CPP": (3, 5), "Go": (0, 13)}


def fails_one_send(client_version: str) -> bool:
    """Whether the client takes a SEND_ERROR with NotAllowed for the end of that one message, and
    its producer goes on.

    Java's does (its sources, from 3.0 on). The C++ client and those that wrap it close the whole
    connection, come back and send the same again; Go's forgets the producer, whose messages then
    run into their time-out.
    """
    found = _JAVA.match(client_version)
    return found is not None and int(found.group(1)) >= 3


def hears_refused_connect(client_version: str) -> bool:
    """Whether the client understands an ERROR in answer to CONNECT.

    The C++ client, those that wrap it, and Go's take whatever is not CONNECTED for a broken
    connection, and connect again until their time is over; what a request is refused with they
    understand.
    """
    return _DEAF_AT_FIRST.match(client_version) is None


def hears_end_of_topic(client_version: str) -> bool:
    """Whether the client goes on when it is told that a topic is terminated and all of it
    acknowledged.

    The C++ client, those that wrap it, and Go's do not know REACHED_END_OF_TOPIC: they drop the
    connection, with everybody on it, and would be told again as soon as they have come back.
    """
    return _DEAF_AT_FIRST.match(client_version) is None


def follows_assigned_url(client_version: str) -> bool:
    """Whether the client, told by CLOSE_CONSUMER which broker its consumer is assigned to, connects
    there without a lookup (PIP-307). Others look the topic up again, and stand before the owner
    again.

    By their sources: Java, C++ and those that wrap it (Python, Node.js), Go. Nobody announces it,
    so who is not known by name and version counts as one that does not.
    """
    found = _NAMED.match(client_version)
    if found is None:
        return False
    client, major, minor = found.groups()
    return (int(major), int(minor)) >= _FOLLOWS_SINCE[client]


def returns_skipped(client_version: str) -> bool:
    """Whether the client gives back the permits of those messages of a batch that it leaves out
    because the ack set that came with it says that they are acknowledged.

    By their sources: C++ and those that wrap it (Python, Node.js), Go, and Java's before
    apache/pulsar#22091 (2.11.4, 3.0.3, 3.1.3, 3.2.1 and all later lines). Pulsar's broker never
    charges them. Who is not known is taken for one that gives back nothing: if that is wrong it is
    sent more than it asked for, the other way round it would be sent nothing more.
    """
    found = _JAVA_PATCH.match(client_version)
    if found is None:
        return _DEAF_AT_FIRST.match(client_version) is not None
    major, minor, patch = map(int, found.groups())
    since = _JAVA_SKIPS_UNPAID.get((major, minor))
    return (major, minor) < (2, 11) if since is None else patch < since


def is_pipelines(client_version: str) -> bool:
    """Whether it is a client of the pipeline (``pipeline.brokers``): it takes frames of 64 MiB."""
    return client_version.startswith(_PIPELINE)
