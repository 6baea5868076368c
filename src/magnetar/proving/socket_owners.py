"""Which process has the other end of a connection, on this machine: Linux's socket tables.

The kernel is asked for the one socket (``NETLINK_SOCK_DIAG``, <linux/inet_diag.h>); its whole table
(``/proc/net/tcp``) is read only where it does not answer that: reading it takes a hundred times as
long, and a network that is asked for more connections than it can look up never gets back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST: Final = 1
ENOENT: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
"""Length, type, flags, number, port (<linux/netlink.h>)."""
_REQUEST: Final = struct.Struct("=BBBBI")
"""Family, protocol, extensions, padding, states; then the socket's id."""
_INODE_AT: Final = _HEADER.size + 68
"""In an answer: behind family, state, timer, retransmissions, the id, and four numbers."""
ANSWER_BYTES: Final = 8192
GONE: Final = "0"

Address = tuple[str, int]


def inode_of(end: Address, peer: Address) -> str | None:
    """Of the socket that is bound to ``end`` and connected to ``peer``; ``GONE``: nobody has it any
    more; None: not found, look again."""
    try:
        return _asked(end, peer)
    except OSError:
        return inode_in(tcp_table(), end, peer)


def owns(pid: int, inode: str) -> bool:
    """Whether the process has that socket open."""
    wanted = f"socket:[{inode}]"
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for each in reversed(descriptors):  # it is new, and so is its number, more often than not
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{each}") == wanted:
                return True
    return False


def _asked(end: Address, peer: Address) -> str:
    """Raises ``OSError`` if the kernel does not answer such questions."""
    identity = b"".join(
        (
            struct.pack("!HH", end[1], peer[1]),
            socket.inet_aton(end[0]).ljust(16, b"\0"),
            socket.inet_aton(peer[0]).ljust(16, b"\0"),
            struct.pack("=I", 0),  # any interface
            b"\xff" * 8,  # any cookie
        )
    )
    request = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity
    size = _HEADER.size + len(request)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as asking:
        asking.send(_HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + request)
        answer = asking.recv(ANSWER_BYTES)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == SOCK_DIAG_BY_FAMILY:
        return str(struct.unpack_from("=I", answer, _INODE_AT)[0])
    error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
    if error == ENOENT:
        return GONE
    raise OSError(error, "the kernel does not say whose a socket is")


def tcp_table() -> str:
    """The kernel's, of IPv4."""
    return Path("/proc/net/tcp").read_text()


def inode_in(table: str, end: Address, peer: Address) -> str | None:
    """As ``inode_of``. Both ends are compared: one port may have been that of several connections,
    and those that are over stay in the table for a minute, without an inode."""
    wanted = [_packed(end), _packed(peer)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return fields[9]
    return None


def _packed(address: Address) -> str:
    host, port = address
    return f"{bytes(map(int, host.split('.')))[::-1].hex().upper()}:{port:04X}"
