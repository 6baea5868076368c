"""What REST shows. Field names go out in camel case; Pulsar's names where Pulsar has them.

Byte payloads are base64. Rates are not kept here: counters only grow, and whoever wants a rate
divides their difference by the time between two reads (as Prometheus does).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class View(BaseModel):
    """A frozen JSON object."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Reason(View):
    """Every error's body."""

    reason: str


class PartHealthView(View):
    part: str
    ok: bool
    problem: str  # empty when ok
    remedy: str  # what to do about the problem


class HealthView(View):
    """``ok`` when every part is."""

    ok: bool
    parts: list[PartHealthView]


class LookupView(View):
    """Where a topic is served. Pulsar's clients need all four fields, empty or not."""

    broker_url: str
    broker_url_tls: str
    http_url: str
    native_url: str


class PartitionsView(View):
    partitions: int


class ProducerView(View):
    producer_id: int
    producer_name: str
    address: str


class ConsumerView(View):
    consumer_id: int
    consumer_name: str
    address: str
    available_permits: int
    unacked_messages: int


class SubscriptionView(View):
    type: str  # Exclusive, Shared, Failover; "None" while no consumer is connected
    durable: bool
    msg_backlog: int  # entries not acknowledged
    unacked_messages: int
    mark_delete_position: str
    consumers: list[ConsumerView]


class TopicStatsView(View):
    entries_in_counter: int  # a batch is one entry
    bytes_in_counter: int
    msg_out_counter: int
    bytes_out_counter: int
    storage_size: int
    publishers: list[ProducerView]
    subscriptions: dict[str, SubscriptionView]


class TopicLedgerView(View):
    ledger_id: int
    entries: int
    size: int
    state: str


class CursorView(View):
    mark_delete_position: str


class InternalStatsView(View):
    number_of_entries: int
    total_size: int
    last_confirmed_entry: str
    state: str
    ledgers: list[TopicLedgerView]
    cursors: dict[str, CursorView]


class FragmentView(View):
    first_entry_id: int
    bookies: list[str]


class LedgerView(View):
    ledger_id: int
    state: str
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: str
    last_entry_id: int  # -1 while the ledger is open
    length: int  # bytes of payload; 0 while the ledger is open
    created_ms: int
    custom: dict[str, str]
    fragments: list[FragmentView]


class MessageMetadataView(View):
    """The head of a message entry, when the payload carries one."""

    producer_name: str
    sequence_id: int
    publish_time_ms: int
    event_time_ms: int
    key: str
    messages: int
    compression: str
    uncompressed_bytes: int
    properties: dict[str, str]
    body: str  # base64 of what follows the metadata, as it is stored


class EntryView(View):
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    payload: str  # base64
    payload_bytes: int
    message: MessageMetadataView | None


class BookieView(View):
    bookie_id: str
    available: bool  # takes new entries
    local: bool  # runs in this process
