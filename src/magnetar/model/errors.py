"""The one error tree.

Every error says what happened, to which object, and what to do. None knows of a wire: each
protocol has a table from these classes to its codes (``wire.pulsar.errors``,
``wire.bookie.status``). An error that a peer caused is a ``*Error`` here; a programmer's mistake is
an ``assert``.
"""

from __future__ import annotations


class MagnetarError(Exception):
    """Root of every error that the platform raises on purpose."""


class ConfigError(MagnetarError):
    """A setting, file or flag cannot be used; names the setting and what would be accepted."""


class DefectError(MagnetarError):
    """A part of this program failed by a fault of its own; says which and how."""


class StartError(MagnetarError):
    """A process cannot start here: a port or a directory is taken, or a part that it needs is
    not there; says which, and what to do."""


class JobError(MagnetarError):
    """A job of the pipeline could not do its work; says which part, and why."""


class RestError(MagnetarError):
    """A command's request over HTTP was refused, or nobody answered; says what and where."""


class ProtocolError(MagnetarError):
    """Bytes that break a wire format. Raised by codecs; the connection that read them closes."""


class ChecksumError(ProtocolError):
    """A checksum does not match its bytes."""


class ErasedEntryError(ProtocolError):
    """Nothing is left of an entry but its place: what it held was erased from its topic's table."""


class ImplausibleMessageError(ProtocolError):
    """A message's metadata says what cannot be true of its bytes; says what. Clients that read it
    would break, so it is neither stored nor delivered."""


# -- metadata store ---------------------------------------------------------------------------


class MetadataError(MagnetarError):
    """The metadata store refused or failed."""


class NodeExistsError(MetadataError):
    """The path exists already."""


class NoSuchBookieError(MetadataError):
    """Nothing in the metadata store names such a bookie."""


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


class MetadataFormatError(ProtocolError):
    """A node or file holds bytes that are not of its format; says which and where."""


# -- bookie -----------------------------------------------------------------------------------


class BookieError(MagnetarError):
    """A bookie's refusal or failure."""


class BookieIOError(BookieError):
    """The bookie's disk failed, or what it holds is corrupt."""


class NoLedgerError(BookieError):
    """The bookie is certain that it holds nothing of the ledger."""


class NoEntryError(BookieError):
    """The bookie is certain that it does not hold the entry."""


class BadRequestError(BookieError):
    """The bookie could not make sense of the request."""


class UnauthorizedError(BookieError):
    """The master key is not the ledger's."""


class BookieVersionError(BookieError):
    """The protocol version is not one the bookie speaks."""


class FencedError(BookieError):
    """The ledger is fenced: a recovery has begun and this writer must stop."""


class ReadOnlyBookieError(BookieError):
    """The bookie takes no new entries (its disks are nearly full, or an operator said so)."""


class TooManyRequestsError(BookieError):
    """The bookie's bound on requests under way is reached; try again later."""


class UnknownLedgerStateError(BookieError):
    """The bookie may have lost entries and cannot say whether it held this one (limbo)."""


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


class NotEnoughBookiesError(LedgerError):
    """Fewer bookies can take a ledger than its ensemble needs; says which and why not."""


class NoSpaceError(NotEnoughBookiesError):
    """There would be enough bookies, were there space on their disks; says which disks. Passes by
    itself when there is."""


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


class EntryDamagedError(LedgerError):
    """All that should have an entry were asked, and none has a sound copy; says which entry. It
    stays so until a copy is restored."""


class DigestError(LedgerError):
    """An entry's digest does not match: the replica is corrupt."""


# -- log --------------------------------------------------------------------------------------


class LogError(MagnetarError):
    """A log (topic partition) operation failed; says which log."""


class TableError(LogError):
    """A log's table could not be reached, read or written; says which, and why."""


class LogClosedError(LogError):
    """The log is closed here: it was unloaded, deleted, or its ownership moved."""


class LogFencedError(LogClosedError):
    """Another broker owns the log now."""


class LogTerminatedError(LogError):
    """The log takes nothing more, for good; what it holds is read as before."""


class NoSuchLogError(LogClosedError):
    """There is no log of that name, or the one that was followed was deleted."""


class OtherEngineError(LogError):
    """The log is kept by another engine than the one that was asked."""


class OtherClusterError(LogError):
    """Files of partitions are of another cluster, or of another topic of that name, than the
    metadata store has; says which, and what to do."""


class CursorNotFoundError(LogError):
    """The log has no cursor of that name."""


# -- partition (a log with a leader and followers) ---------------------------------------------


class CorruptBatchError(ProtocolError):
    """Bytes that are no whole record batch; says where and why."""


class PartitionError(LogError):
    """A partition's replica refuses; the class says why."""


class LogDamagedError(PartitionError):
    """Files of a partition lack what they held for certain; says which, and what to do."""


class OffsetOutOfRangeError(PartitionError):
    """The partition does not hold that offset; says which it holds."""


class NotLeaderError(PartitionError):
    """This broker does not lead the partition; ask the one that does."""


