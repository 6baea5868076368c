"""Protobuf's variable-length integers (``magnetar.speedups.varint``), for codecs."""

from __future__ import annotations

from magnetar.speedups.varint import BYTES, U64, varint

__all__ = ["BYTES", "U64", "varint"]
