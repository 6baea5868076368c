"""Status codes of BookKeeper's protocol <-> classes of ``model.errors``.

The codes themselves stand with the classes (``bookie_v2``, ``bookie_v3``). Limbo (a bookie that
cannot say whether it held an entry) leaves as an I/O error in version 2, because its own code,
107, makes version 2 clients of BookKeeper throw; coming in, 107 is understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from magnetar.model.errors import (
    BadRequestError,
    BookieError,
    BookieIOError,
    BookieVersionError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)

OK = 0

_CLASSES: tuple[type[BookieError], ...] = (
    NoLedgerError,
    NoEntryError,
    BadRequestError,
    BookieIOError,
    UnauthorizedError,
    BookieVersionError,
    FencedError,
    ReadOnlyBookieError,
    TooManyRequestsError,
)
_BY_V2: Mapping[int, type[BookieError]] = MappingProxyType(
    {cls.bookie_v2: cls for cls in _CLASSES} | {107: UnknownLedgerStateError}
)
_BY_V3: Mapping[int, type[BookieError]] = MappingProxyType(
    {cls.bookie_v3: cls for cls in _CLASSES} | {507: UnknownLedgerStateError}
)


def v2_code(error: MagnetarError | None) -> int:
    """The version 2 status of ``error``; what is not a bookie's error is an I/O error to a peer."""
    if error is None:
        return OK
    return error.bookie_v2 if isinstance(error, BookieError) else BookieIOError.bookie_v2


def v3_code(error: MagnetarError | None) -> int:
    """The version 3 status of ``error``; what is not a bookie's error is an I/O error to a peer."""
    if error is None:
        return OK
    return error.bookie_v3 if isinstance(error, BookieError) else BookieIOError.bookie_v3


def v2_error(code: int, what: str) -> BookieError | None:
    """The error that status ``code`` stands for (None for OK); ``what`` was asked of whom.

    An unknown code is an I/O error: the request was not done, and we cannot say why.
    """
    return None if code == OK else _error(_BY_V2.get(code), code, what)


def v3_error(code: int, what: str) -> BookieError | None:
    """As ``v2_error`` for a version 3 status."""
    return None if code == OK else _error(_BY_V3.get(code), code, what)


def _error(cls: type[BookieError] | None, code: int, what: str) -> BookieError:
    if cls is None:
        return BookieIOError(f"{what}: answered with unknown status {code}")
    reason = (cls.__doc__ or "").split(".")[0].split(":")[0].strip()
    return cls(f"{what}: {reason[:1].lower()}{reason[1:]} (status {code})")
