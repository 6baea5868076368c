"""Skipping messages of a subscription: the next so many that are not acknowledged count as
acknowledged, a batch in part if so many end in it. They are counted as backlogs are: what each
entry says of itself, and of a batch what is not acknowledged.

Which those are is found by reading them, in pieces. What is acknowledged meanwhile stays so, and
is not counted twice: where the reading has come is acknowledged after each piece.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.log.acknowledgements import ack_set_bits, ack_set_words
from magnetar.log.seam import Cursor
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    EntryDamagedError,
    MetadataFormatError,
    NoEntryError,
    NoSuchLedgerError,
    ProtocolError,
)
from magnetar.topics.consuming.feed import behind_lost
from magnetar.topics.consuming.giving_back import once_given_back
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.entry_format import describe
from magnetar.topics.reading_on import entries_until
from magnetar.topics.subscribable import SubscribableTopic

STEP_ENTRIES: Final = 500
STEP_BYTES: Final = 4 << 20
LOST: Final = (EntryDamagedError, NoEntryError, NoSuchLedgerError, MetadataFormatError)
"""What does not pass by itself."""


async def skip_messages(topic: SubscribableTopic, subscription: Subscription, count: int) -> None:
    """``count`` messages, or all if there are fewer; stored when it returns. Raises what reading
    the log and storing does, and ``NotAllowedError`` where no part of a batch can be kept.

    A broker that serves it gives it back first: what it was told is acknowledged is not to be
    skipped once more."""
    with topic.held():
        work = partial(_skip, topic, subscription, count)
        await once_given_back(subscription, topic.name, work)
        await subscription.cursor.wait_stored()


async def _skip(topic: SubscribableTopic, subscription: Subscription, count: int) -> None:
    await subscription.end_binding()  # or what is skipped here would be another's to keep
    positions, cursor, left = topic.readable.positions, subscription.cursor, count
    at = positions.next_position(cursor.mark_delete)
    pieces = entries_until(topic.readable, at, positions.readable, STEP_ENTRIES, STEP_BYTES)
    while True:
        try:
            entries = await anext(pieces, None)
        except LOST as error:
            behind = behind_lost(positions, at, error)
            raise type(error)(
                f"{error}; to go on without it: magnetar topics seek {topic.name} --subscription "
                f"{cursor.name} --to {behind}"
            ) from error
        if entries is None:
            return
        last = entries[-1].position
        at = positions.next_position(last)
        for entry in cursor.unacknowledged(entries):
            bits = _unacknowledged(topic, cursor, entry)
            if bits.bit_count() > left:
                last = positions.previous_position(entry.position)
                _skip_part(cursor, entry, bits, left)
                left = 0
                break
            left -= bits.bit_count()
        if last > cursor.mark_delete:
            subscription.pass_over(last)
        if not left:
            return


def _unacknowledged(topic: SubscribableTopic, cursor: Cursor, entry: Entry) -> int:
    """The entry's messages that are not acknowledged, a bit each."""
    try:
        messages = describe(entry, topic.format).messages
    except ProtocolError:
        return 0  # dispatch leaves it out
    known = cursor.ack_set(entry.position)
    whole = (1 << messages) - 1
    return whole if known is None else whole & ack_set_bits(known)


def _skip_part(cursor: Cursor, entry: Entry, bits: int, count: int) -> None:
    """The first ``count`` of them."""
    size = bits.bit_length()
    for _ in range(count):
        bits &= bits - 1  # without its lowest
    if count:
        cursor.acknowledge_batch(entry.position, size, ack_set_words(bits))
