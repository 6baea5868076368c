"""What a follower makes of what it reads: of the log's record, and of the open ledger's end.

Pure: no I/O, no clock.

====================================  ======================================================
the record, compared with the last    what it means
====================================  ======================================================
marked deleted, or created otherwise  ``GONE``: the log was deleted, perhaps made anew
of the same version or an older one   ``OLD``: another read was faster, or a server lags behind
else                                  ``NEW``: the owner, or another owner, changed the chain
====================================  ======================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from magnetar.log.managed.chain import Chain
from magnetar.log.managed.records import LogRecord
from magnetar.log.managed.stamping import header_of
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError

TAKEN_ENTRIES_MAX = 4_096
TAKEN_BYTES_MAX = 4 << 20
"""What is read at once of what was confirmed in between, to be served from memory."""


class News(Enum):
    """What a record means that was just read."""

    OLD = "old"
    NEW = "new"
    GONE = "gone"


class Known(NamedTuple):
    """A record and the version of its node."""

    record: LogRecord
    version: int


def news(known: Known | None, read: Known) -> News:
    """What ``read`` means to one who knows ``known`` (None: nothing yet)."""
    if read.record.deleted:
        return News.GONE
    if known is None:
        return News.NEW
    # Before the versions: those of a node that was made anew begin at 0 again.
    if read.record.created_ms != known.record.created_ms:
        return News.GONE
    return News.NEW if read.version > known.version else News.OLD


def first_to_take(known: int, confirmed: int, at_start: bool) -> int:
    """The first entry of the open ledger to read, when those up to ``known`` are readable and
    those up to ``confirmed`` are to be. The last one must be: it says how many messages there are.
    Those before it are worth reading as soon as they come, since whoever follows a log reads its
    end; not at the start, when nobody may want them, and not when they are too many."""
    many = confirmed - known > TAKEN_ENTRIES_MAX
    return confirmed if at_start or many else known + 1


def end_offset_by(chain: Chain, taken: Sequence[Entry], where: str) -> int:
    """The offset of the message after the last of ``taken``, entries of the chain's open ledger
    behind their headers. Raises ``LogError`` when its header cannot be true."""
    last = taken[-1]
    info = chain.info(last.ledger_id)
    assert info is not None
    header = header_of(last)
    if header is None:  # written before offsets were kept: each entry is one message
        return info.first_offset + last.entry_id + 1
    end = header.last_offset + 1
    if end - chain.end_offset < last.entry_id - chain.last_confirmed_entry:
        raise LogError(
            f"{where}: entry {last.entry_id} ends with message {header.last_offset} by its header, "
            f"and entry {chain.last_confirmed_entry} ends before message {chain.end_offset}; the "
            "ledger or the log's record is damaged"
        )
    return end
