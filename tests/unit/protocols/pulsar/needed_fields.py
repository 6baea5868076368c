"""Fields that clients read out of an answer without asking whether they are there.

Optional in the protocol, set by every Pulsar broker: Java's generated classes throw for a field
that is not set and has no default, and Go's client dereferences a null pointer. Java then closes
the connection, with all its producers and consumers. Read off the sources of the Java client 4.0.8
(``ClientCnx``), the Go client (``connection.go``) and the C++ client (``ClientConnection``).
"""

from __future__ import annotations

from typing import Final

from magnetar.wire.pulsar.commands import COMMAND_NAMES
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand

NEEDED: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    BaseCommand.CONNECTED: ("connected", ("protocol_version", "max_message_size", "feature_flags")),
    BaseCommand.PRODUCER_SUCCESS: (
        "producer_success",
        ("producer_name", "last_sequence_id", "schema_version", "producer_ready"),
    ),
    BaseCommand.SEND_RECEIPT: ("send_receipt", ("message_id",)),
    BaseCommand.SEND_ERROR: ("send_error", ("message",)),
    BaseCommand.PARTITIONED_METADATA_RESPONSE: ("partitionMetadataResponse", ("response",)),
    BaseCommand.LOOKUP_RESPONSE: ("lookupTopicResponse", ("response",)),
    BaseCommand.ACK_RESPONSE: ("ackResponse", ("consumer_id",)),
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: (
        "getLastMessageIdResponse",
        ("last_message_id", "consumer_mark_delete_position"),
    ),
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: (
        "getOrCreateSchemaResponse",
        ("schema_version",),
    ),
    BaseCommand.CONSUMER_STATS_RESPONSE: (
        "consumerStatsResponse",
        (
            "msgRateOut", "msgThroughputOut", "msgRateRedeliver", "consumerName",
            "availablePermits", "unackedMessages", "blockedConsumerOnUnackedMsgs", "address",
            "connectedSince", "type", "msgBacklog",
        ),
    ),
    BaseCommand.MESSAGE: ("message", ("message_id",)),
}  # fmt: skip
"""Answer -> the field of its body, and the fields that must be set there."""

NEEDED_OF_GOOD: Final[dict[int, tuple[str, ...]]] = {
    BaseCommand.PARTITIONED_METADATA_RESPONSE: ("partitions",),
    BaseCommand.LOOKUP_RESPONSE: ("brokerServiceUrl", "authoritative"),
}
"""Answer -> fields that must be set when it is no refusal."""

ERROR_FIELDS: Final = (("error", "message"), ("error_code", "error_message"))
"""Where the one is set, the other is read."""


def lacking(answer: BaseCommand) -> list[str]:
    """What ``answer`` lacks, as "ANSWER.field"."""
    kind = int(answer.type)
    if kind not in NEEDED:
        return []
    name, fields = NEEDED[kind]
    body = getattr(answer, name)
    refused = [pair for pair in ERROR_FIELDS if _has(body, pair[0])]
    if refused:
        fields = tuple(text for _, text in refused)
    else:
        fields += NEEDED_OF_GOOD.get(kind, ())
    return [f"{COMMAND_NAMES[kind]}.{field}" for field in fields if not _has(body, field)]


def _has(body: object, field: str) -> bool:
    descriptor = body.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    return field in descriptor and bool(body.HasField(field))  # type: ignore[attr-defined]
