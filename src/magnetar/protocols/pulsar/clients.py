"""What is known of the official clients, by the version that they name in CONNECT. Pure."""

from __future__ import annotations

import re

_JAVA = re.compile(r"Pulsar-Java-v(\d+)")


def fails_one_send(client_version: str) -> bool:
    """Whether the client takes a SEND_ERROR with NotAllowed for the end of that one message, and
    its producer goes on.

    Java's does (its sources, from 3.0 on). The C++ client and those that wrap it close the whole
    connection, come back and send the same again; Go's forgets the producer, whose messages then
    run into their time-out.
    """
    found = _JAVA.match(client_version)
    return found is not None and int(found.group(1)) >= 3
