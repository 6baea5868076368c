"""A bookie's cookie: who it is and which directories are its own. BookKeeper's format.

The same bytes lie in the store at ``cookies/<bookie id>`` and in every directory's
``current/VERSION``: the layout version ``5\\n``, then ``CookieFormat`` in protobuf's text form.
Version 4 is the same; version 3 has the three first values a line each. ``journalDir`` joins the
journal directories with commas, ``ledgerDirs`` is their count and each after a tab.

Source: BookKeeper's ``Cookie``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf import text_format

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.metadata_pb2 import CookieFormat

LAYOUT_VERSION = 5
GENERATIONS = "/magnetar/generations"
"""Beside BookKeeper's own nodes: by bookie, a number that its directories have, too, and that grows
(``bookie/generations.py``). It goes with the cookie."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """``journal_dir``, ``ledger_dirs`` and ``index_dirs`` are as the format has them."""

    bookie_id: str
    journal_dir: str
    ledger_dirs: str
    instance_id: str = ""
    index_dirs: str = ""

    @classmethod
    def of(
        cls,
        bookie_id: str,
        journal_directories: Sequence[str],
        ledger_directories: Sequence[str],
        instance_id: str,
    ) -> Cookie:
        ledger_dirs = "\t".join([str(len(ledger_directories)), *ledger_directories])
        return cls(bookie_id, ",".join(journal_directories), ledger_dirs, instance_id)


def encode_cookie(cookie: Cookie) -> bytes:
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=cookie.journal_dir,
        ledgerDirs=cookie.ledger_dirs,
    )
    if cookie.instance_id:
        message.instanceId = cookie.instance_id
    if cookie.index_dirs:
        message.indexDirs = cookie.index_dirs
    return f"{LAYOUT_VERSION}\n{text_format.MessageToString(message)}".encode()


def decode_cookie(data: bytes, where: str) -> Cookie:
    """``where`` names the file or node in errors. Raises ``MetadataFormatError``."""
    try:
        first, _, rest = data.decode("utf-8").partition("\n")
        version = int(first.strip())
        if version == 3:
            return _decode_lines(rest)
        if version not in (4, LAYOUT_VERSION):
            raise ValueError(f"its layout version is {version}, known are 3 to {LAYOUT_VERSION}")
        message = text_format.Parse(rest, CookieFormat())
        if not message.IsInitialized():
            raise ValueError("the bookie's id or directories are missing")
    except (ValueError, text_format.ParseError, RecursionError) as error:
        raise MetadataFormatError(f"{where} is no bookie's cookie: {error}") from error
    return Cookie(
        message.bookieHost,
        message.journalDir,
        message.ledgerDirs,
        message.instanceId,
        message.indexDirs,
    )


def _decode_lines(rest: str) -> Cookie:
    lines = rest.split("\n")
    if len(lines) < 3:
        raise ValueError("the bookie's id or directories are missing")
    return Cookie(lines[0], lines[1], lines[2])
