"""What is wrong with the copies of a few entries, once every one of them has been read.

Decides only; ``verifying`` reads. The rules:

* A copy is sound when its digest is right, for its ledger and its entry id.
* Sound copies of one entry must say the same: the same payload, and the same length of the ledger
  up to it. Their last add confirmed may differ, and with it the digest: whoever recovers a ledger
  may write an entry again with its own.
* Among copies that differ, those that most bookies agree on are taken for right; when none are
  most, nobody can tell, and all of them are named.
* What a bookie lacks of an open ledger's last fragment is its writer's to complete, and no fault,
  as long as the ack quorum may hold it.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.ids import BookieId, EntryId

LENGTH = struct.Struct(">q")
LENGTH_AT = ENTRY_HEADER_BYTES - LENGTH.size
_CHECKSUMS = struct.Struct(">III")


class Fault(Enum):
    MISSING = "missing"
    DAMAGED = "damaged"
    DIFFERS = "differs"


class Finding(NamedTuple):
    """``entry_ids``: a range, perhaps with a step, all of whose entries have the fault there."""

    entry_ids: range
    bookie_id: BookieId
    fault: Fault
    why: str


def fingerprint(entry: bytes, payload_offset: int) -> bytes:
    """What copies of one entry must have in common, condensed: the length of the ledger up to it,
    and two checksums of the payload by polynomials without a common factor, so that bytes which
    differ by accident have the same with a chance of 2^-64. (A cryptographic hash costs three times
    as much, and was most of what an audit took; who can write to a bookie writes digests, too.)
    """
    payload = memoryview(entry)[payload_offset:]
    checksums = _CHECKSUMS.pack(len(payload), crc32c(payload), zlib.crc32(payload))
    return entry[LENGTH_AT:ENTRY_HEADER_BYTES] + checksums


def differing(prints: Mapping[BookieId, bytes]) -> dict[BookieId, str]:
    """Of one entry's sound copies: those that are not as most are, and why one thinks so."""
    counts = Counter(prints.values()).most_common()
    if len(counts) < 2:
        return {}
    (most, times), (_, next_times) = counts[:2]
    if times == next_times:
        others = ", ".join(sorted(prints))
        return dict.fromkeys(prints, f"sound copies differ, and none are most ({others})")
    agreed = ", ".join(sorted(bookie for bookie, each in prints.items() if each == most))
    return {
        bookie: f"sound, but other bytes than at {agreed}"
        for bookie, each in prints.items()
        if each != most
    }


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """The same, with neighbours that differ in nothing else as one."""
    found: list[Finding] = []
    last: dict[tuple[BookieId, Fault, str], int] = {}
    for each in findings:
        key = each.bookie_id, each.fault, each.why
        place = last.get(key)
        if place is not None:
            together = _together(found[place].entry_ids, each.entry_ids)
            if together is not None:
                found[place] = found[place]._replace(entry_ids=together)
                continue
        last[key] = len(found)
        found.append(each)
    return found


def _together(one: range, other: range) -> range | None:
    if one.step == other.step == 1 and one.stop == other.start:
        return range(one.start, other.stop)
    return None


def single(entry_id: EntryId) -> range:
    return range(entry_id, entry_id + 1)
