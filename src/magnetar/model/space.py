"""What deletions have left on the disks of a bookie, and when it goes."""

from __future__ import annotations

from typing import NamedTuple


class WaitingSpace(NamedTuple):
    """``byte_count``: in complete entry logs, of what is not live any more; it goes with those
    files, when all of them is dead or they are compacted. ``ledgers``: deleted ones that the bookie
    holds still, until the next look at ``next_look_ms`` (since 1970), or the one after the time of
    grace."""

    byte_count: int
    ledgers: int
    next_look_ms: int
