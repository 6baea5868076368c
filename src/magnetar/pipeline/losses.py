"""What a reader has lost: a place in a topic partition against what its log is now. Pure.

A log is a chain of ledgers whose ids grow; it loses entries at its front only, when retention
deletes whole ledgers or a client deletes records. So what is lost at a place is known from two
things that the broker says of the log (``LogExtent``): after which entry it begins, and which log
it is.

| place | what it means |
|---|---|
| of a log made at another time | the topic was deleted and made anew: what was not read is gone |
| before ``kept_from`` | the entries from the place to there are gone |
| past ``end`` | the place is of another topic's log: logs never become shorter |
| otherwise | nothing is lost |

A place whose log's creation time is not known comes from a checkpoint of an older release or from
a person. Such a place may stand behind the last message of a batch without saying so (see
``places.py``), and its ``START`` says "whatever is there"; both lose nothing. That its topic was
made anew shows in ledger ids alone: all of the new log's are above all of the old one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.pipeline.places import NO_OFFSETS, START, Place

UNKNOWN_MS = 0

LOST: Final = "_lost"
"""The column of rows that tell of what was passed over (``columns/lost_rows.py``). Here, as jobs
that only describe themselves know it without Spark."""


class LedgerFacts(NamedTuple):
    """A ledger of a log. ``entries`` and ``stored_bytes`` are final when it is ``closed``; of the
    open one they are what could be read when it was asked for. No message of it was published
    before ``least_ms`` or after ``greatest_ms``; 0: not known. ``stored``: where its entries lie
    (``log.seam.StoredAt``); ``messages``: of a closed one, 0 if the broker does not say."""

    ledger_id: int
    entries: int
    stored_bytes: int
    closed: bool
    least_ms: int = 0
    greatest_ms: int = 0
    stored: int = 0
    messages: int = 0


NO_FACTS: Mapping[int, LedgerFacts] = MappingProxyType({})


class LogExtent(NamedTuple):
    """A topic partition's log as its broker describes it.

    ``kept_from``: the place after the last entry that was deleted from the front, ``START`` if none
    was. ``first``: before the first entry that is there. ``end``: after the last one.
    ``created_ms``: when the log was made, ``UNKNOWN_MS`` if the broker does not say. Messages of a
    log are numbered from 0 on: ``first_offset`` is the number of the first one that is kept,
    ``end_offset`` that of the next one; ``NO_OFFSETS`` if the broker does not number them.
    """

    kept_from: Place
    first: Place
    end: Place
    created_ms: int = UNKNOWN_MS
    first_offset: int = NO_OFFSETS
    end_offset: int = NO_OFFSETS
    by_offset: bool = False
    """An entry's id is the offset of its first message, and the next one's is greater by as many
    messages as it has; else ids of a ledger's entries follow each other."""


class UnreadEntry(NamedTuple):
    """An entry that a broker was to send and cannot read. ``behind``: where one can go on without
    it. ``lost``: no sound copy is left; else one that has it may come back."""

    place: Place
    behind: Place
    why: str
    lost: bool


class GivenAnswer(NamedTuple):
    """Of a stretch of a log, up to ``sought_to``: ``any``: consumers get an entry of it;
    ``undecided``: of some it is not known whether their transactions were committed."""

    any: bool
    sought_to: Place
    undecided: bool


class Loss(NamedTuple):
    """Messages that cannot be read any more. ``entries`` is how many entries (messages or batches)
    at least, ``messages`` how many exactly; 0: not known. ``go_on``: the place to go on from
    without them. ``at``: where they begin; ``START``: not known, or at the log's own."""

    topic: str
    what: str
    entries: int
    go_on: Place
    messages: int = 0
    at: Place = START

    def __str__(self) -> str:
        count = f" (at least {self.entries} entries)" if self.entries else ""
        if self.messages:
            count = f" ({self.messages} messages)"
        return f"{self.topic}: {self.what}{count}"


def loss_at(
    topic: str, place: Place, created_ms: int, extent: LogExtent, offset: int = NO_OFFSETS
) -> Loss | None:
    """What a reader at ``place``, in a log made at ``created_ms``, has lost; None: nothing.
    ``offset``: that of the message at the place, if it is known."""
    if _made_anew(place, created_ms, extent):
        made = f" at {_time(extent.created_ms)}" if extent.created_ms else ""
        what = (
            f"the topic was deleted and made anew{made}; what was not read before is gone, and "
            f"place {place} is of the former topic"
        )
        return Loss(topic, what, 0, extent.kept_from, at=place)
    if place > extent.end:
        what = (
            f"place {place} is past the end {extent.end} of the log: it is of another cluster's "
            "topic, or of one that was deleted and made anew"
        )
        return Loss(topic, what, 0, extent.kept_from, at=place)
    if place >= extent.kept_from or (created_ms == UNKNOWN_MS and _vague(place, extent.kept_from)):
        return None
    what = (
        f"retention or DeleteRecords has deleted everything from {place} to {extent.kept_from}, "
        "not read before"
    )
    messages = max(0, extent.first_offset - offset) if offset != NO_OFFSETS else 0
    # Where ids are offsets nobody knows how many entries they were.
    entries = 1 if extent.by_offset else _entries_before(place, extent.kept_from)
    return Loss(topic, what, entries, extent.kept_from, messages, place)


def _made_anew(place: Place, created_ms: int, extent: LogExtent) -> bool:
    if created_ms and extent.created_ms:
        return created_ms != extent.created_ms
    # Without creation times: nothing was ever deleted here, and yet the place is before it all.
    return extent.kept_from == START < place < extent.first


def _vague(place: Place, kept_from: Place) -> bool:
    """True for a place of unknown origin that may have nothing but ``kept_from`` after it."""
    last_gone = (kept_from.ledger_id, kept_from.entry_id - 1)
    return place == START or (place.batch_index > 0 and place[:2] == last_gone)


def _entries_before(place: Place, kept_from: Place) -> int:
    """How many entries lie between the two at least: those of the last ledger that is gone."""
    first_id = place.entry_id if place.ledger_id == kept_from.ledger_id else 0
    return kept_from.entry_id - first_id


def gap_before(
    topic: str,
    expected: Place,
    ledger_id: int,
    entry_id: int,
    ledgers: Mapping[int, LedgerFacts] = NO_FACTS,
) -> Loss | None:
    """The entries that are missing before the one that came, where ``expected`` was to come next:
    the ids of a ledger follow each other from 0 on without a gap, and ``ledgers`` tells how many
    entries those have that were passed (of one that is not there nothing is known)."""
    missing = entry_id - (max(expected.entry_id, 0) if ledger_id == expected.ledger_id else 0)
    for passed in range_of(ledgers, expected.ledger_id, ledger_id):
        first_id = expected.entry_id if passed.ledger_id == expected.ledger_id else 0
        missing += max(0, passed.entries - first_id)
    if missing <= 0:
        return None
    came = Place(ledger_id, entry_id, 0)
    what = f"{missing} entries are missing before {came}"
    return Loss(topic, what, missing, came, at=expected)


def lost_entry(topic: str, place: Place, why: str, go_on: Place, messages: int = 0) -> Loss:
    """An entry of which no sound copy is left."""
    what = f"entry {place.ledger_id}:{place.entry_id} is lost: {why}"
    return Loss(topic, what, 1, go_on, messages, place)


def range_of(
    ledgers: Mapping[int, LedgerFacts], first_id: int, end_id: int
) -> Iterator[LedgerFacts]:
    """Those with ids from ``first_id`` up to, not including, ``end_id``."""
    return (facts for facts in ledgers.values() if first_id <= facts.ledger_id < end_id)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
