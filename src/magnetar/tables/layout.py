"""The name by which a log knows its table, and the names that a table's properties have.

Whatever is here every server imports, also one without Arrow: the columns stand in
``tables.columns``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.model.errors import ConfigError, TableError
from magnetar.model.url_secrets import SECRET_WORDS

SIDE: Final = "__unfit"
VALUE: Final = "value"
WHY: Final = "why"
TAKEN: Final = "magnetar.taken."
"""With a topic partition's name behind it the property of a table that says up to which ledger that
log is in it."""

UNFIT: Final = "magnetar.unfit."
"""The same, of the last ledger of which something lies in the side table."""


def ledger_told(properties: Mapping[str, str], kind: str, log: str) -> int | None:
    """The ledger that the property ``kind`` (``TAKEN``, ``UNFIT``) names for a log; None if there
    is no such property. Logs of one table differ by the number of their partition. Raises
    ``TableError`` for a property that cannot be read."""
    for name, text in properties.items():
        if name.startswith(kind) and partition_of(name) == partition_of(log):
            try:
                return int(json.loads(text)["ledger"])
            except (ValueError, KeyError, TypeError) as error:
                raise TableError(
                    f"log {log}: property {name} of its table says {text[:80]!r}, which names no "
                    "ledger; put back what it was, which older metadata of the table have"
                ) from error
    return None


def partition_of(log: str) -> int:
    """The number of the partition whose log it is; -1 for a topic without partitions."""
    _, found, number = log.rpartition("-partition-")
    return int(number) if found and number.isdecimal() else -1


@dataclass(frozen=True)
class TablePlace:
    """Where a table is: an Iceberg catalog, as ``pyiceberg`` is configured, and a name in it."""

    catalog: str
    properties: Mapping[str, str]
    table: str  # namespace.name

    @property
    def side(self) -> str:
        return self.table + SIDE

    def to_text(self) -> str:
        """For a log's record, where others read it: without secrets."""
        parts = {"catalog": self.catalog, "properties": dict(self.properties), "table": self.table}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TablePlace:
        """Raises ``ConfigError`` for what is none."""
        try:
            parts = json.loads(text)
            return cls(str(parts["catalog"]), dict(parts["properties"]), str(parts["table"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{text!r} does not say where a table is: {error}") from error

    def __post_init__(self) -> None:
        for name in self.properties:
            if any(word in name.lower() for word in SECRET_WORDS):
                raise ConfigError(
                    f"catalog property {name!r} would be seen by all who may read the topic; set "
                    f"it in the environment of job and brokers (PYICEBERG_CATALOG__"
                    f"{self.catalog.upper()}__...), or use the environment of the object storage"
                )


def check_tables(
    log: str,
    place: TablePlace,
    main: Mapping[str, str] | None,
    side_is_there: bool,
    ledger_id: int,
) -> None:
    """What is not in a log's table and its side table is taken for erased, so they must be those
    that took the ledger, and not others of their names. ``main``: the properties of the table,
    None if there is none of that name. Raises ``TableError``."""
    if main is None:
        raise TableError(
            f"log {log}: its table {place.table} is not in catalog {place.catalog}; "
            "was it dropped or renamed? Bring it back under that name"
        )
    taken = ledger_told(main, TAKEN, log)
    if taken is None or taken < ledger_id:
        raise TableError(
            f"log {log}: table {place.table} never took ledger {ledger_id} "
            f"(property {TAKEN}...: {taken}); was the table that did dropped, and made anew? "
            "Bring that one back under this name"
        )
    unfit = ledger_told(main, UNFIT, log)
    if not side_is_there and unfit is not None and ledger_id <= unfit:
        raise TableError(
            f"log {log}: table {place.side}, which has entries of ledgers up to {unfit}, is "
            f"not in catalog {place.catalog}; was it dropped or renamed? Bring it back under "
            f"that name, or remove property {UNFIT}... of {place.table}: then consumers pass "
            "over what was in it"
        )
