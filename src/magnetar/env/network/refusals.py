"""What is logged of requests that are refused, or that fail, with a bound for each client.

A client that asks again at once brings about a line each time: 5 000 requests, a chunk of 250 KB,
were most of a megabyte of the log. Of each host the first ``LINES`` are logged in ``PERIOD_S``, the
last of them says so; how many were not is said with the next one that is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import structlog

log = structlog.get_logger(__name__)

LINES: Final = 50
PERIOD_S: Final = 10.0
HOSTS_MAX: Final = 1000
"""That are known; the one that was logged first makes place."""


class _LinesOfHost:
    """Of one host."""

    __slots__ = ("begun_s", "lines", "unsaid")

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.lines = 0
        self.unsaid = 0


class Refusals:
    """Of all connections of a process."""

    __slots__ = ("_hosts",)

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, _LinesOfHost] = OrderedDict()

    def say(self, event: str, peer: str, warn: bool = False, **fields: str) -> None:
        """``peer``: ``host:port``, whatever port it has come from; ``warn``: it is a warning."""
        said = self._of(peer.rpartition(":")[0])
        if said.lines >= LINES:
            said.unsaid += 1
            return
        said.lines += 1
        if said.lines == LINES:
            fields["then"] = f"no more of this host for {PERIOD_S:.0f} s"
        if said.unsaid:
            fields["unsaid"] = str(said.unsaid)
            said.unsaid = 0
        (log.warning if warn else log.info)(event, peer=peer, **fields)

    def _of(self, host: str) -> _LinesOfHost:
        now_s = asyncio.get_running_loop().time()
        said = self._hosts.get(host)
        if said is None:
            said = self._hosts[host] = _LinesOfHost(now_s)
            if len(self._hosts) > HOSTS_MAX:
                self._hosts.popitem(last=False)
        elif now_s - said.begun_s >= PERIOD_S:
            said.begun_s, said.lines = now_s, 0
        return said
