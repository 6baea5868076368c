"""Keys as bytes. A message's key is text; of one that a producer gave as bytes it is their base64,
and the message says so (``key_is_base64``). Pure.
"""

from __future__ import annotations

from base64 import b64decode

import numpy as np
import pyarrow as pa

from magnetar.pipeline.columns.protobuf_columns import Flags


def key_bytes(texts: pa.Array, encoded: Flags) -> pa.Array:
    """An array of binary of one of text or binary; null where that is. What says that it is base64
    and is not stays as it is."""
    found = texts.cast(pa.binary())
    if not encoded.any():
        return found
    values = found.to_pylist()
    for number in np.flatnonzero(encoded).tolist():
        values[number] = _decoded(values[number])
    return pa.array(values, pa.binary())


def _decoded(text: bytes | None) -> bytes | None:
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return text
