"""File descriptors: how many this process may have, and who gets them.

Storage comes first: a connection that is refused costs one client a retry, a file that cannot be
opened costs everybody. So a share is kept for files (entry logs, indexes, journals, metadata,
REST), and what clients and peers connect to may take the rest, over all listeners together.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

LIMIT_MAX = 1 << 20
"""More than that is not asked for: the kernel's tables grow with it."""

HTTP_SHARE = 8
HTTP_LIMIT_SHARE = 32
HTTP_CONNECTIONS_MAX = 2048
"""Java's client, with a service URL ``http://``, looks up each topic, or partition, on a connection
of its own, all at once: a consumer of a few hundred has as many for a moment, and gives up at the
first that is refused. Pulsar's brokers take as many."""


class DescriptorPlan(NamedTuple):
    """``limit`` of the process, ``reserved`` of it for files and some of REST's connections."""

    limit: int
    reserved: int

    @property
    def connections_max(self) -> int:
        """Of all listeners but REST's."""
        return self.limit - self.others_max

    @property
    def others_max(self) -> int:
        """Files, and connections of REST."""
        return self.reserved + self.http_connections_max - self._http_reserved

    @property
    def http_connections_max(self) -> int:
        """A part of what is reserved, whatever the limit: REST is wanted above all when connections
        are refused. The others are a part of the limit, and so not at the cost of files."""
        return min(HTTP_CONNECTIONS_MAX, self._http_reserved + self.limit // HTTP_LIMIT_SHARE)

    @property
    def _http_reserved(self) -> int:
        return max(1, min(HTTP_CONNECTIONS_MAX, self.reserved // HTTP_SHARE))


def plan_descriptors(limit: int, wanted: int) -> DescriptorPlan:
    """``wanted`` are reserved; where the limit is too small for that, two of three."""
    return DescriptorPlan(limit, min(wanted, limit * 2 // 3))


def raise_limit() -> int:
    """Take as many descriptors as we are allowed to; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def open_descriptors() -> int:
    """How many are in use now."""
    return len(os.listdir("/proc/self/fd"))
