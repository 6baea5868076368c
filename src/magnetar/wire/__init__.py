"""Codecs: bytes to values and back, without I/O. ``bookie`` for storage, ``pulsar`` for clients."""
