"""Status codes of BookKeeper's protocol <-> classes of ``model.errors``.

Limbo (a bookie that cannot say whether it held an entry) leaves as an I/O error in version 2,
because its own code, 107, makes version 2 clients of BookKeeper throw; coming in, 107 is
understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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

CODES: Final[Mapping[type[BookieError], tuple[int, int]]] = MappingProxyType(
    {
        BookieError: (101, 501),
        BookieIOError: (101, 501),
        NoLedgerError: (1, 402),
        NoEntryError: (2, 403),
        BadRequestError: (100, 404),
        UnauthorizedError: (102, 502),
        BookieVersionError: (103, 503),
        FencedError: (104, 504),
        ReadOnlyBookieError: (105, 505),
        TooManyRequestsError: (106, 506),
        UnknownLedgerStateError: (101, 507),
    }
)
"""Class -> status of version 2, of version 3; of an error without any, those of the nearest class
above it."""

_UNDERSTOOD: Final = tuple(
    cls for cls in CODES if cls not in (BookieError, UnknownLedgerStateError)
)
_BY_V2: Mapping[int, type[BookieError]] = MappingProxyType(
    {CODES[cls][0]: cls for cls in _UNDERSTOOD} | {107: UnknownLedgerStateError}
)
_BY_V3: Mapping[int, type[BookieError]] = MappingProxyType(
    {CODES[cls][1]: cls for cls in _UNDERSTOOD} | {507: UnknownLedgerStateError}
)


def _codes(error: MagnetarError) -> tuple[int, int]:
    """What is not a bookie's error is an I/O error to a peer."""
    found = (CODES[kind] for kind in type(error).__mro__ if kind in CODES)
    return next(found, CODES[BookieIOError])


def v2_code(error: MagnetarError | None) -> int:
    """The version 2 status of ``error``."""
    return OK if error is None else _codes(error)[0]


def v3_code(error: MagnetarError | None) -> int:
    """The version 3 status of ``error``."""
    return OK if error is None else _codes(error)[1]


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
