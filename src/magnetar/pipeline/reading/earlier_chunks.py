"""The chunks of a message that lie before the range which holds its last one.

A message that came in chunks belongs to the range with its last chunk, wherever ranges are cut:
every range can tell of it alone, and none waits for a chunk that may never come. So whoever meets
a chunk whose first ones lie before its range looks back for them: a little way at first, then
farther, at last ``LEDGERS_BACK`` ledgers, or as many as chunks are missing, each of which may lie
in one of its own (or to the start of the log, where ledgers are not known), each time reading
forward from there to the range.

What it finds is what who reads on from there would hold: with its first chunk a message begins (a
producer that began anew may give its messages names that others had before), and of one that was
whole already nothing is left to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import Loss
from magnetar.pipeline.places import START, Place, after_entry
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, parse_metadata

FIRST_LOOK = 4
"""Entries looked back over at first, for each chunk that is missing: other producers' entries lie
between them."""

LOOKS = (1, 16, 256)
LEDGERS_BACK = 2

NO_CHUNK = -1, -1


class EarlierEntries:
    """Looks back in one topic partition. ``read_from`` gives its entries from a place on,
    ``ledgers`` the ids of its ledgers in order; none if they are not known."""

    def __init__(
        self,
        topic: str,
        read_from: Callable[[Place], Iterator[StoredEntry]],
        ledgers: Callable[[], Sequence[int]],
        reports: LossReports,
    ) -> None:
        self._topic = topic
        self._read_from = read_from
        self._ledgers = ledgers
        self._reports = reports

    def chunks(self, entry: StoredEntry, meta: EntryMetadata) -> Sequence[Buffer] | None:
        """As ``chunked_messages.EarlierChunks``. If they are not there any more that is reported;
        without them the message is none."""
        for place in self._places_before(entry, meta.chunk_id):
            found = self._chunks_since(place, entry, meta)
            if found is None or len(found) >= meta.chunk_id:
                return found
        what = (
            f"of a message in {meta.num_chunks} chunks, whose chunk {meta.chunk_id} is entry "
            f"{entry.ledger_id}:{entry.entry_id}, the chunks before are not there any more"
        )
        go_on = after_entry(entry.ledger_id, entry.entry_id)
        self._reports.report(Loss(self._topic, what, meta.chunk_id, go_on))
        return ()

    def _places_before(self, entry: StoredEntry, missing: int) -> Iterator[Place]:
        """Where to look from, farther and farther back."""
        for look in LOOKS:
            first = entry.entry_id - missing * look * FIRST_LOOK
            if first < 0:
                break
            yield Place(entry.ledger_id, first, 0)
        yield Place(entry.ledger_id, 0, 0)
        known = self._ledgers()
        before = [ledger_id for ledger_id in known if ledger_id < entry.ledger_id]
        if not known:
            yield START
        back, most = 1, min(len(before), max(LEDGERS_BACK, missing))
        while back <= most:
            yield Place(before[-back], 0, 0)
            # Twice as far each time, since all of it is read again.
            back = min(2 * back, most) if back < most else most + 1

    def _chunks_since(
        self, place: Place, before: StoredEntry, meta: EntryMetadata
    ) -> Sequence[Buffer] | None:
        """Those that are held of the message when ``before`` comes; None: it was whole, and nothing
        of it has begun anew since."""
        held: list[Buffer] = []
        whole = False
        for entry in self._read_from(place):
            if (entry.ledger_id, entry.entry_id) >= (before.ledger_id, before.entry_id):
                break
            chunk_id, count = _chunk_of(entry, meta.chunk_uuid)
            if chunk_id == 0:
                held, whole = [], False
            if chunk_id == len(held) and (held or not chunk_id):
                held.append(bytes(entry.payload))
            elif chunk_id > len(held):
                held = []  # one is missing: what is left of it is no message
            if len(held) == count:
                held, whole = [], True
        return None if whole else held


def _chunk_of(entry: StoredEntry, uuid: str) -> tuple[int, int]:
    """Which chunk of the message it is, and of how many; -1: it is none."""
    try:
        raw, _ = parse_metadata(entry.payload)
    except ProtocolError:
        return NO_CHUNK  # whoever reads its range says what is wrong with it
    if raw.num_chunks_from_msg < 2 or raw.uuid != uuid:
        return NO_CHUNK
    return raw.chunk_id, raw.num_chunks_from_msg
