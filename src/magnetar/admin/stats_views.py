"""What REST shows of topics: Pulsar's fields with Pulsar's names and meaning, as far as they mean
something here, and a few of our own (marked).

Counters (``...Counter``) run since the topic was loaded (``loadedAt``): a restart begins them
anew, while ``storageSize``, backlogs and ``internalStats`` are of what is stored. Rates are per
second over the last 10 to 20 s (``topics.rates``); throughputs are bytes per second.
``msgBacklog`` counts messages (``topics.consuming.backlog``), where Pulsar's counts entries.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from magnetar.admin.views import View


class PublisherView(View):
    producer_id: int
    producer_name: str
    access_mode: str
    address: str
    client_version: str = ""  # of one that an older broker tells of
    connected_since: str
    metadata: dict[str, str] = Field(default_factory=dict)  # what its application says of it
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    msg_in_counter: int  # ours
    bytes_in_counter: int  # ours


class DrainingHashView(View):
    """Messages of a hash wait until what is out of it elsewhere is acknowledged."""

    hash: int
    unack_msgs: int  # entries: a batch is one
    blocked_attempts: int


class ConsumerView(View):
    consumer_id: int  # ours
    consumer_name: str
    address: str
    client_version: str = ""  # of one that an older broker tells of
    connected_since: str
    metadata: dict[str, str] = Field(default_factory=dict)  # what its application says of it
    last_consumed_flow_timestamp: int = 0  # when it asked for messages; 0: never
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_out_counter: int
    bytes_out_counter: int
    available_permits: int
    unacked_messages: int
    avg_messages_per_entry: int
    blocked_consumer_on_unacked_msgs: bool
    # Of a Key_Shared subscription; the same ranges twice, as in Pulsar 4 and as before:
    key_hash_range_arrays: list[tuple[int, int]] | None = None
    key_hash_ranges: list[str] | None = None
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0  # entries
    draining_hashes: Sequence[DrainingHashView] = ()  # the first hundred


class SubscriptionView(View):
    type: str  # Exclusive, Shared, Failover, Key_Shared; "None" while no consumer is connected
    is_durable: bool
    is_replicated: bool = False
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    message_ack_rate: float
    msg_out_counter: int
    bytes_out_counter: int
    msg_backlog: int
    msg_backlog_no_delayed: int
    entries_backlog: int  # ours: a batch is one entry
    backlog_size: int
    msg_delayed: int = 0  # entries that wait for their time; clients send them one by one
    delayed_message_index_size_in_bytes: int = 0  # about
    unacked_messages: int
    blocked_subscription_on_unacked_msgs: bool
    last_consumed_flow_timestamp: int = 0  # since it is open; 0: never
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    consumers_after_mark_delete_position: dict[str, str] = Field(default_factory=dict)
    """Nobody waits so, as in Pulsar 4."""
    # Of a Key_Shared subscription:
    key_shared_mode: str | None = None  # AUTO_SPLIT, STICKY
    allow_out_of_order_delivery: bool = False
    msg_in_replay: int = 0  # entries that wait for the consumer of their key
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0  # entries
    active_consumer_name: str | None
    mark_delete_position: str  # ours
    subscription_properties: dict[str, str] = Field(default_factory=dict)
    consumers: list[ConsumerView]
    served_by: str = ""  # ours: the read-only broker that serves it; empty: the topic's owner


class RetentionView(View):
    """Ours: what is kept of acknowledged messages, in words and numbers."""

    kept: str
    retention_ms: int  # -1: no limit in time
    retention_bytes: int  # -1: no limit in size


class TopicTotals(View):
    """What a topic and the sum over a topic's partitions have in common."""

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    msg_in_counter: int
    bytes_in_counter: int
    entries_in_counter: int  # ours: a batch is one entry
    msg_out_counter: int
    bytes_out_counter: int
    average_msg_size: float
    storage_size: int
    stored_entries: int  # ours: what is stored now, whenever it came
    total_messages: int  # ours: all that were ever published, from the log; a restart keeps it
    backlog_size: int
    backlog_quota_limit_size: int = -1  # bytes of each partition; -1: none
    backlog_quota_limit_time: int = -1  # seconds; -1: none
    oldest_backlog_message_age_seconds: int = -1  # -1: all is acknowledged, or it is not known
    oldest_backlog_message_subscription_name: str | None = None
    offloaded_storage_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    publishers: list[PublisherView]
    waiting_publishers: int
    subscriptions: dict[str, SubscriptionView]
    replication: dict[str, str]  # empty: nothing is replicated
    deduplication_status: str = "Disabled"
    topic_creation_time_stamp: int = 0  # milliseconds since 1970, as the next; 0: not known
    last_publish_timestamp: int = 0  # since it was loaded; 0: nothing was published


class TopicStatsView(TopicTotals):
    topic_epoch: int
    owner_broker: str
    loaded_at: str  # ours
    retention: RetentionView
    storage_problem: str = ""  # ours: what keeps messages from being stored, and what to do
    terminated: bool = False  # ours: it takes no more messages, for good
    quota_exceeded: str = ""  # ours: the backlog quota for which producers are refused
    publish_rate_limited_times: int = 0  # since the limit was set


class PartitionedStatsView(TopicTotals):
    metadata: dict[str, int]
    partitions: dict[str, TopicStatsView]


class TopicLedgerView(View):
    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False  # it is in the topic's table only
    in_table: bool = False  # ours: it is in the table, perhaps beside the bookies
    state: str  # ours: open or closed


class CursorView(View):
    mark_delete_position: str
    read_position: str
    messages_consumed_counter: int  # entries of the log up to the mark-delete position
    number_of_entries_since_first_not_acked_message: int
    state: str = "Open"
    properties: dict[str, str]


class HoldView(View):
    """A reader that keeps the log from being trimmed from a ledger on, for a time."""

    holder: str
    ledger_id: int
    until: str


class CompactedLedgerView(View):
    """``ledgerId`` -1: nothing was left. ``horizon`` and ``finished`` are ours: up to where the
    topic is compacted, and when it was."""

    ledger_id: int
    entries: int
    size: int
    horizon: str
    finished: str


class InternalStatsView(View):
    entries_added_counter: int  # since the topic was loaded
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_confirmed_entry: str
    state: str
    compacted_ledger: CompactedLedgerView | None
    """None: it was never compacted."""
    ledgers: list[TopicLedgerView]
    cursors: dict[str, CursorView]
    holds: list[HoldView]
    table: str | None = None  # ours: where the table is that takes closed ledgers
    ledgers_awaiting_table: tuple[int, ...] = ()  # ours: retention would delete them else
