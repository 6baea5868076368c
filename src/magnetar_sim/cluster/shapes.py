"""Bookies with several directories: which runs have them, and what happens to one directory alone.

Pure: draws from the run's seed and nothing else; ``directory_faults`` carries it out.

A share of the runs (``SHARE``) has bookies with one or two ledger directories and journals, each on
a device of its own, that keep a few ledgers in memory only. In them single devices fail, fill up
and slow down, mostly for less than a second; while they do, or soon after, the bookie may be closed
in order, killed or lose power. Some writers of these runs use deferred sync, and journals fill up
under them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

SHARE = 0.35
LASTS_S = (0.1, 0.4, 1.2, 4.0)
ROOM_BYTES = (0, 600, 5000, 40_000)


class Trouble(Enum):
    """What is wrong with one device."""

    FAILS_WRITES = "fails writes"
    FAILS_READS = "fails reads"
    FULL = "is full"
    SLOW = "is slow"
    NONE = "is sound"


class End(Enum):
    """How a bookie ends in the middle of it."""

    STAYS = "stays"
    CLOSES = "is closed in order"
    DIES = "is killed"
    LOSES_POWER = "loses power"


@dataclass(frozen=True)
class Moment:
    """``bookie`` and ``device`` are places in the lists of bookies and of a bookie's devices (its
    journals, then its ledger directories). ``room_bytes`` are left on a full device, a slow one
    takes ``slowness`` times as long. ``ends_s``: when the bookie ends, after the beginning;
    ``down_s``: for how long."""

    at_s: float
    lasts_s: float
    trouble: Trouble
    bookie: int
    device: int
    room_bytes: int
    slowness: float
    end: End
    ends_s: float
    down_s: float


@dataclass(frozen=True)
class Fill:
    """A journal that fills up under an add with deferred sync: ``room_bytes`` are left, enough for
    a barrier and not for most adds. If the bookie grants a force then, it dies soon, so that what
    the journal has is all that is left."""

    room_bytes: int
    lasts_s: float
    dies_after_s: float
    power: bool
    down_s: float


@dataclass(frozen=True)
class Shape:
    """Bytes and counts of ``BookieConfig``. ``deferred``: every writer uses deferred sync.
    ``unreadable``: of the disks that the run loses, some lose sectors only. ``bursts``: writers
    give all that they have at once, more than the write cache holds, and meanwhile a ledger
    directory fails writes for so many seconds each."""

    ledger_directories: int
    journals: int
    ledgers_kept_max: int
    write_cache_bytes: int
    flush_interval_ms: int
    compaction_bytes_per_s: int
    deferred: bool
    unreadable: bool
    moments: tuple[Moment, ...]
    fills: tuple[Fill, ...]
    bursts: tuple[float, ...]


def draw_shape(rng: random.Random, bookies: int, begin_s: float, end_s: float) -> Shape | None:
    """What the seed of ``rng`` gives a run with so many ``bookies``, whose faults come between
    ``begin_s`` and ``end_s``; None: nothing of this."""
    if rng.random() >= SHARE:
        return None
    ledgers, journals = rng.choice(((2, 1), (2, 1), (2, 2), (1, 2), (3, 1)))
    devices = ledgers + journals
    deferred = rng.random() < 0.35
    count = rng.choice((3, 8, 20))
    moments = [_moment(rng, bookies, journals, devices, begin_s, end_s) for _ in range(count)]
    fills = [_fill(rng) for _ in range(rng.choice((1, 2, 4)) if deferred else 0)]
    return Shape(
        ledger_directories=ledgers,
        journals=journals,
        ledgers_kept_max=rng.choice((1, 1, 3, 16_384)),
        write_cache_bytes=rng.choice((16 << 10, 32 << 10, 128 << 10)),
        flush_interval_ms=rng.choice((200, 1000, 8000, 8000)),
        deferred=deferred,
        unreadable=rng.random() < 0.6,
        moments=tuple(sorted(moments, key=lambda moment: moment.at_s)),
        fills=tuple(fills),
        bursts=tuple(rng.uniform(0.02, 0.5) for _ in range(rng.choice((0, 0, 2, 4)))),
        compaction_bytes_per_s=rng.choice((1 << 13, 1 << 19, 16 << 20)),
    )


def _moment(
    rng: random.Random, bookies: int, journals: int, devices: int, begin_s: float, end_s: float
) -> Moment:
    """Mostly of a ledger directory; one in four bookies ends in it."""
    first = 0 if rng.random() < 0.3 else journals
    lasts_s = rng.choice(LASTS_S) * rng.uniform(0.5, 1.0)
    troubles = (*Trouble, Trouble.FAILS_WRITES, Trouble.FAILS_WRITES, Trouble.FULL)
    end = rng.choice((End.STAYS,) * 6 + (End.CLOSES, End.CLOSES, End.DIES, End.LOSES_POWER))
    trouble = rng.choice(troubles)
    if trouble is Trouble.NONE:
        end = End.CLOSES
    return Moment(
        at_s=rng.uniform(begin_s, end_s),
        lasts_s=lasts_s,
        trouble=trouble,
        bookie=rng.randrange(bookies),
        device=rng.randrange(first, devices if first else journals),
        room_bytes=rng.choice(ROOM_BYTES),
        slowness=rng.choice((30.0, 300.0)),
        end=end,
        ends_s=lasts_s * rng.uniform(0.1, 1.3),
        down_s=rng.choice((0.05, 0.5, 2.0)) * rng.uniform(0.5, 1.5),
    )


def _fill(rng: random.Random) -> Fill:
    return Fill(
        room_bytes=rng.choice((600, 1100, 2000)),
        lasts_s=rng.uniform(0.2, 1.5),
        dies_after_s=0.1 * rng.random(),
        power=rng.random() < 0.5,
        down_s=rng.uniform(0.1, 0.5),
    )
