"""Messages that came in chunks, put together where their last chunks lie.

Rules:

* A chunk that is met without those before it (they lie before the range) has them looked for.
* So has a last chunk, when some before it were met and are not held any more: ``ChunkAssembler``
  holds few unfinished messages, and of many producers' the oldest gives way. No message is lost by
  that.
* A message that is whole is a row where it first became whole. Chunks of it that are stored again
  behind that (a producer sends anew what it has no receipt for) make none, wherever ranges are cut;
  only with its first chunk does a message begin anew.
* ``EarlierChunks`` reports what is not there any more, once for a message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.wire.pulsar.batches import ChunkAssembler, MessageInfo
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, entry_metadata

EarlierChunks: TypeAlias = Callable[[StoredEntry, EntryMetadata], Sequence[Buffer] | None]
"""The chunks of the message that came before this one, from its first on; empty if they are not
there any more; None: the message was whole before this chunk, which came again."""

KNOWN_MAX: Final = 10_000
"""Messages of which it is known how far they are; of others it is looked for again."""


class ChunkState(Enum):
    """How far a message is whose chunks were met."""

    OPEN = "open"
    WHOLE = "whole"
    LOST = "lost"  # its first chunks are not there any more


class ChunkedMessages:
    """Of one range of a topic partition, whose chunks come in order."""

    def __init__(self, earlier: EarlierChunks) -> None:
        self._earlier = earlier
        self._chunks = ChunkAssembler()
        self._known: OrderedDict[str, ChunkState] = OrderedDict()

    def value(self, entry: StoredEntry, meta: EntryMetadata) -> Buffer | None:
        """The whole message's value if ``entry`` is its last chunk; None: it is not, or chunks are
        missing. Raises ``ProtocolError``: the message is too large; what ``earlier`` raises."""
        uuid = meta.chunk_uuid
        if meta.chunk_id == 0:
            state = ChunkState.OPEN
        else:
            state = self._known.get(uuid) or self._look_back(entry, meta)
        whole = None
        if state is ChunkState.OPEN:
            whole = self._chunks.add(entry.payload, meta)
            if whole is None and meta.chunk_id == meta.num_chunks - 1:
                state, whole = self._again(entry, meta)
        self._remember(uuid, ChunkState.WHOLE if whole is not None else state)
        return None if whole is None else whole[1]

    def _again(
        self, entry: StoredEntry, meta: EntryMetadata
    ) -> tuple[ChunkState, tuple[MessageInfo, Buffer] | None]:
        """With a last chunk that made nothing whole of what is held."""
        state = self._look_back(entry, meta)
        if state is not ChunkState.OPEN:
            return state, None
        whole = self._chunks.add(entry.payload, meta)
        if whole is None:
            raise ProtocolError(
                f"a message in {meta.num_chunks} chunks cannot be put together: it is too large"
            )
        return state, whole

    def _look_back(self, entry: StoredEntry, meta: EntryMetadata) -> ChunkState:
        earlier = self._earlier(entry, meta)
        if earlier is None:
            return ChunkState.WHOLE
        for payload in earlier:
            self._chunks.add(payload, entry_metadata(payload))
        return ChunkState.OPEN if earlier else ChunkState.LOST

    def _remember(self, uuid: str, state: ChunkState) -> None:
        self._known[uuid] = state
        self._known.move_to_end(uuid)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
