"""Compressed entries as they go into a table: the same entries, uncompressed.

Files of a table are compressed by columns, better than a batch by itself; a payload in a column is
the message's bytes. So what comes back later is an entry that its producer might have sent without
compression: same metadata, same messages.
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import decompress
from magnetar.wire.pulsar.metadata import MAGIC_CRC32C, Buffer, parse_metadata

UNPACKED_BYTES_MAX: Final = 4 << 20
"""Clients refuse frames of more than 5 MiB; what would come near that stays as it is."""


def unpacked(payload: Buffer) -> bytes:
    """A stored entry, without compression and with a checksum of its own. Raises
    ``ProtocolError``, ``ConfigError``."""
    meta, data_start = parse_metadata(payload)
    stored = memoryview(payload)[data_start:]
    data = decompress(stored, Compression(meta.compression), meta.uncompressed_size)
    meta.ClearField("compression")
    told = meta.SerializeToString()
    head = struct.pack(">I", len(told)) + told
    checksum = crc32c(data, crc32c(head))
    header = bytes(payload[: header_bytes(payload)])
    return b"".join((header, struct.pack(">HI", MAGIC_CRC32C, checksum), head, data))
