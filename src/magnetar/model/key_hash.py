"""The hash of a message's key, by which Key_Shared subscriptions are split.

It is Pulsar's: MurmurHash3 (x86, 32 bits, seed 0) without its sign bit, so a key goes to the same
place here as there.
"""

from __future__ import annotations

from typing import Final

import mmh3

NONE_KEY: Final = b"NONE_KEY"
"""The key of what has none at all (Pulsar's)."""


def key_hash(key: bytes) -> int:
    """0 to 2^31 - 1."""
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF
