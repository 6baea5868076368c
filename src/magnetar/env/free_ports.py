"""Ports for servers that start later, or again: as other processes, or after a kill.

A port that the kernel chose (of port 0) and that is closed again may be somebody else's before its
server has it: the kernel gives those (from 32768 on, by Linux's default) to whoever connects. So
these lie below them, and each is handed out once by a process until all have been.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

from magnetar.env.listening import bind
from magnetar.model.errors import StartError

FIRST: Final = 10_000
LAST: Final = 31_999

_BEGIN: Final = FIRST + os.getpid() * 331 % (LAST - FIRST)
"""Processes that are begun one after the other begin far from each other."""
_PORTS: Final[Iterator[int]] = itertools.cycle((*range(_BEGIN, LAST + 1), *range(FIRST, _BEGIN)))


def free_port(host: str = "127.0.0.1", setting: str = "port") -> int:
    """One that nobody listens on now, at that address. ``setting`` is what it is for. Raises
    ``StartError``: the address is not this machine's, or all are taken."""
    bind(host, 0, setting).close()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in itertools.islice(_PORTS, LAST + 1 - FIRST):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise StartError(f"{setting} = 0: no port from {FIRST} to {LAST} is free on {host}")
