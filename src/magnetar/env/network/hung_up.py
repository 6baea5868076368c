"""Which connections the other side has ended that are not read just now.

A loop hears of the end of a connection when it reads from it. One that is not read (``pause`` of
``env.network.framed``) while a request waits is not known to be over before its answer is written.
The system knows, and says so without reading, also where something else has arrived before the end.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Final

OVER: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def hung_up(descriptors: Iterable[int]) -> list[int]:
    """Those of sockets whose other side sends no more. Waits for nothing."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, OVER)
    return [each for each, said in poll.poll(0) if said & OVER]
