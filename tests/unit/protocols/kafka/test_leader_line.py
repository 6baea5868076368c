"""A follower's fetch on the wire: Kafka's, with one field more that others pass over."""

from __future__ import annotations

from magnetar.protocols.kafka.lines import FETCH_VERSION
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_head, read_request
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchPartition, FetchTopic
from magnetar.wire.kafka.primitives import FieldReader

LINEAGE = 0x1234_5678_9ABC_DEF0


def _read(request: ClientFetchRequest) -> ClientFetchRequest:
    frame = encode_request(ApiKey.FETCH, FETCH_VERSION, 1, "replica", request)
    reader = FieldReader(memoryview(frame)[4:])
    found = read_request(read_head(reader), reader)
    assert isinstance(found, ClientFetchRequest)
    return found


def test_a_replica_says_of_which_directory_it_speaks() -> None:
    part = FetchPartition(0, current_leader_epoch=7, fetch_offset=42, last_fetched_epoch=6)
    topics = [FetchTopic("t", partitions=[part])]
    request = ClientFetchRequest(replica_id=3, replica_lineage=LINEAGE, topics=topics)
    found = _read(request)
    assert (found.replica_id, found.replica_lineage) == (3, LINEAGE)
    assert found.topics == topics


def test_a_client_is_no_replica() -> None:
    plain = ClientFetchRequest(replica_id=-1)
    assert _read(plain).replica_lineage == 0
    assert len(_frame(plain)) < len(_frame(ClientFetchRequest(replica_id=3, replica_lineage=1)))


def _frame(request: ClientFetchRequest) -> bytes:
    return encode_request(ApiKey.FETCH, FETCH_VERSION, 1, "replica", request)
