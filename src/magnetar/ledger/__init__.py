"""The ledger client: the face of the store to the broker and to other systems.

``connect`` gives a ``LedgerClient``, which creates, opens and deletes ledgers; a ``LedgerWriter``
appends, a ``LedgerReader`` reads from any replica, a ``TailingReader`` follows an open ledger.
``magnetar.ledger.sync`` is the same for scripts. The guide is docs/ledger-library.md.

Inside: ``writer`` appends (``quorum_write`` decides), ``recovery`` takes a ledger over
(``recovery_plan`` decides), ``mending`` makes ledgers whole (``missing_entries`` decides),
``placement`` chooses bookies. ``bookies`` is the seam to them.
"""

from magnetar.config import LedgerConfig
from magnetar.env.metadata import CreateMode, SessionState
from magnetar.ledger.catalog.ledger_list import LedgerIds, LedgerList
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import connect
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.tailing import TailingReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    BadVersionError,
    ConfigError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    MagnetarError,
    MetadataError,
    NodeExistsError,
    NoEntryError,
    NoNodeError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from magnetar.model.ledger import DigestType, LedgerMetadata, LedgerState

__all__ = [
    "BadVersionError",
    "ConfigError",
    "CreateMode",
    "DigestType",
    "Entry",
    "EntryTooLargeError",
    "LedgerClient",
    "LedgerClosedError",
    "LedgerConfig",
    "LedgerError",
    "LedgerFencedError",
    "LedgerIds",
    "LedgerList",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerRecoveryError",
    "LedgerState",
    "LedgerWriter",
    "MagnetarError",
    "MetadataError",
    "NoEntryError",
    "NoNodeError",
    "NoSuchLedgerError",
    "NodeExistsError",
    "NotEnoughBookiesError",
    "SessionState",
    "TailingReader",
    "connect",
]
