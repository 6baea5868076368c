"""What an entry goes by in a Key_Shared subscription, as Pulsar's broker reads it off the metadata.

The ordering key; without one the partition key (decoded, if it says that it is base64); without
both "producer name-sequence id", which spreads messages without a key. A batch has one metadata,
and so one key: its first message's, unless its producer batches by key. The chunks of a message
have the same one. Nothing is decompressed or decrypted: the key lies before all that.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error

from magnetar.model.key_hash import NONE_KEY
from magnetar.wire.pulsar.metadata import Buffer, parse_metadata


def sticky_key(payload: Buffer) -> bytes:
    """Raises ``ProtocolError`` for bytes that are no entry."""
    meta = parse_metadata(payload)[0]
    if meta.HasField("ordering_key"):
        return meta.ordering_key
    if not meta.HasField("partition_key"):
        return _bytes(meta.producer_name) + b"-%d" % meta.sequence_id
    key = _bytes(meta.partition_key)
    if not meta.partition_key_b64_encoded:
        return key
    try:
        return b64decode(key, validate=True)
    except Base64Error:
        return NONE_KEY


def _bytes(text: str | bytes) -> bytes:
    """protobuf hands out ``bytes`` where a string is not UTF-8."""
    return text.encode() if isinstance(text, str) else text
