"""Which ``ServerError`` of Pulsar's protocol a client is told for which error of the tree.

The most specific class that has a code wins, so an error without one is told as what it is a kind
of. What clients do about a code (retry, look up again, stop) is in ``codes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.model import errors
from magnetar.wire.pulsar.codes import ServerError

CODES: Final[Mapping[type[errors.MagnetarError], ServerError]] = MappingProxyType(
    {
        errors.MagnetarError: ServerError.UNKNOWN,
        errors.ProtocolError: ServerError.UNKNOWN,
        errors.ChecksumError: ServerError.CHECKSUM,
        errors.ImplausibleMessageError: ServerError.NOT_ALLOWED,
        errors.MetadataError: ServerError.METADATA,
        errors.MetadataFormatError: ServerError.METADATA,
        errors.MetadataUnavailableError: ServerError.SERVICE_NOT_READY,
        errors.BookieError: ServerError.PERSISTENCE,
        errors.LedgerError: ServerError.PERSISTENCE,
        errors.LogError: ServerError.PERSISTENCE,
        errors.LogClosedError: ServerError.SERVICE_NOT_READY,
        errors.LogTerminatedError: ServerError.TOPIC_TERMINATED,
        errors.CursorNotFoundError: ServerError.SUBSCRIPTION_NOT_FOUND,
        errors.BrokerError: ServerError.UNKNOWN,
        errors.BrokerMetadataError: ServerError.METADATA,
        errors.AuthenticationError: ServerError.AUTHENTICATION,
        errors.AuthorizationError: ServerError.AUTHORIZATION,
        errors.ConsumerBusyError: ServerError.CONSUMER_BUSY,
        errors.ConsumerAssignError: ServerError.CONSUMER_ASSIGN,
        errors.ServiceNotReadyError: ServerError.SERVICE_NOT_READY,
        errors.ProducerBusyError: ServerError.PRODUCER_BUSY,
        # Not InvalidTopicName: the C++ and Java clients ask again for half a minute and more on it,
        # and then speak of a time-out.
        errors.InvalidTopicNameError: ServerError.NOT_ALLOWED,
        errors.TopicNotFoundError: ServerError.TOPIC_NOT_FOUND,
        # Java's client takes this code for "no schema", and goes on with plain bytes.
        errors.SchemaNotFoundError: ServerError.TOPIC_NOT_FOUND,
        # The one code on which every client gives up at once, Java's GET_OR_CREATE_SCHEMA included.
        errors.InvalidSchemaError: ServerError.INCOMPATIBLE_SCHEMA,
        errors.IncompatibleSchemaError: ServerError.INCOMPATIBLE_SCHEMA,
        errors.SubscriptionNotFoundError: ServerError.SUBSCRIPTION_NOT_FOUND,
        errors.ConsumerNotFoundError: ServerError.CONSUMER_NOT_FOUND,
        # Clients fail what they have pending with it, and come back by themselves.
        errors.StorageFullError: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
        errors.BacklogQuotaError: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
        # On this one they keep what they have pending, and come back by themselves, too.
        errors.BacklogHoldsError: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
        errors.ProducerFencedError: ServerError.PRODUCER_FENCED,
        errors.NotAllowedError: ServerError.NOT_ALLOWED,
        errors.MessageTooLargeError: ServerError.NOT_ALLOWED,
        errors.TooManyConnectionsError: ServerError.TOO_MANY_REQUESTS,
    }
)


def server_error(error: errors.MagnetarError) -> ServerError:
    """The code that a client is told for ``error``."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
