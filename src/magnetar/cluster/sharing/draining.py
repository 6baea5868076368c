"""Giving bundles away one after the other, no faster than others can open their topics.

Closing a topic is less than opening it and getting its clients back. Bundles given away as fast
as they can be closed pile up where they go to, and the topics of the last are away as long as all
take together. Nobody tells when a bundle's topics are open elsewhere; so each is given the time
that its closing took, ``OPENING`` times over, which is long where machines are slow or busy and
short where they are not. The topics that wait for their turn are served meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from magnetar.cluster.bundles import Bundle

OPENING: Final = 3.0
WAITING_S_MAX: Final = 20.0
"""In all: whoever stops a broker does not wait for ever."""


async def release_in_turn(
    left: Callable[[], Sequence[Bundle]],
    release: Callable[[Bundle], Awaitable[object]],
    taken: bool,
) -> None:
    """Until none is left: one that is released, or cut, meanwhile is looked for again. ``taken``:
    somebody is there who takes them; nobody is waited for else."""
    clock_s = asyncio.get_running_loop().time
    waits_s = WAITING_S_MAX if taken else 0.0
    while waiting := left():
        # One by one: with two at a time each topic was away for nearly twice as long.
        for bundle in waiting:
            begun_s = clock_s()
            await release(bundle)
            pause_s = min(OPENING * (clock_s() - begun_s), waits_s)
            if left():
                await asyncio.sleep(pause_s)
                waits_s -= pause_s
