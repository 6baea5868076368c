"""The paths of a metadata store and the bounds on what a node holds, for every implementation."""

from __future__ import annotations

import re

from magnetar.model.errors import MetadataError

VALUE_BYTES_MAX = (1 << 20) - 1024
"""Largest value of a node: ZooKeeper's packet limit (1 MiB) less room for the path and header."""

PATH_CHARACTERS_MAX = 12 << 10
"""Holds the longest name: a topic of 1024 bytes with a subscription of 512 characters (2048 bytes),
percent-encoded three characters a byte, and what stands above them."""

_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""What ZooKeeper refuses in a path: control characters, surrogates, private use, specials."""

SEQUENCE_DIGITS = 10
"""Width of the counter that the sequential modes append."""


def check_path(path: str) -> str:
    """``path`` itself if it is absolute and normal (``/a/b``, or ``/``), else ``MetadataError``."""
    if path == "/":
        return path
    bad = (
        not path.startswith("/")
        or path.endswith("/")
        or _FORBIDDEN.search(path) is not None
        or len(path) > PATH_CHARACTERS_MAX
        or any(part in ("", ".", "..") for part in path[1:].split("/"))
    )
    if bad:
        raise MetadataError(
            f"{path!r} is not a metadata path: it must look like /a/b, without empty, '.' or '..' "
            f"parts and control characters, and not longer than {PATH_CHARACTERS_MAX} characters"
        )
    return path


def check_new_path(path: str, sequential: bool) -> str:
    """As ``check_path``; a sequential path may end with ``/`` (its name is the counter alone)."""
    if sequential and path.endswith("/"):
        check_path(path + "0")
        return path
    if check_path(path) == "/":
        raise MetadataError("the root / exists always and cannot be created")
    return path


def check_value(path: str, value: bytes) -> None:
    """Raises ``MetadataError`` if ``value`` is larger than a node may be."""
    if len(value) > VALUE_BYTES_MAX:
        raise MetadataError(
            f"{path}: a value of {len(value)} bytes passes the {VALUE_BYTES_MAX} bytes that a "
            f"metadata node may hold; keep large values in a ledger"
        )


def split(path: str) -> tuple[str, str]:
    """Parent path and name: ``/a/b`` -> ``("/a", "b")``, ``/a`` -> ``("/", "a")``; the root is
    ``("", "")``."""
    if path == "/":
        return "", ""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def join(parent: str, name: str) -> str:
    """The inverse of ``split``."""
    return f"/{name}" if parent == "/" else f"{parent}/{name}"
