"""Which requests are served, in which versions, and how their frames begin.

A frame is its length (4), a header and a message. Request header: api key 2, api version 2,
correlation id 4, client id (nullable string, never compact), and tagged fields where the version is
flexible. Response header: correlation id 4, and tagged fields where the version is flexible, but
never in an answer to ApiVersions: its client does not know yet what the server speaks.

Only what works is advertised. Fetch 13 and Produce 13 name topics by ids, which topics do not have
here: clients use 12 and 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from magnetar.model.errors import ProtocolError
from magnetar.wire.kafka import (
    acl_messages,
    admin_messages,
    cluster_messages,
    consumer_group_messages,
    fetch_messages,
    group_messages,
    log_dir_messages,
    offset_messages,
    partition_messages,
    produce_messages,
    producer_messages,
    quota_messages,
    record_messages,
    sasl_messages,
    scram_messages,
    share_fetch_messages,
    share_group_messages,
    share_state_messages,
    transaction_messages,
)
from magnetar.wire.kafka.primitives import Buffer, FieldReader, FieldWriter
from magnetar.wire.kafka.schema import is_flexible, read_message, skip_tagged, write_message


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api(NamedTuple):
    """``least`` to ``most``: the versions that are served."""

    key: ApiKey
    least: int
    most: int
    request: type[Any]
    response: type[Any]


def _api(key: ApiKey, least: int, most: int, module: Any, name: str) -> Api:
    return Api(
        key, least, most, getattr(module, f"{name}Request"), getattr(module, f"{name}Response")
    )


_K: Final = ApiKey
_LISTED: Final = (
    # Produce 0 to 2 are advertised for librdkafka, which takes a server without them for too old
    # to compress; their old message format is refused.
    _api(_K.PRODUCE, 0, 11, produce_messages, "Produce"),
    Api(
        _K.FETCH, 4, 16, fetch_messages.ClientFetchRequest, fetch_messages.FetchResponse
    ),
    _api(_K.LIST_OFFSETS, 1, 10, fetch_messages, "ListOffsets"),
    _api(_K.METADATA, 0, 13, cluster_messages, "Metadata"),
    _api(_K.OFFSET_COMMIT, 2, 9, offset_messages, "OffsetCommit"),
    _api(_K.OFFSET_FETCH, 1, 9, offset_messages, "OffsetFetch"),
    _api(_K.FIND_COORDINATOR, 0, 6, cluster_messages, "FindCoordinator"),
    _api(_K.JOIN_GROUP, 0, 9, group_messages, "JoinGroup"),
    _api(_K.HEARTBEAT, 0, 4, group_messages, "Heartbeat"),
    _api(_K.LEAVE_GROUP, 0, 5, group_messages, "LeaveGroup"),
    _api(_K.SYNC_GROUP, 0, 5, group_messages, "SyncGroup"),
    _api(_K.DESCRIBE_GROUPS, 0, 5, group_messages, "DescribeGroups"),
    _api(_K.LIST_GROUPS, 0, 5, group_messages, "ListGroups"),
    # Version 0 goes on with tokens in frames of their own: kafka-python 2.0 uses no other.
    _api(_K.SASL_HANDSHAKE, 0, 1, sasl_messages, "SaslHandshake"),
    _api(_K.API_VERSIONS, 0, 4, cluster_messages, "ApiVersions"),
    _api(_K.CREATE_TOPICS, 2, 7, admin_messages, "CreateTopics"),
    _api(_K.DELETE_TOPICS, 1, 6, admin_messages, "DeleteTopics"),
    _api(_K.DELETE_RECORDS, 0, 2, record_messages, "DeleteRecords"),
    _api(_K.INIT_PRODUCER_ID, 0, 5, produce_messages, "InitProducerId"),
    _api(_K.OFFSET_FOR_LEADER_EPOCH, 2, 4, fetch_messages, "OffsetForLeaderEpoch"),
    _api(_K.ADD_PARTITIONS_TO_TXN, 0, 3, transaction_messages, "AddPartitionsToTxn"),
    _api(_K.ADD_OFFSETS_TO_TXN, 0, 3, transaction_messages, "AddOffsetsToTxn"),
    _api(_K.END_TXN, 0, 3, transaction_messages, "EndTxn"),
    _api(_K.WRITE_TXN_MARKERS, 1, 1, transaction_messages, "WriteTxnMarkers"),
    _api(_K.TXN_OFFSET_COMMIT, 0, 3, transaction_messages, "TxnOffsetCommit"),
    _api(_K.DESCRIBE_ACLS, 0, 3, acl_messages, "DescribeAcls"),
    _api(_K.CREATE_ACLS, 0, 3, acl_messages, "CreateAcls"),
    _api(_K.DELETE_ACLS, 0, 3, acl_messages, "DeleteAcls"),
    _api(_K.DESCRIBE_CONFIGS, 0, 4, admin_messages, "DescribeConfigs"),
    _api(_K.ALTER_CONFIGS, 0, 2, admin_messages, "AlterConfigs"),
    _api(_K.ALTER_REPLICA_LOG_DIRS, 0, 2, log_dir_messages, "AlterReplicaLogDirs"),
    _api(_K.DESCRIBE_LOG_DIRS, 0, 4, log_dir_messages, "DescribeLogDirs"),
    _api(_K.SASL_AUTHENTICATE, 0, 2, sasl_messages, "SaslAuthenticate"),
    _api(_K.CREATE_PARTITIONS, 0, 3, admin_messages, "CreatePartitions"),
    _api(_K.DELETE_GROUPS, 0, 2, group_messages, "DeleteGroups"),
    _api(_K.ELECT_LEADERS, 0, 2, partition_messages, "ElectLeaders"),
    _api(_K.INCREMENTAL_ALTER_CONFIGS, 0, 1, admin_messages, "IncrementalAlterConfigs"),
    _api(
        _K.ALTER_PARTITION_REASSIGNMENTS, 0, 0, partition_messages, "AlterPartitionReassignments"
    ),
    _api(
        _K.LIST_PARTITION_REASSIGNMENTS, 0, 0, partition_messages, "ListPartitionReassignments"
    ),
    _api(_K.OFFSET_DELETE, 0, 0, offset_messages, "OffsetDelete"),
    _api(_K.DESCRIBE_CLIENT_QUOTAS, 0, 1, quota_messages, "DescribeClientQuotas"),
    _api(_K.ALTER_CLIENT_QUOTAS, 0, 1, quota_messages, "AlterClientQuotas"),
    _api(
        _K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, scram_messages, "DescribeUserScramCredentials"
    ),
    _api(_K.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, scram_messages, "AlterUserScramCredentials"),
    _api(_K.DESCRIBE_CLUSTER, 0, 2, cluster_messages, "DescribeCluster"),
    _api(_K.DESCRIBE_PRODUCERS, 0, 0, producer_messages, "DescribeProducers"),
    _api(_K.DESCRIBE_TRANSACTIONS, 0, 0, transaction_messages, "DescribeTransactions"),
    _api(_K.LIST_TRANSACTIONS, 0, 2, transaction_messages, "ListTransactions"),
    # Clients take the new protocol of groups when the first of these is listed.
    _api(_K.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_messages, "ConsumerGroupHeartbeat"),
    _api(_K.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_group_messages, "ConsumerGroupDescribe"),
    # Version 0 lists the metrics that clients are to send, of which there are none.
    _api(_K.LIST_CONFIG_RESOURCES, 0, 1, admin_messages, "ListConfigResources"),
    _api(_K.DESCRIBE_TOPIC_PARTITIONS, 0, 0, partition_messages, "DescribeTopicPartitions"),
    _api(_K.SHARE_GROUP_HEARTBEAT, 1, 1, share_group_messages, "ShareGroupHeartbeat"),
    _api(_K.SHARE_GROUP_DESCRIBE, 1, 1, share_group_messages, "ShareGroupDescribe"),
    _api(_K.SHARE_FETCH, 1, 1, share_fetch_messages, "ShareFetch"),
    _api(_K.SHARE_ACKNOWLEDGE, 1, 1, share_fetch_messages, "ShareAcknowledge"),
    _api(_K.READ_SHARE_GROUP_STATE, 0, 0, share_state_messages, "ReadShareGroupState"),
    _api(_K.WRITE_SHARE_GROUP_STATE, 0, 0, share_state_messages, "WriteShareGroupState"),
    _api(
        _K.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 0, share_group_messages, "DescribeShareGroupOffsets"
    ),
    _api(_K.ALTER_SHARE_GROUP_OFFSETS, 0, 0, share_group_messages, "AlterShareGroupOffsets"),
    _api(_K.DELETE_SHARE_GROUP_OFFSETS, 0, 0, share_group_messages, "DeleteShareGroupOffsets"),
)  # fmt: skip

APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _LISTED})


class RequestHead(NamedTuple):
    """How a request begins. ``api`` is None for one that is not served, in that version or at
    all."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    api: Api | None


