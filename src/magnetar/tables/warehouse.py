"""Reaching tables: catalogs of ``pyiceberg``, opened once a process.

Blocking. ``pyiceberg``'s errors, and those of object storage, come out as ``TableError``; so does
whatever it raises on files that are damaged. Its decoders know no error for these: a manifest that
is empty is an EOFError, others are a UnicodeDecodeError, a SystemError, a KeyError.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError, MagnetarError, TableError
from magnetar.model.url_secrets import without_passwords
from magnetar.tables.layout import TablePlace

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

URI: Final = "uri"

PYICEBERG: Final = "pyiceberg"
TEXT_MAX: Final = 200
"""Of what an error says: some have the whole file in it."""


@contextmanager
def table_errors(what: str) -> Iterator[None]:
    """What goes wrong within becomes a ``TableError`` that names ``what``."""
    from pyarrow import ArrowException
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
        RESTError,
        SignError,
        ValidationError,
    )
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (
        ArrowException,
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
        OSError,
        RESTError,
        SQLAlchemyError,
        SignError,
        ValidationError,
    ) as error:
        said = without_passwords(f"{what}: {type(error).__name__}: {error}")
        raise TableError(said) from error
    except MagnetarError:
        raise
    except Exception as error:
        if not _is_of_pyiceberg(error.__traceback__):
            raise
        why = f"{type(error).__name__}: {without_passwords(str(error))[:TEXT_MAX]}"
        raise TableError(
            f"{what}: pyiceberg cannot make sense of what it reads, a file of the table is damaged "
            f"perhaps ({why})"
        ) from error


def _is_of_pyiceberg(trace: TracebackType | None) -> bool:
    """Whether it was raised there, or in what it called."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == PYICEBERG:
            return True
        trace = trace.tb_next
    return False


def _told(place: TablePlace) -> dict[str, str]:
    """What pyiceberg is told beside its environment. A password in the catalog's address comes from
    there only: with it the place would be seen by all who may read the topic."""
    from pyiceberg.utils.config import Config

    told, known = dict(place.properties), Config().get_catalog_config(place.catalog) or {}
    own = known.get(URI)
    if isinstance(own, str) and without_passwords(own) == told.get(URI):
        told[URI] = own
    return told


class Catalogs:
    """The catalogs that this process has opened. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Catalog] = {}

    def get(self, place: TablePlace) -> Catalog:
        """Raises ``ConfigError`` when pyiceberg is missing, ``TableError``."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ConfigError(
                f"tables need pyiceberg, which is not installed here ({error}): pip install "
                "'magnetar[tables]'"
            ) from error
        key = repr((place.catalog, sorted(place.properties.items())))
        with self._lock:
            found = self._open.get(key)
            if found is None:
                with table_errors(f"catalog {place.catalog}"):
                    found = load_catalog(place.catalog, **_told(place))
                self._open[key] = found
            return found

    def table(self, place: TablePlace, name: str) -> Table | None:
        """As it is now; None if there is none of that name. Raises ``TableError``."""
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self.get(place)
        with table_errors(f"table {name}"):
            try:
                return catalog.load_table(name)
            except NoSuchTableError:
                return None


CATALOGS: Final = Catalogs()
"""Of this process."""
