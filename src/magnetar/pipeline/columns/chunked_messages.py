"""Messages that came in chunks, put together where their last chunks lie.

Rules:

* A chunk that is met without those before it (they lie before the range) has them looked for.
* So has a last chunk, when some before it were met and are not held any more: ``ChunkAssembler``
  holds few unfinished messages, and of many producers' the oldest gives way. No message is lost by
  that.
* ``EarlierChunks`` reports what is not there any more, once for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.wire.pulsar.batches import ChunkAssembler
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, entry_metadata

EarlierChunks: TypeAlias = Callable[[StoredEntry, EntryMetadata], Sequence[Buffer]]
"""The chunks that came before this one, in order; empty if they are not there any more."""


class ChunkedMessages:
    """Of one range of a topic partition, whose chunks come in order."""

    def __init__(self, earlier: EarlierChunks) -> None:
        self._earlier = earlier
        self._chunks = ChunkAssembler()
        self._begun: set[str] = set()  # some of whose chunks have come
        self._lost: set[str] = set()  # of those, whose first chunks are not there any more

    def value(self, entry: StoredEntry, meta: EntryMetadata) -> Buffer | None:
        """The whole message's value if ``entry`` is its last chunk; None: it is not, or chunks are
        missing. Raises ``ProtocolError``: the message is too large; what ``earlier`` raises."""
        uuid = meta.chunk_uuid
        if meta.chunk_id > 0 and uuid not in self._begun:
            self._look_back(entry, meta)
        self._begun.add(uuid)
        whole = self._chunks.add(entry.payload, meta)
        if meta.chunk_id < meta.num_chunks - 1:
            return None
        if whole is None and uuid not in self._lost:
            self._look_back(entry, meta)
            whole = self._chunks.add(entry.payload, meta)
        lost = uuid in self._lost
        self._begun.discard(uuid)
        self._lost.discard(uuid)
        if whole is None and not lost:
            raise ProtocolError(
                f"a message in {meta.num_chunks} chunks cannot be put together: it is too large"
            )
        return None if whole is None else whole[1]

    def _look_back(self, entry: StoredEntry, meta: EntryMetadata) -> None:
        earlier = self._earlier(entry, meta)
        if not earlier:
            self._lost.add(meta.chunk_uuid)
        for payload in earlier:
            self._chunks.add(payload, entry_metadata(payload))