def read_head(reader: FieldReader) -> RequestHead:
    """Up to the message itself, or, of what is not served, as far as all versions agree. Raises
    ``ProtocolError``."""
    key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    api = APIS.get(key)
    if api is None or not api.least <= version <= api.most:
        return RequestHead(key, version, correlation_id, "", None)
    client_id = reader.text(flexible=False) or ""
    if is_flexible(api.request, version):
        skip_tagged(reader)
    return RequestHead(key, version, correlation_id, client_id, api)


def read_request(head: RequestHead, reader: FieldReader) -> Any:
    """The request's message. What follows it in the frame is passed over, as Kafka does: librdkafka
    2.16 sends three bytes too many when it asks for all topics. Raises ``ProtocolError``."""
    assert head.api is not None
    return read_message(head.api.request, head.version, reader)


def encode_response(
    api_key: int, version: int, correlation_id: int, response: Any, elements_max: int | None = None
) -> tuple[list[Buffer], int]:
    """A whole frame in parts, and its size. Record batches are parts of it as they were given.
    Raises ``LongMessageError`` if its arrays have more elements together."""
    writer = FieldWriter(elements_max)
    writer.int32(0)  # the length, once it is known
    writer.int32(correlation_id)
    if api_key != ApiKey.API_VERSIONS and is_flexible(type(response), version):
        writer.uvarint(0)
    write_message(response, version, writer)
    parts, size = writer.parts()
    first = parts[0]
    assert isinstance(first, bytearray)
    first[:4] = (size - 4).to_bytes(4, "big")
    return parts, size


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, request: Any
) -> bytes:
    """A whole frame, as clients send it (for tests, and for brokers among themselves)."""
    writer = FieldWriter()
    writer.int32(0)
    writer.int16(api_key)
    writer.int16(version)
    writer.int32(correlation_id)
    writer.text(client_id, flexible=False)
    if is_flexible(type(request), version):
        writer.uvarint(0)
    write_message(request, version, writer)
    parts, size = writer.parts()
    frame = bytearray().join(parts)
    frame[:4] = (size - 4).to_bytes(4, "big")
    return bytes(frame)


def read_response(api_key: int, version: int, reader: FieldReader) -> tuple[int, Any]:
    """The correlation id and the message of a response, of an API that is served."""
    api = APIS.get(api_key)
    if api is None:
        raise ProtocolError(f"no response is known of API {api_key}")
    correlation_id = reader.int32()
    if api_key != ApiKey.API_VERSIONS and is_flexible(api.response, version):
        skip_tagged(reader)
    response = read_message(api.response, version, reader)
    reader.done(type(response).__name__)
    return correlation_id, response


def versions_response(error_code: int) -> cluster_messages.ApiVersionsResponse:
    """What is advertised."""
    listed = [cluster_messages.ApiVersion(api.key, api.least, api.most) for api in _LISTED]
    return cluster_messages.ApiVersionsResponse(error_code, listed)
