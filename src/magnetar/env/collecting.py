"""When a process looks for garbage in all of its memory: rules for the garbage collector. Pure.

What is gone by itself costs nothing; the collector is there for cycles. It is generational: what
has outlived one look at the youngest objects is looked at again when much of it has gathered, all
at once, while nothing else of the process runs. With ten thousand topics that is a second. So only
looks at the youngest begin by themselves, and each stops the loop for as long as those take. The
interpreter begins one by a count (``THRESHOLDS``): of what was made less what is gone, of any age.
A server at its steady work lets go of as much that is old as it makes, so that the count stands
still while the young gather: forty thousand were seen, for 40 ms. So a loop that is busy begins
one by the clock too (``young_interval_s``): each object is looked at once all the same, a few at a
time. What is older is looked at by these rules:

* What ends leaves no cycles behind, or few (CONTRIBUTING.md): then old garbage is rare, and a look
  finds nothing.
* Garbage is memory. While memory does not grow nothing is looked for. *Need* is what it has grown
  by since the last look (or since it was less than then), in shares of what may be garbage unseen:
  ``BLOCKS_LEAST`` objects, ``BYTES_LEAST``, or half of what was there, whichever is more.
* From a need of 1 on a look is worth it when nobody waits: the busier the loop was lately, the
  greater the need must be. At ``NEED_ALWAYS`` it comes, busy or not: garbage is bounded.

A process that grows by what it serves is looked at as well, each time it has half as much again.

What holds where: up to Python 3.13 looks at what is older begin by counts alone, which are put out
of reach. The incremental collector of 3.14.0 has two generations and no looks at all that is old;
it looks at the young together with a part of the old, of about as many objects.

Why: docs/adr/0182-old-garbage-is-looked-for-when-memory-grows.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

YOUNGEST: Final = 5_000
"""Objects that begin a look at the youngest: those made less those gone since the last one. What is
under way for a moment begins none, unless it is as many."""
NEVER: Final = 1_000_000_000
"""Looks at one generation that begin one at the next."""
THRESHOLDS: Final = (YOUNGEST, NEVER, NEVER)

YOUNG_INTERVAL_S: Final = 0.05
"""Of a busy loop. 5 000 messages a second over 10 000 topics leave 2 000 objects in it: 1 to 2 ms,
most of them for memory that is not in the core's caches."""
YOUNG_INTERVAL_IDLE_S: Final = 0.25
"""A loop that was idle and is busy now has gathered for so long."""

LOOK_INTERVAL_S: Final = 5.0
BLOCKS_LEAST: Final = 4_000_000
"""Python's own blocks: some 75 bytes each. 10 000 topics with a producer have fewer."""
BYTES_LEAST: Final = 512 << 20
SHARE: Final = 0.5
NEED_ALWAYS: Final = 2.0
QUIET: Final = 0.05
"""A loop that has less to do is taken for idle: its timers take some of it."""


class Memory(NamedTuple):
    """``blocks``: of objects, as the interpreter counts them; ``resident_bytes``: of the whole
    process, 0 where that is not known."""

    blocks: int
    resident_bytes: int


def young_interval_s(busy: float) -> float:
    """Until the next look at the youngest. ``busy``: as ``OldGarbage.wanted``, since the last."""
    return YOUNG_INTERVAL_S if busy > QUIET else YOUNG_INTERVAL_IDLE_S


class OldGarbage:
    """Whether all of memory is looked at now. ``begun``: how much there was at start."""

    def __init__(self, begun: Memory) -> None:
        self._least = begun

    def wanted(self, now: Memory, busy: float) -> bool:
        """``busy``: the share of a core that the loop had since it was last asked, 0 to 1."""
        # What was given back since may be garbage when it has come again.
        self._least = Memory(*map(min, self._least, now))
        need = self.need(now)
        return need >= 1.0 and (need - 1.0) / (NEED_ALWAYS - 1.0) >= min(busy, 1.0) - QUIET

    def need(self, now: Memory) -> float:
        """See the module's text."""
        blocks, resident_bytes = self._least
        return max(
            _grown(now.blocks, blocks, BLOCKS_LEAST),
            _grown(now.resident_bytes, resident_bytes, BYTES_LEAST),
        )

    def looked(self, left: Memory) -> None:
        """All of memory was looked at; ``left`` is no garbage."""
        self._least = left


def _grown(now: int, before: int, least: int) -> float:
    return (now - before) / max(least, before * SHARE)
