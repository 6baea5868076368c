"""Reaching tables: catalogs of ``pyiceberg``, opened once a process.

Blocking. ``pyiceberg``'s errors, and those of object storage, come out as ``TableError``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError, TableError
from magnetar.tables.layout import TablePlace

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


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
        raise TableError(f"{what}: {type(error).__name__}: {error}") from error


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
                    found = load_catalog(place.catalog, **place.properties)
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
