"""CRC-32C over views, without copies."""

from __future__ import annotations

from magnetar.speedups import crc32c

__all__ = ["crc32c"]
"""``crc32c(data, value=0)``: the CRC-32C (Castagnoli) of ``data``, continuing from ``value``; an
unsigned 32-bit int. As it is there: a function around it would cost as much as 300 bytes."""
