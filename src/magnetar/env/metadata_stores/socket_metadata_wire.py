"""Frames between a process that has the metadata store and those on its machine that share it.

    u32 bytes after this field | u32 bytes of HEADER | HEADER, a JSON object | the node's bytes

Both ends are of one version: who has the store starts the others.

| from the client | answered with |
|---|---|
| ``{"do": "hello", "timeout_ms": n}`` | nothing; the first frame of a connection |
| ``{"id": n, "do": "get", "path": ...}``; so ``create``, ``put``, ... | ``{"id": n, ...}`` |
| ``{"id": n, "do": "end"}`` | ``{"id": n}``, once the session's ephemeral nodes are gone |
| ``{"do": "watch" | "unwatch", "path": p}`` | ``{"changed": p}`` after each change, from now on |
| ``{"do": "ping"}`` | ``{"do": "pong"}`` |

A request that fails is answered with ``{"id": n, "error": CLASS, "text": ...}``.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from magnetar.env.metadata_stores.metadata_paths import VALUE_BYTES_MAX
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ProtocolError,
)

_SIZES: Final = struct.Struct(">II")
HEADER_BYTES_MAX: Final = 8 << 20
"""A list of children is one header."""

ERRORS: Final[Mapping[str, type[MetadataError]]] = {
    kind.__name__: kind
    for kind in (
        BadVersionError,
        MetadataError,
        MetadataUnavailableError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
    )
}


class Frame(NamedTuple):
    head: Mapping[str, Any]
    value: bytes


def encode(head: Mapping[str, object], value: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return _SIZES.pack(_SIZES.size // 2 + len(text) + len(value), len(text)) + text + value


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next one. Raises ``asyncio.IncompleteReadError`` at the end, ``OSError``,
    ``ProtocolError``."""
    after, head_bytes = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    value_bytes = after - _SIZES.size // 2 - head_bytes
    if not 0 <= value_bytes <= VALUE_BYTES_MAX or head_bytes > HEADER_BYTES_MAX:
        raise ProtocolError(f"a metadata frame of {after} bytes, {head_bytes} of them its header")
    body = await reader.readexactly(head_bytes + value_bytes)
    try:
        head = json.loads(body[:head_bytes])
    except ValueError as error:
        raise ProtocolError(f"a metadata frame with the header {body[:80]!r}") from error
    if not isinstance(head, dict):
        raise ProtocolError(f"a metadata frame with the header {body[:80]!r}")
    return Frame(head, body[head_bytes:])


def error_head(error: MetadataError) -> dict[str, object]:
    kind = type(error).__name__
    return {"error": kind if kind in ERRORS else MetadataError.__name__, "text": str(error)}


def error_of(head: Mapping[str, Any]) -> MetadataError:
    return ERRORS.get(head["error"], MetadataError)(head["text"])