class FencedLeaderEpochError(PartitionError):
    """Whoever asks knows an older leader epoch than this replica: it must learn the new one."""


class UnknownLeaderEpochError(PartitionError):
    """Whoever asks knows a newer leader epoch than this replica, which will learn it soon."""


class NotEnoughReplicasError(PartitionError):
    """Fewer replicas are in sync than the topic demands; nothing was appended."""


class NotEnoughReplicasAfterAppendError(PartitionError):
    """It was appended, and fewer replicas are in sync than the topic demands: it may be lost."""


class LeaderUnreachableError(PartitionError):
    """The broker that leads a partition is not reached, or does not answer: it is asked again."""


class ReplicationFactorError(PartitionError):
    """A topic cannot have so many replicas; says how many brokers there are."""


class OutOfOrderSequenceError(PartitionError):
    """A batch does not continue its producer's sequence: one before it was not stored."""


class SequenceGapError(OutOfOrderSequenceError):
    """It leaves some out, which may come still."""


class OpenTransactionError(PartitionError):
    """A producer sends a batch that is no part of its transaction, which is open there."""


class StaleProducerEpochError(PartitionError):
    """The batch is of an instance of the producer that has been replaced."""


# -- pipeline ---------------------------------------------------------------------------------


class DataLossError(MagnetarError):
    """Messages that a pipeline was to read are gone; says which, and how to go on without them."""


class StagedWriteError(MagnetarError):
    """A staged write cannot go on: what was offered, stored or asked for does not fit; says
    what."""


class StaleRunError(StagedWriteError):
    """Another run of the query has begun: what this one offers is refused, now and later."""


class StagedBacklogError(StagedWriteError):
    """Batches were committed faster than topics take them in, for too long."""


# -- broker -----------------------------------------------------------------------------------


class BrokerError(MagnetarError):
    """A client's request cannot be served; the class says why."""


class BrokerMetadataError(BrokerError):
    """What the request needs to know, or to change, of a topic cannot be known or changed now."""


class DamagedTopicError(BrokerMetadataError):
    """What the metadata store has of a topic cannot be read; of others it can."""


class AuthenticationError(BrokerError):
    """Who asks has not shown who it is. ``why``: for this side's log, never for who asks."""

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why or text


class AuthorizationError(BrokerError):
    """The role may not do what it asks for; says which role, what, and where."""


class ConsumerBusyError(BrokerError):
    """The subscription is taken by another consumer."""


class ConsumerAssignError(BrokerError):
    """A consumer of a Key_Shared subscription cannot have the hash ranges that it asks for."""


class ServiceNotReadyError(BrokerError):
    """The topic (or what else is asked for) is not served here now; look it up again."""


class ClientGoneError(BrokerError):
    """Nobody waits any more for what is being done."""


class BoundElsewhereError(ServiceNotReadyError):
    """Another broker serves the subscription: the one at ``service_url``."""

    def __init__(self, text: str, service_url: str) -> None:
        super().__init__(text)
        self.service_url = service_url


class BindingEndedError(ServiceNotReadyError):
    """This broker does not serve the subscription any more, or never did."""


class ProducerBusyError(BrokerError):
    """A producer of that name is connected to the topic."""


class InvalidTopicNameError(BrokerError):
    """The name is none that a topic can have; says why."""


class TopicNotFoundError(BrokerError):
    """There is no topic, namespace or tenant of that name."""


class UnknownTopicIdError(TopicNotFoundError):
    """There is no topic of that id: it was deleted, and perhaps made anew under its name."""


class SchemaNotFoundError(BrokerError):
    """The topic has no schema, or not in that version."""


class InvalidSchemaError(BrokerError):
    """A schema whose definition is none of its type, or is too large; says where and why."""


class IncompatibleSchemaError(BrokerError):
    """The topic does not take the schema, or not without one; says against which version, and
    why."""


class SubscriptionNotFoundError(BrokerError):
    """The topic has no subscription of that name."""


class ConsumerNotFoundError(BrokerError):
    """The connection has no consumer of that id."""


class StorageFullError(BrokerError):
    """The topic takes no messages for now: there is no space to store them; says where."""


class BacklogQuotaError(BrokerError):
    """Subscriptions of the topic are further behind than its quota allows, so it takes no messages
    for now; says which quota. Producers fail what they have pending."""


class BacklogHoldsError(BacklogQuotaError):
    """The same, where producers are to wait with what they have pending."""


class ProducerFencedError(BrokerError):
    """Another producer has, or has had, the topic to itself; this one must not come back."""


class NotAllowedError(BrokerError):
    """The request can never be served as it is; says why."""


class InvalidPolicyError(BrokerError):
    """What is said of how topics are kept or served cannot be meant; says what would be
    accepted."""


class MessageTooLargeError(BrokerError):
    """The message passes the largest size; says both sizes."""


class TooManyTopicsError(NotAllowedError):
    """The namespace has as many topics as it may have."""


class TooManyConnectionsError(BrokerError):
    """A bound on connections, producers or consumers is reached; says which."""
