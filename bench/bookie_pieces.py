"""Adds to a bookie as BookKeeper's Java client writes them: each by itself, in two pieces.

Frames of version 2 with the digest left to the load (a bookie does not look at it). ``depth`` adds
are outstanding; the next one goes out as soon as an answer makes room for it. So the bookie finds
little in each chunk, which is what a burst of prepared frames (``bookie_tcp``) never shows.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from bench.bookie_tcp import KEY

TIMEOUT_S = 30.0
_ADD_HEAD = struct.Struct(">II20sqqqq")  # size, header, key, ledger, entry, LAC, length
_ADD_HEADER = 2 << 24 | 1 << 16
_ANSWER = struct.Struct(">IIiqq")


class PieceWriter:
    """One connection, one ledger that the bookie has not seen."""

    def __init__(self, port: int, entry_bytes: int = 1024) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ledger_id = time.time_ns() // 1000
        self._body = os.urandom(entry_bytes - 32)
        self._size = _ADD_HEAD.size - 4 + len(self._body)
        self._buffer = b""
        self._sent = self._answered = 0

    def add(self, entries: int, depth: int = 1000) -> None:
        """Returns when all are answered."""
        last = self._sent + entries
        while self._answered < last:
            if self._sent < last and self._sent - self._answered < depth:
                self._send_one()
                wait_s = 0.0
            else:
                wait_s = TIMEOUT_S
            if select.select((self._sock,), (), (), wait_s)[0]:
                self._take_answers()
            elif wait_s:
                raise SystemExit(f"the bookie did not answer for {TIMEOUT_S:.0f} s")

    def _send_one(self) -> None:
        entry_id = self._sent
        head = _ADD_HEAD.pack(
            self._size, _ADD_HEADER, KEY, self._ledger_id, entry_id, entry_id - 1, 0
        )
        self._sock.sendall(head)
        self._sock.sendall(self._body)
        self._sent += 1

    def _take_answers(self) -> None:
        chunk = self._sock.recv(1 << 16)
        if not chunk:
            raise SystemExit("the bookie closed the connection")
        data = self._buffer + chunk
        whole = len(data) - len(data) % _ANSWER.size
        for _, header, code, _, entry_id in _ANSWER.iter_unpack(data[:whole]):
            if header != _ADD_HEADER or code:
                raise SystemExit(f"add of entry {entry_id} was answered with {code}")
            self._answered += 1
        self._buffer = data[whole:]

    def close(self) -> None:
        self._sock.close()
