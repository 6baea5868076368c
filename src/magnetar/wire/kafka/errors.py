"""Kafka's error codes, and which of them a client is told for which error of the tree.

The most specific class that has a code wins, so an error without one is told as what it is a kind
of. Codes on which clients look leaders up again and try once more: ``NOT_LEADER_OR_FOLLOWER``,
``LEADER_NOT_AVAILABLE``, ``KAFKA_STORAGE_ERROR``, ``NOT_COORDINATOR``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from magnetar.model import errors


class ErrorCode(IntEnum):
    """Those that are told here."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    ELECTION_NOT_NEEDED = 84
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


CODES: Final[Mapping[type[errors.MagnetarError], ErrorCode]] = MappingProxyType(
    {
        errors.MagnetarError: ErrorCode.UNKNOWN_SERVER_ERROR,
        errors.ProtocolError: ErrorCode.INVALID_REQUEST,
        errors.ChecksumError: ErrorCode.CORRUPT_MESSAGE,
        errors.ImplausibleMessageError: ErrorCode.INVALID_RECORD,
        # Stores that are out of reach come back: clients ask again.
        errors.MetadataError: ErrorCode.LEADER_NOT_AVAILABLE,
        errors.MetadataFormatError: ErrorCode.UNKNOWN_SERVER_ERROR,
        errors.BookieError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.LedgerError: ErrorCode.KAFKA_STORAGE_ERROR,
        # Consumers try again for ever what is a matter of storage, and say nothing; of this they
        # tell the application, which can seek past it.
        errors.EntryDamagedError: ErrorCode.CORRUPT_MESSAGE,
        errors.NoEntryError: ErrorCode.CORRUPT_MESSAGE,
        errors.NoSuchLedgerError: ErrorCode.CORRUPT_MESSAGE,
        errors.LogError: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.LogClosedError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        # Not one of those on which producers try again: it stays so.
        errors.LogTerminatedError: ErrorCode.POLICY_VIOLATION,
        errors.NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.FencedLeaderEpochError: ErrorCode.FENCED_LEADER_EPOCH,
        errors.UnknownLeaderEpochError: ErrorCode.UNKNOWN_LEADER_EPOCH,
        errors.OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.NotEnoughReplicasError: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.NotEnoughReplicasAfterAppendError: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        errors.ReplicationFactorError: ErrorCode.INVALID_REPLICATION_FACTOR,
        errors.BrokerMetadataError: ErrorCode.LEADER_NOT_AVAILABLE,
        errors.ServiceNotReadyError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.InvalidTopicNameError: ErrorCode.INVALID_TOPIC_EXCEPTION,
        errors.TopicNotFoundError: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UnknownTopicIdError: ErrorCode.UNKNOWN_TOPIC_ID,
        errors.StorageFullError: ErrorCode.KAFKA_STORAGE_ERROR,
        # Told of a batch alone: the first fails at every client, and passes by itself for the next;
        # on the second all try again, without asking for metadata each time.
        errors.BacklogQuotaError: ErrorCode.POLICY_VIOLATION,
        errors.BacklogHoldsError: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.NotAllowedError: ErrorCode.POLICY_VIOLATION,
        errors.InvalidPolicyError: ErrorCode.INVALID_CONFIG,
        errors.MessageTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
        errors.CorruptBatchError: ErrorCode.CORRUPT_MESSAGE,
        errors.OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        errors.StaleProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
        errors.OpenTransactionError: ErrorCode.INVALID_TXN_STATE,
        # Of a bound on open topics: passes by itself.
        errors.TooManyConnectionsError: ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


def error_code(error: errors.MagnetarError) -> ErrorCode:
    """The code that a client is told for ``error``."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


FETCH_CODES: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What consumers in Java know of a partition in a fetch, of those that are told here. At any other
they end with an ``IllegalStateException`` (``FetchCollector`` and ``ShareFetchCollector``)."""
PASSING: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""Of others: what is another way soon, be it that a share group's members have to join again."""


def fetch_error_code(error: errors.MagnetarError) -> ErrorCode:
    """As ``error_code``, of a partition in a fetch."""
    if isinstance(error, errors.MetadataFormatError):
        # As of a ledger whose metadata is gone: consumers tell their applications, which can seek.
        # At an unknown error they try again at once, and for ever.
        return ErrorCode.CORRUPT_MESSAGE
    return known_to_fetch(error_code(error))


def known_to_fetch(code: ErrorCode) -> ErrorCode:
    """One of ``FETCH_CODES``: of what passes consumers are told what has them ask for the leader,
    and go on; of anything else that there is an error, of which they write a line each time."""
    if code in FETCH_CODES:
        return code
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in PASSING else ErrorCode.UNKNOWN_SERVER_ERROR
