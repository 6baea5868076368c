"""The one error tree.

Every error says what happened, to which object, and what to do. Errors that cross a wire carry
their codes: ``bookie_v2`` and ``bookie_v3`` for BookKeeper's protocol, ``pulsar_code`` for the
``ServerError`` of Pulsar's. An error that a peer caused is a ``*Error`` here; a programmer's
mistake is an ``assert``.
"""

from __future__ import annotations

from typing import ClassVar


class MagnetarError(Exception):
    """Root of every error that the platform raises on purpose.

    ``pulsar_code`` is the number of Pulsar's ``ServerError`` a client is told.
    """

    pulsar_code: ClassVar[int] = 0  # UnknownError


class ConfigError(MagnetarError):
    """A setting, file or flag cannot be used; names the setting and what would be accepted."""


class StartError(MagnetarError):
    """A process cannot start here: a port or a directory is taken, or a part that it needs is
    not there; says which, and what to do."""


class RestError(MagnetarError):
    """A command's request over HTTP was refused, or nobody answered; says what and where."""


class ProtocolError(MagnetarError):
    """Bytes that break a wire format. Raised by codecs; the connection that read them closes."""


class ChecksumError(ProtocolError):
    """A checksum does not match its bytes."""

    pulsar_code = 9


class ImplausibleMessageError(ProtocolError):
    """A message's metadata says what cannot be true of its bytes; says what. Clients that read it
    would break, so it is neither stored nor delivered."""

    pulsar_code = 22


# -- metadata store ---------------------------------------------------------------------------


class MetadataError(MagnetarError):
    """The metadata store refused or failed."""

    pulsar_code = 1


class NodeExistsError(MetadataError):
    """The path exists already."""


class NoNodeError(MetadataError):
    """The path does not exist."""


class BadVersionError(MetadataError):
    """Compare-and-set lost: the node has changed since it was read."""


class NotEmptyError(MetadataError):
    """The node has children."""


class SessionExpiredError(MetadataError):
    """The store dropped our session; every ephemeral node of it is gone."""


class MetadataUnavailableError(MetadataError):
    """The store cannot be reached, or the connection broke before it answered: a write may or may
    not have happened, so read before writing again."""

    pulsar_code = 6


class MetadataFormatError(ProtocolError):
    """A node or file holds bytes that are not of its format; says which and where."""

    pulsar_code = 1


# -- bookie -----------------------------------------------------------------------------------


class BookieError(MagnetarError):
    """A bookie's refusal or failure; codes are BookKeeper's."""

    bookie_v2: ClassVar[int] = 101
    bookie_v3: ClassVar[int] = 501
    pulsar_code = 2


class BookieIOError(BookieError):
    """The bookie's disk failed, or what it holds is corrupt."""


class NoLedgerError(BookieError):
    """The bookie is certain that it holds nothing of the ledger."""

    bookie_v2 = 1
    bookie_v3 = 402


class NoEntryError(BookieError):
    """The bookie is certain that it does not hold the entry."""

    bookie_v2 = 2
    bookie_v3 = 403


class BadRequestError(BookieError):
    """The bookie could not make sense of the request."""

    bookie_v2 = 100
    bookie_v3 = 404


class UnauthorizedError(BookieError):
    """The master key is not the ledger's."""

    bookie_v2 = 102
    bookie_v3 = 502


class BookieVersionError(BookieError):
    """The protocol version is not one the bookie speaks."""

    bookie_v2 = 103
    bookie_v3 = 503


class FencedError(BookieError):
    """The ledger is fenced: a recovery has begun and this writer must stop."""

    bookie_v2 = 104
    bookie_v3 = 504
    pulsar_code = 2


class ReadOnlyBookieError(BookieError):
    """The bookie takes no new entries (its disks are nearly full, or an operator said so)."""

    bookie_v2 = 105
    bookie_v3 = 505


class TooManyRequestsError(BookieError):
    """The bookie's bound on requests under way is reached; try again later."""

    bookie_v2 = 106
    bookie_v3 = 506


class UnknownLedgerStateError(BookieError):
    """The bookie may have lost entries and cannot say whether it held this one (limbo)."""

    bookie_v2 = 101  # 107 makes the Java v2 client throw; an I/O error means the same to it
    bookie_v3 = 507


class CookieError(BookieError):
    """The bookie's directories, its settings and the metadata store disagree about who it is; it
    does not start. Says which side differs, how, and what to do."""


class BookieRegisteredError(BookieError):
    """Another process is registered under the bookie's id."""


class BookieUnavailableError(BookieError):
    """No connection to the bookie, or no answer in time. Local: never sent on a wire."""


# -- ledger -----------------------------------------------------------------------------------


class LedgerError(MagnetarError):
    """A ledger operation failed; says which ledger."""

    pulsar_code = 2


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies can take a ledger than its ensemble needs; says which and why not."""


class EntryTooLargeError(LedgerError):
    """A payload is larger than bookies take. Nothing was appended, and the writer goes on."""


class LedgerClosedError(LedgerError):
    """The ledger is closed (by us or by a recovery); it takes no more entries."""


class LedgerFencedError(LedgerError):
    """Another client recovers or has recovered the ledger; this writer has lost it."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken by a ledger that somebody else created."""


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger."""


class LedgerRecoveryError(LedgerError):
    """Recovery cannot go on without risking acknowledged entries; says which bookies to bring
    back. Nothing is truncated; try again when they answer."""


class DigestError(LedgerError):
    """An entry's digest does not match: the replica is corrupt."""


# -- log --------------------------------------------------------------------------------------


class LogError(MagnetarError):
    """A log (topic partition) operation failed; says which log."""

    pulsar_code = 2


class LogClosedError(LogError):
    """The log is closed here: it was unloaded, deleted, or its ownership moved."""

    pulsar_code = 6


class LogFencedError(LogClosedError):
    """Another broker owns the log now."""


class CursorNotFoundError(LogError):
    """The log has no cursor of that name."""

    pulsar_code = 12


# -- broker -----------------------------------------------------------------------------------


class BrokerError(MagnetarError):
    """A client's request cannot be served; ``pulsar_code`` tells the client why."""


class BrokerMetadataError(BrokerError):
    pulsar_code = 1


class ConsumerBusyError(BrokerError):
    """The subscription is taken by another consumer."""

    pulsar_code = 5


class ServiceNotReadyError(BrokerError):
    pulsar_code = 6


class ProducerBusyError(BrokerError):
    """A producer of that name is connected to the topic."""

    pulsar_code = 16


class InvalidTopicNameError(BrokerError):
    pulsar_code = 17


class TopicNotFoundError(BrokerError):
    pulsar_code = 11


class SubscriptionNotFoundError(BrokerError):
    pulsar_code = 12


class ConsumerNotFoundError(BrokerError):
    """The connection has no consumer of that id."""

    pulsar_code = 13


class ProducerFencedError(BrokerError):
    """Another producer has, or has had, the topic to itself; this one must not come back."""

    pulsar_code = 25


class NotAllowedError(BrokerError):
    pulsar_code = 22


class MessageTooLargeError(BrokerError):
    """The message passes the largest size; says both sizes."""

    pulsar_code = 22


class TooManyConnectionsError(BrokerError):
    """A bound on connections, producers or consumers is reached; says which."""

    pulsar_code = 14
