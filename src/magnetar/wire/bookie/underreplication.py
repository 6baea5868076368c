"""Ledgers that lack copies, in the metadata store: BookKeeper's places and texts.

Below the ledgers' root::

    underreplication/LAYOUT                         type "BASIC", version 1
    underreplication/ledgers/HHHH/HHHH/HHHH/HHHH/urLNNNNNNNNNN   the bookies that lack copies
    underreplication/locks/urLNNNNNNNNNN            ephemeral: who repairs the ledger
    underreplication/auditorelection/V_NNNNNNNNNN   ephemeral, in sequence: the lowest is the
    auditor underreplication/disable                        there: nothing is repaired
    underreplication/lostBookieRecoveryDelay        seconds, in decimal
    underreplication/checkallledgersctime           when all ledgers were checked last

HHHH are the ledger id's sixteen hexadecimal digits. Values are protobuf in its text form, but for
the delay and the last one, which is binary.

Source: BookKeeper's ``ZkLedgerUnderreplicationManager``, ``ZkLedgerAuditorManager``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.metadata_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)

DIRECTORY = "underreplication"
DEPTH = 4
"""Directories between ``ledgers`` and a ledger's node."""
VOTE_PREFIX = "V_"
UNREADABLE = "?"
"""What stands for the name of one whose lock or vote cannot be read. Nobody is called so."""
_TYPE, _VERSION = "BASIC", 1
_NAME = re.compile(r"urL(\d+)")

M = TypeVar("M", bound=Message)


class Shortage(NamedTuple):
    """What a ledger's node says: ``bookies`` lack copies of it (or are lost), as far as whoever
    wrote it knew. ``since_ms``: since 1970; 0: not said."""

    bookies: tuple[str, ...]
    since_ms: int = 0


def node_name(ledger_id: int) -> str:
    """Of a ledger's node, and of its lock."""
    return f"urL{ledger_id:010d}"


def node_path(ledger_id: int) -> str:
    """A ledger's node below ``underreplication/ledgers``, with a leading ``/``."""
    digits = f"{ledger_id:016x}"
    return "".join(f"/{digits[i : i + 4]}" for i in range(0, 16, 4)) + f"/{node_name(ledger_id)}"


def ledger_of_node(name: str) -> int | None:
    """The ledger of a node or a lock; None if the name is none of theirs."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def encode_layout() -> bytes:
    return _text(LedgerRereplicationLayoutFormat(type=_TYPE, version=_VERSION))


def check_layout(data: bytes, where: str) -> None:
    """Raises ``MetadataFormatError`` for a layout that we do not know."""
    found = _parsed(data, LedgerRereplicationLayoutFormat(), where)
    if (found.type, found.version) != (_TYPE, _VERSION):
        raise MetadataFormatError(
            f"{where}: ledgers that lack copies are laid out by {found.type!r}, version "
            f"{found.version}; known is {_TYPE!r}, version {_VERSION}. Use the tools of the system "
            "that made it"
        )


def encode_shortage(shortage: Shortage) -> bytes:
    message = UnderreplicatedLedgerFormat(replica=shortage.bookies)
    if shortage.since_ms:
        message.ctime = shortage.since_ms
    return _text(message)


def decode_shortage(data: bytes, where: str) -> Shortage:
    """Raises ``MetadataFormatError``."""
    found = _parsed(data, UnderreplicatedLedgerFormat(), where)
    return Shortage(tuple(found.replica), found.ctime)


def encode_lock(holder: str) -> bytes:
    return _text(LockDataFormat(bookieId=holder))


def decode_lock(data: bytes, where: str) -> str:
    """Who holds it, as it calls itself. Raises ``MetadataFormatError``."""
    return _parsed(data, LockDataFormat(), where).bookieId


def encode_vote(voter: str) -> bytes:
    return _text(AuditorVoteFormat(bookieId=voter))


def decode_vote(data: bytes, where: str) -> str:
    """Raises ``MetadataFormatError``."""
    return _parsed(data, AuditorVoteFormat(), where).bookieId


def ordered_votes(names: Sequence[str]) -> list[str]:
    """The votes among ``names``, by their number: the first one's voter is the auditor."""
    votes = [name for name in names if name.removeprefix(VOTE_PREFIX).isdecimal()]
    return sorted(votes, key=lambda name: int(name.removeprefix(VOTE_PREFIX)))


def encode_delay(seconds: int) -> bytes:
    return str(seconds).encode()


def decode_delay(data: bytes, where: str) -> int:
    """Seconds. Raises ``MetadataFormatError``."""
    try:
        return max(0, int(data))
    except ValueError as error:
        raise MetadataFormatError(f"{where} holds no number of seconds: {data[:40]!r}") from error


def encode_checked(now_ms: int) -> bytes:
    return CheckAllLedgersFormat(checkAllLedgersCTime=now_ms).SerializeToString()


def decode_checked(data: bytes, where: str) -> int:
    """Milliseconds since 1970. Raises ``MetadataFormatError``."""
    try:
        return CheckAllLedgersFormat.FromString(data).checkAllLedgersCTime
    except DecodeError as error:
        raise MetadataFormatError(f"{where} holds no time: {error}") from error


def _text(message: Message) -> bytes:
    return text_format.MessageToString(message).encode()


def _parsed(data: bytes, message: M, where: str) -> M:
    try:
        text_format.Parse(data.decode("utf-8"), message)
    except (UnicodeDecodeError, text_format.ParseError, RecursionError) as error:
        raise MetadataFormatError(f"{where} cannot be read: {error}") from error
    return message
