"""What of the logs could not be read for Kafka's clients, and does not pass by itself: named in the
log, and in ``/health``.

A consumer of theirs is told a code, and perhaps nobody looks at what it does with it: the operator
must hear of it, too.

Rules:

* A place is listed for ``LISTED_S`` after it was last tried: as long as somebody waits for it.
* At most ``LISTED_MAX`` are listed; one more takes the place of the one that was tried longest ago.
* The log tells of a place at once, and then once in ``TOLD_AGAIN_S``: clients try again for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from magnetar.model.errors import (
    EntryDamagedError,
    MagnetarError,
    MetadataFormatError,
    NoEntryError,
    NoSuchLedgerError,
)

log = structlog.get_logger(__name__)

LOST: Final = (EntryDamagedError, NoEntryError, NoSuchLedgerError, MetadataFormatError)
"""What does not pass by itself: no bookie that has it is merely away."""
LISTED_MAX: Final = 1000
LISTED_S: Final = 120.0
TOLD_AGAIN_S: Final = 60.0
REMEDY: Final = (
    "see whether a sound copy is left (magnetar ledger explain, ledger verify --repair), or "
    "restore the ledger's metadata from a backup; if nothing is left, consumers go on behind it "
    "(kafka-consumer-groups --reset-offsets), or delete the records up to it "
    "(kafka-delete-records): docs/operating.md, entries that nobody can read"
)


class UnreadPlace(NamedTuple):
    """``why``: the log's own words, with the entry or the ledger."""

    topic: str
    place: str
    why: str


class UnreadPlaces:
    """Of one broker, on its loop. ``now_s``: of a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._tried: OrderedDict[tuple[str, str], tuple[UnreadPlace, float, float]] = OrderedDict()
        """With when it was tried last, and when the log told of it."""

    def failed(self, topic: str, place: str, error: MagnetarError) -> None:
        """What is at ``place`` of the topic, in words, could not be read."""
        now, key = self._now_s(), (topic, place)
        told_s = self._tried.pop(key, (None, 0.0, now - TOLD_AGAIN_S))[2]
        if now - told_s >= TOLD_AGAIN_S:
            told_s = now
            log.error(
                "a log cannot be read for Kafka's clients",
                topic=topic,
                place=place,
                error=str(error),
                remedy=REMEDY,
            )
        self._tried[key] = UnreadPlace(topic, place, str(error)), now, told_s
        if len(self._tried) > LISTED_MAX:
            self._tried.popitem(last=False)

    def listed(self) -> list[UnreadPlace]:
        """In the order of their topics."""
        since = self._now_s() - LISTED_S
        while self._tried and next(iter(self._tried.values()))[1] < since:
            self._tried.popitem(last=False)
        return sorted(each for each, _, _ in self._tried.values())
