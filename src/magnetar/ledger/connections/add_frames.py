"""The frames of adds, encoded once for all bookies that they go to.

A writer hands the same list of entries to each bookie of its ensemble, one after the other, and
their frames are the same bytes. Encoding and joining them for the first one only takes half a
microsecond per entry off a writer with three bookies.
"""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.env.network.framed import JOIN_BYTES_MAX, Buffer
from magnetar.wire.bookie import v2


class AddFrames:
    """Remembers the frames of the last adds, shared by all connections of a pool. The entries of
    an add are not changed once they were given away."""

    __slots__ = ("_byte_count", "_entries", "_flags", "_master_key", "_parts")

    def __init__(self) -> None:
        self._entries: Sequence[bytes] | None = None
        self._master_key = b""
        self._flags = 0
        self._parts: Sequence[Buffer] = ()
        self._byte_count = 0

    def encode(
        self, master_key: bytes, entries: Sequence[bytes], flags: int
    ) -> tuple[Sequence[Buffer], int]:
        """The frames as parts, not to be changed, and their bytes in all. Small ones are joined,
        large entries are not copied."""
        if (
            entries is not self._entries
            or master_key is not self._master_key
            or flags != self._flags
        ):
            self._entries, self._master_key, self._flags = entries, master_key, flags
            parts, byte_count = v2.encode_adds(master_key, entries, flags)
            if len(parts) > 2 and byte_count // len(parts) < JOIN_BYTES_MAX:
                parts = [b"".join(parts)]
            self._parts, self._byte_count = parts, byte_count
        return self._parts, self._byte_count

    def forget(self) -> None:
        """Keep nothing alive."""
        self._entries, self._parts = None, ()
