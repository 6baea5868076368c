"""Ports for servers that start later, or again: as other processes, or after a kill.

A port that the kernel chose (of port 0) and that is closed again may be somebody else's before its
server has it: the kernel gives those (from 32768 on, by Linux's default) to whoever connects. So
these lie below them, and each is handed out once by a process until all have been. Another process
looks for some at the same time: for what was handed out last a datagram socket is kept at the same
number, which is in nobody's way, and tells them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import Generator, Iterator
from typing import Final

from magnetar.env.network.listening import bind
from magnetar.model.errors import StartError

FIRST: Final = 10_000
LAST: Final = 31_999

_BEGIN: Final = FIRST + os.getpid() * 331 % (LAST - FIRST)
"""Processes that are begun one after the other begin far from each other."""
_PORTS: Final[Iterator[int]] = itertools.cycle((*range(_BEGIN, LAST + 1), *range(FIRST, _BEGIN)))


KEPT: Final = 64
"""Marks of a process; the server of one that is given up has begun long ago."""


def _keeper() -> Generator[None, socket.socket, None]:
    kept: deque[socket.socket] = deque()
    while True:
        kept.append((yield))
        if len(kept) > KEPT:
            kept.popleft().close()


_MARKS: Final = _keeper()
next(_MARKS)


def free_port(host: str = "127.0.0.1", setting: str = "port") -> int:
    """One that nobody listens on now, at that address. ``setting`` is what it is for. Raises
    ``StartError``: the address is not this machine's, or all are taken."""
    bind(host, 0, setting).close()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in itertools.islice(_PORTS, LAST + 1 - FIRST):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            _keep(family, host, port)
            return port
    raise StartError(f"{setting} = 0: no port from {FIRST} to {LAST} is free on {host}")


def _keep(family: socket.AddressFamily, host: str, port: int) -> None:
    """Raises ``OSError``: another process has it."""
    mark = socket.socket(family, socket.SOCK_DGRAM)
    try:
        mark.bind((host, port))
    except OSError:
        mark.close()
        raise
    _MARKS.send(mark)
