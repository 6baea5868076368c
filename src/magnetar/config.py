"""Every setting of the platform: unit in the name, default, one line of meaning. Frozen.

``Config`` is built once at start (``config_loading.load``): defaults, then a TOML file, then
environment variables (``MAGNETAR_<SECTION>_<FIELD>``), then flags; later ones win. Validation
happens then and only then; a ``ConfigError`` names the setting, the value and what would be
accepted. Defaults are the safe ones; a setting that trades durability says so in its name or
text and is warned about at start.

Why: docs/adr/0071-configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaStrategy


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The bookie's write-ahead log."""

    directories: tuple[Path, ...] = field(
        default=(), metadata={"meaning": "one journal per directory; best on devices of their own"}
    )
    sync: bool = field(
        default=True,
        metadata={"meaning": "fdatasync before acknowledging; UNSAFE when off (power loss)"},
    )
    group_wait_us: int = field(
        default=0,
        metadata={
            "meaning": "longest wait to fill a group commit, microseconds",
            "least": 0,
            "most": 1_000_000,
        },
    )
    group_bytes_max: int = field(
        default=4 << 20, metadata={"meaning": "bytes of one group commit", "least": 4096}
    )
    file_bytes: int = field(
        default=64 << 20,
        metadata={"meaning": "size of a (recycled) journal file", "least": 1 << 20},
    )
    recycled_files_max: int = field(
        default=4, metadata={"meaning": "spent journal files kept for reuse", "least": 0}
    )
    pending_bytes_max: int = field(
        default=64 << 20,
        metadata={
            "meaning": "bytes waiting for the journal before adds are refused",
            "least": 1 << 20,
        },
    )


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """The storage server."""

    host: str = field(default="127.0.0.1", metadata={"meaning": "address to listen on"})
    port: int = field(default=3181, metadata={"meaning": "port; 0 takes a free one", "least": 0})
    advertised_host: str = field(
        default="", metadata={"meaning": "name told to clients; empty: the listen address"}
    )
    bookie_id: str = field(default="", metadata={"meaning": "stable name; empty: host:port"})
    rack: str = field(default="", metadata={"meaning": "the rack it stands in, for placement"})
    zone: str = field(default="", metadata={"meaning": "the zone it stands in, for placement"})
    ledger_directories: tuple[Path, ...] = field(
        default=(), metadata={"meaning": "entry logs and location indexes, one set per directory"}
    )
    write_cache_bytes: int = field(
        default=64 << 20, metadata={"meaning": "both halves of the write cache", "least": 1 << 20}
    )
    read_cache_bytes: int = field(
        default=32 << 20, metadata={"meaning": "entries read ahead, kept", "least": 0}
    )
    read_ahead_entries: int = field(
        default=100, metadata={"meaning": "entries of a ledger read ahead on a miss", "least": 1}
    )
    read_ahead_bytes: int = field(
        default=1 << 20, metadata={"meaning": "bytes read ahead on a miss", "least": 4096}
    )
    batch_read_bytes: int = field(
        default=4 << 20,
        metadata={"meaning": "bytes read from disk at once for a batch read", "least": 4096},
    )
    flush_interval_ms: int = field(
        default=10_000, metadata={"meaning": "longest time between flushes", "least": 10}
    )
    ledgers_kept_max: int = field(
        default=16_384, metadata={"meaning": "ledgers kept in memory once written", "least": 100}
    )
    entry_log_bytes_max: int = field(
        default=1 << 30,
        metadata={"meaning": "size at which an entry log is closed", "least": 1 << 20},
    )
    entry_log_cached_bytes_max: int = field(
        default=256 << 20,
        metadata={
            "meaning": "newest bytes of a directory's entry logs left in the kernel's page cache",
            "least": 0,
        },
    )
    entry_bytes_max: int = field(
        default=5 * (1 << 20) + (64 << 10),
        metadata={"meaning": "largest entry or frame", "least": 1024, "most": (1 << 28) - 1},
    )
    collect_interval_ms: int = field(
        default=60_000,
        metadata={"meaning": "time between looks for ledgers that were deleted", "least": 100},
    )
    collect_grace_ms: int = field(
        default=30_000,
        metadata={
            "meaning": "how long a ledger is missing in the metadata before it is deleted",
            "least": 0,
        },
    )
    compaction_minor_percent: int = field(
        default=20,
        metadata={
            "meaning": "live share under which minor compaction takes a log",
            "least": 0,
            "most": 100,
        },
    )
    compaction_minor_interval_ms: int = field(
        default=3_600_000, metadata={"meaning": "time between minor compactions", "least": 100}
    )
    compaction_major_percent: int = field(
        default=50,
        metadata={
            "meaning": "live share under which major compaction takes a log",
            "least": 0,
            "most": 100,
        },
    )
    compaction_major_interval_ms: int = field(
        default=86_400_000, metadata={"meaning": "time between major compactions", "least": 100}
    )
    compaction_bytes_per_s: int = field(
        default=16 << 20,
        metadata={"meaning": "read and written by compaction of a directory", "least": 1 << 16},
    )
    disk_warn_percent: int = field(
        default=90,
        metadata={"meaning": "use of a disk that is warned about", "least": 1, "most": 100},
    )
    disk_full_percent: int = field(
        default=95,
        metadata={
            "meaning": "use of a disk that makes the bookie read-only",
            "least": 1,
            "most": 100,
        },
    )
    disk_low_water_percent: int = field(
        default=93,
        metadata={
            "meaning": "use of a disk under which it takes entries again",
            "least": 1,
            "most": 100,
        },
    )
    disk_check_interval_ms: int = field(
        default=1000, metadata={"meaning": "time between looks at the disks' space", "least": 10}
    )
    disk_reserve_bytes: int = field(
        default=8 << 20,
        metadata={
            "meaning": "kept in each ledger directory, so that a full disk can be tidied up",
            "least": 0,
        },
    )
    journal: JournalConfig = field(default_factory=JournalConfig)


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """The ledger client, and the logs made of ledgers."""

    ensemble_size: int = field(
        default=1, metadata={"meaning": "bookies of a ledger (E)", "least": 1}
    )
    write_quorum: int = field(
        default=1, metadata={"meaning": "copies of an entry (Qw)", "least": 1}
    )
    ack_quorum: int = field(
        default=1, metadata={"meaning": "copies awaited before confirming (Qa)", "least": 1}
    )
    add_timeout_ms: int = field(
        default=10_000, metadata={"meaning": "a bookie's time to answer an add", "least": 10}
    )
    read_timeout_ms: int = field(
        default=5_000, metadata={"meaning": "a bookie's time to answer a read", "least": 10}
    )
    read_hedge_floor_ms: int = field(
        default=5,
        metadata={"meaning": "shortest wait for a replica before another is asked", "least": 0},
    )
    read_hedge_ceiling_ms: int = field(
        default=500,
        metadata={"meaning": "longest wait for a replica before another is asked", "least": 1},
    )
    bookie_unsent_bytes_max: int = field(
        default=32 << 20,
        metadata={
            "meaning": "bytes waiting to be sent to one bookie before it is taken for failed",
            "least": 1 << 20,
        },
    )
    writer_pending_bytes_max: int = field(
        default=64 << 20,
        metadata={
            "meaning": "unconfirmed bytes of a ledger before LedgerWriter.add waits",
            "least": 1024,
        },
    )
    payload_bytes_max: int = field(
        default=5 * (1 << 20) + (63 << 10),
        metadata={
            "meaning": "largest payload of an entry; 1 KiB less than the bookies' entry_bytes_max",
            "least": 1024,
        },
    )
    explicit_lac_interval_ms: int = field(
        default=1000,
        metadata={
            "meaning": "an idle writer tells bookies what is confirmed after this; 0: never",
            "least": 0,
        },
    )
    placement_domain: str = field(
        default="",
        metadata={"meaning": "spread the copies of an entry over: rack, zone; empty: anywhere"},
    )
    placement_domains_least: int = field(
        default=2,
        metadata={"meaning": "racks or zones of an entry's copies, as a minimum", "least": 1},
    )
    placement_enforced: bool = field(
        default=False,
        metadata={"meaning": "refuse ledgers with copies in fewer racks or zones than that"},
    )
    placement_weighted: bool = field(
        default=False, metadata={"meaning": "prefer bookies with more free space"}
    )
    placement_free_bytes_least: int = field(
        default=0,
        metadata={"meaning": "bookies with less free space get no new ledgers", "least": 0},
    )
    topology_file: str = field(
        default="",
        metadata={"meaning": "TOML with rack and zone by bookie; empty: what bookies register"},
    )
    ledger_entries_max: int = field(
        default=1_000_000, metadata={"meaning": "entries before a log rolls its ledger", "least": 1}
    )
    ledger_bytes_max: int = field(
        default=1 << 30, metadata={"meaning": "bytes before a log rolls its ledger", "least": 1024}
    )
    ledger_age_ms_max: int = field(
        default=4 * 3_600_000,
        metadata={"meaning": "age at which a log rolls its ledger", "least": 1},
    )
    tabled_ledger_ms_least: int = field(
        default=600_000,
        metadata={
            "meaning": "how long a closed ledger stays at the bookies though it is in a table: "
            "what producers that come back send again is held against it",
            "least": 0,
        },
    )
    table_lag_ms_max: int = field(
        default=36 * 3_600_000,
        metadata={
            "meaning": "how long a closed ledger may wait for its topic's table before /health "
            "says so; a job that runs once a day has missed a day by then",
            "least": 0,
        },
    )
    tail_cache_bytes: int = field(
        default=64 << 20,
        metadata={
            "meaning": "entries kept in memory for tail readers, all logs together",
            "least": 0,
        },
    )
    cursor_flush_interval_ms: int = field(
        default=100,
        metadata={"meaning": "longest time until an acknowledgement is stored", "least": 1},
    )
    retention_ms: int = field(
        default=-1,
        metadata={
            "meaning": "how long what is acknowledged is kept, by ledgers; -1: no limit in time",
            "least": -1,
        },
    )
    retention_bytes: int = field(
        default=-1,
        metadata={
            "meaning": "bytes of a topic above which what is acknowledged goes; -1: no limit",
            "least": -1,
        },
    )
    roll_queue_bytes_max: int = field(
        default=64 << 20,
        metadata={
            "meaning": "bytes appended to a log that wait while it changes ledgers",
            "least": 1024,
        },
    )
    read_ahead_bytes_max: int = field(
        default=32 << 20,
        metadata={"meaning": "entries read ahead for catch-up, all logs together", "least": 0},
    )


KEPT_FOR_EVER = (
    "ledger.retention_ms and ledger.retention_bytes are -1: acknowledged messages are kept for "
    "ever, so the disks fill one day; set either, for example ledger.retention_ms=7d"
)


def keeps_everything(ledger: LedgerConfig) -> bool:
    """Nothing but deleting topics ever frees space."""
    return ledger.retention_ms == -1 and ledger.retention_bytes == -1


def check_ledger(ledger: LedgerConfig) -> None:
    """What a program that makes its own ``LedgerConfig`` may have got wrong. Raises
    ``ConfigError``."""
    for item in fields(ledger):
        least, value = item.metadata.get("least"), getattr(ledger, item.name)
        if least is not None and not (isinstance(value, int) and value >= least):
            raise ConfigError(
                f"ledger.{item.name} = {value!r} cannot be used; accepted: a whole number of at "
                f"least {least}"
            )
    if not ledger.ensemble_size >= ledger.write_quorum >= ledger.ack_quorum:
        raise ConfigError(
            f"ledger.ensemble_size = {ledger.ensemble_size}, ledger.write_quorum = "
            f"{ledger.write_quorum}, ledger.ack_quorum = {ledger.ack_quorum} cannot be used "
            "together; accepted: ensemble_size >= write_quorum >= ack_quorum"
        )
    if ledger.read_hedge_floor_ms > ledger.read_hedge_ceiling_ms:
        raise ConfigError(
            f"ledger.read_hedge_floor_ms = {ledger.read_hedge_floor_ms} and "
            f"ledger.read_hedge_ceiling_ms = {ledger.read_hedge_ceiling_ms} cannot be used "
            "together; accepted: a floor that is at most the ceiling"
        )
    if ledger.placement_domain not in ("", "rack", "zone"):
        raise ConfigError(
            f"ledger.placement_domain = {ledger.placement_domain!r} cannot be used; accepted: "
            "rack, zone, or empty"
        )
    if ledger.placement_enforced and not ledger.placement_domain:
        raise ConfigError(
            "ledger.placement_enforced is on and ledger.placement_domain is empty, so there is "
            "nothing to enforce; accepted: a placement_domain of rack or zone with it"
        )


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Pulsar's protocol."""

    host: str = field(default="127.0.0.1", metadata={"meaning": "address to listen on"})
    port: int = field(default=6650, metadata={"meaning": "binary protocol; 0 takes a free one"})
    tls_port: int = field(
        default=-1,
        metadata={"meaning": "as port, with TLS: 6651 is usual; -1: none", "least": -1},
    )
    advertised_host: str = field(
        default="", metadata={"meaning": "name told to clients; empty: the listen address"}
    )
    zone: str = field(
        default="",
        metadata={"meaning": "the zone it stands in: copies of entries in it are read first"},
    )
    message_bytes_max: int = field(
        default=5 << 20, metadata={"meaning": "largest message, as Pulsar's", "least": 1024}
    )
    connections_max: int = field(
        default=10_000, metadata={"meaning": "client connections", "least": 1}
    )
    attached_per_connection_max: int = field(
        default=50_000,
        metadata={"meaning": "producers and consumers of one connection", "least": 1},
    )
    attached_max: int = field(
        default=500_000,
        metadata={
            "meaning": "producers and consumers of all connections, some kilobytes each",
            "least": 1,
        },
    )
    attached_bytes_max: int = field(
        default=256 << 20,
        metadata={
            "meaning": "names and properties that clients give their producers and consumers, over "
            "all connections",
            "least": 1024,
        },
    )
    producers_per_topic_max: int = field(
        default=10_000, metadata={"meaning": "producers of one topic", "least": 1}
    )
    consumers_per_subscription_max: int = field(
        default=10_000, metadata={"meaning": "consumers of one subscription", "least": 1}
    )
    consumers_per_topic_max: int = field(
        default=0,
        metadata={
            "meaning": "consumers of one topic, where no policy says; 0: any number",
            "least": 0,
        },
    )
    subscriptions_per_topic_max: int = field(
        default=0,
        metadata={
            "meaning": "subscriptions of one topic, where no policy says; 0: any number, up to "
            "10000",
            "least": 0,
        },
    )
    topics_per_namespace_max: int = field(
        default=0,
        metadata={
            "meaning": "topics of a namespace, each partition by itself, where no policy says; 0: "
            "any number",
            "least": 0,
        },
    )
    open_topics_max: int = field(
        default=100_000,
        metadata={
            "meaning": "topics open at a time; the least recently used idle one makes place",
            "least": 1,
        },
    )
    idle_topic_unload_ms: int = field(
        default=600_000,
        metadata={
            "meaning": "time without producers and consumers after which a topic is unloaded "
            "(its next use loads it); 0: never",
            "least": 0,
        },
    )
    pending_publish_bytes_per_connection: int = field(
        default=16 << 20,
        metadata={
            "meaning": "unconfirmed bytes after which a connection is not read",
            "least": 1024,
        },
    )
    unacknowledged_per_consumer_max: int = field(
        default=50_000,
        metadata={
            "meaning": "messages out at a consumer before it waits, where no policy says",
            "least": 1,
        },
    )
    unacknowledged_per_subscription_max: int = field(
        default=0,
        metadata={
            "meaning": "messages out at all consumers of a shared subscription before they wait, "
            "where no policy says; 0: any number",
            "least": 0,
        },
    )
    topic_publish_messages_per_s_max: int = field(
        default=0,
        metadata={
            "meaning": "messages a second that a topic takes of its producers, who wait for the "
            "rest, where no policy says; 0: any number",
            "least": 0,
        },
    )
    topic_publish_bytes_per_s_max: int = field(
        default=0, metadata={"meaning": "the same in bytes; 0: any number", "least": 0}
    )
    topic_dispatch_messages_per_s_max: int = field(
        default=0,
        metadata={
            "meaning": "messages a second that a topic gives its subscriptions together, where no "
            "policy says; 0: any number",
            "least": 0,
        },
    )
    topic_dispatch_bytes_per_s_max: int = field(
        default=0, metadata={"meaning": "the same in bytes; 0: any number", "least": 0}
    )
    subscription_dispatch_messages_per_s_max: int = field(
        default=0,
        metadata={
            "meaning": "messages a second that each subscription gets, where no policy says; 0: "
            "any number",
            "least": 0,
        },
    )
    subscription_dispatch_bytes_per_s_max: int = field(
        default=0, metadata={"meaning": "the same in bytes; 0: any number", "least": 0}
    )
    consumer_subscribes_max: int = field(
        default=0,
        metadata={
            "meaning": "how often a consumer may subscribe to a topic in 30 s, where no policy "
            "says; 0: any number",
            "least": 0,
        },
    )
    message_ttl_ms: int = field(
        default=0,
        metadata={
            "meaning": "age at which what a subscription has not acknowledged expires for it, "
            "where no policy says; 0: never",
            "least": 0,
        },
    )
    deduplication: bool = field(
        default=False,
        metadata={
            "meaning": "what a producer sends again is not stored again, where no policy says"
        },
    )
    deduplication_producers_max: int = field(
        default=10_000,
        metadata={
            "meaning": "producers of a topic that deduplication remembers, some 300 bytes each; "
            "those that stored nothing for the longest time give way",
            "least": 1,
        },
    )
    deduplication_inactive_ms: int = field(
        default=21_600_000,
        metadata={
            "meaning": "time for which it remembers a producer that is not connected",
            "least": 1000,
        },
    )
    deduplication_snapshot_entries: int = field(
        default=1_000,
        metadata={
            "meaning": "entries after which it stores what it remembers; as many, or one per "
            "producer, are read when the topic is opened",
            "least": 1,
        },
    )
    subscription_expiry_ms: int = field(
        default=0,
        metadata={
            "meaning": "time without consumers after which a subscription is deleted, where no "
            "policy says; 0: never",
            "least": 0,
        },
    )
    expiry_check_interval_ms: int = field(
        default=60_000,
        metadata={
            "meaning": "how often messages and subscriptions that expire are looked for",
            "least": 10,
        },
    )
    backlog_quota_bytes: int = field(
        default=0,
        metadata={
            "meaning": "bytes by which the slowest subscription of a topic may be behind, where no "
            "policy says; 0: any",
            "least": 0,
        },
    )
    backlog_quota_age_ms: int = field(
        default=0,
        metadata={
            "meaning": "age of the oldest message that a subscription has not acknowledged, where "
            "no policy says (whole seconds); 0: any",
            "least": 0,
        },
    )
    backlog_quota_policy: str = field(
        default="producer_request_hold",
        metadata={
            "meaning": "what is done past those two: producers wait, producers fail, or the "
            "slowest subscriptions go on without what is too much",
            "choices": (
                "producer_request_hold",
                "producer_exception",
                "consumer_backlog_eviction",
            ),
        },
    )
    backlog_quota_check_interval_ms: int = field(
        default=60_000,
        metadata={
            "meaning": "how often topics that are past their backlog quotas are looked for",
            "least": 10,
        },
    )
    balance_interval_ms: int = field(
        default=10_000,
        metadata={
            "meaning": "time between looks at bundles: what has grown is split, what is too much "
            "beside other brokers is given away; 0: never",
            "least": 0,
        },
    )
    bundle_topics_max: int = field(
        default=1000, metadata={"meaning": "open topics of a bundle before it is split", "least": 2}
    )
    bundle_messages_per_s_max: int = field(
        default=30_000,
        metadata={"meaning": "messages a second, in and out, before a bundle is split", "least": 1},
    )
    key_shared_waiting_per_consumer_max: int = field(
        default=2000,
        metadata={
            "meaning": "entries of a Key_Shared subscription, per consumer of it, that wait for "
            "the consumer of their key while what comes behind them is read",
            "least": 1,
        },
    )
    key_shared_waiting_per_subscription_max: int = field(
        default=20_000,
        metadata={
            "meaning": "the same per subscription, however many consumers it has",
            "least": 1,
        },
    )
    key_shared_waiting_max: int = field(
        default=500_000,
        metadata={
            "meaning": "the same in all subscriptions of a broker (about 300 bytes each)",
            "least": 1,
        },
    )
    delayed_entries_per_subscription_max: int = field(
        default=2_000_000,
        metadata={
            "meaning": "entries of a shared subscription that wait for their time (24 bytes each) "
            "before what comes behind them waits too",
            "least": 1,
        },
    )
    delayed_delivery_tick_ms: int = field(
        default=1000,
        metadata={
            "meaning": "how late a delayed message may be, where no policy says; it is never early",
            "least": 1,
        },
    )
    bound_ack_interval_ms: int = field(
        default=100,
        metadata={
            "meaning": "longest time until a read-only broker tells a topic's owner of an "
            "acknowledgement",
            "least": 1,
        },
    )
    binding_idle_ms: int = field(
        default=60_000,
        metadata={
            "meaning": "time without consumers after which a read-only broker gives a subscription "
            "back to the topic's owner",
            "least": 10,
        },
    )
    binding_silence_ms: int = field(
        default=120_000,
        metadata={
            "meaning": "time after which an owner takes a subscription back from a read-only "
            "broker that says nothing of it; that one gives it up after half of it without an "
            "owner",
            "least": 100,
        },
    )
    handshake_timeout_ms: int = field(
        default=10_000, metadata={"meaning": "a new connection's time to say CONNECT", "least": 10}
    )
    frame_timeout_ms: int = field(
        default=60_000, metadata={"meaning": "time to finish a frame once begun", "least": 10}
    )
    keep_alive_ms: int = field(
        default=30_000,
        metadata={"meaning": "silence before a PING; twice that closes", "least": 100},
    )
    engine: str = field(
        default="ledger",
        metadata={
            "meaning": "what keeps new topics, unless a policy says it: chains of ledgers on "
            "bookies, or partitions in Kafka's files on brokers",
            "choices": ("ledger", "partition"),
        },
    )
    auto_create_topics: bool = field(
        default=True, metadata={"meaning": "create a topic on first use"}
    )
    auto_create_partitions: int = field(
        default=0,
        metadata={
            "meaning": "partitions of such a topic; 0: not partitioned",
            "least": 0,
            "most": 10_000,
        },
    )
    schema_compatibility_strategy: str = field(
        default="FULL",
        metadata={
            "meaning": "how a topic's schemas may follow each other, where its namespace does not "
            "say",
            "choices": tuple(map(str, SchemaStrategy)),
        },
    )
    schema_validation_enforced: bool = field(
        default=False,
        metadata={"meaning": "refuse producers without a schema on topics that have one"},
    )
    schema_auto_update: bool = field(
        default=True,
        metadata={
            "meaning": "producers and consumers may bring new schemas, where the namespace does "
            "not say"
        },
    )


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """Kafka's protocol, over the same topics."""

    host: str = field(default="127.0.0.1", metadata={"meaning": "address to listen on"})
    port: int = field(
        default=-1,
        metadata={
            "meaning": "9092 is usual, and standalone's beside 6650; 0 takes a free one, -1: none",
            "least": -1,
        },
    )
    advertised_host: str = field(
        default="", metadata={"meaning": "name told to clients; empty: the listen address"}
    )
    fetch_bytes_max: int = field(
        default=16 << 20,
        metadata={"meaning": "bytes of one answer to FETCH, whatever is asked for", "least": 1024},
    )
    request_bytes_max: int = field(
        default=100 << 20,
        metadata={
            "meaning": "bytes of one request with all its batches; more ends the connection",
            "least": 1 << 20,
            "most": 256 << 20,
        },
    )
    idle_connection_ms: int = field(
        default=600_000,
        metadata={"meaning": "silence after which a connection is closed", "least": 100},
    )
    tls_port: int = field(
        default=-1,
        metadata={"meaning": "as port, with TLS: 9093 is usual; -1: none", "least": -1},
    )
    session_lifetime_ms: int = field(
        default=0,
        metadata={
            "meaning": "how long a client is who it has shown to be, before it must show it again; "
            "0: as long as its token, or its connection",
            "least": 0,
        },
    )
    offset_logs: int = field(
        default=8,
        metadata={
            "meaning": "logs that keep the offsets of groups; never change it once there are some",
            "least": 1,
            "most": 1000,
        },
    )
    offsets_retention_ms: int = field(
        default=7 * 86_400_000,
        metadata={
            "meaning": "how long offsets of a group without members are kept; 0: for ever",
            "least": 0,
        },
    )
    consumer_session_timeout_ms: int = field(
        default=45_000,
        metadata={
            "meaning": "silence after which a member of a group whose coordinator assigns is out",
            "least": 1_000,
            "most": 1_800_000,
        },
    )
    consumer_heartbeat_interval_ms: int = field(
        default=5_000,
        metadata={
            "meaning": "how often such a member is told to send a heartbeat",
            "least": 100,
            "most": 600_000,
        },
    )
    consumer_members_max: int = field(
        default=10_000,
        metadata={"meaning": "members of one such group", "least": 1},
    )
    share_members_max: int = field(
        default=200,
        metadata={"meaning": "members of one share group", "least": 1, "most": 10_000},
    )
    share_record_lock_ms: int = field(
        default=30_000,
        metadata={
            "meaning": "how long a member of a share group has for a record before others get it",
            "least": 1_000,
            "most": 3_600_000,
        },
    )
    share_partition_locks_max: int = field(
        default=2_000,
        metadata={
            "meaning": "records of a partition that may be in flight in a share group",
            "least": 100,
            "most": 10_000,
        },
    )
    share_delivery_count_max: int = field(
        default=5,
        metadata={
            "meaning": "how often a record is delivered to a share group before it is given up",
            "least": 2,
            "most": 100,
        },
    )
    rebalance_delay_ms: int = field(
        default=100,
        metadata={
            "meaning": "how long the first members of a group wait for more",
            "least": 0,
            "most": 600_000,
        },
    )
    transaction_timeout_max_ms: int = field(
        default=900_000,
        metadata={"meaning": "how long a producer may ask for its transactions", "least": 1000},
    )
    transactional_ids_retention_ms: int = field(
        default=7 * 86_400_000,
        metadata={
            "meaning": "how long a transactional id that nobody uses is known; 0: for ever",
            "least": 0,
        },
    )

    @property
    def listens(self) -> bool:
        """There is a port, plain or with TLS."""
        return self.port >= 0 or self.tls_port >= 0


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Logs in Kafka's files, on a broker's own disk."""

    directory: Path = field(
        default=Path(),
        metadata={
            "meaning": "where partitions lie; not set: in the data directory of standalone, and "
            "a broker that is started alone keeps none"
        },
    )
    sync: str = field(
        default="each-batch",
        metadata={
            "meaning": "when what is appended is synced; UNSAFE unless it is each-batch: what is "
            "acknowledged may be lost with the power",
            "choices": ("each-batch", "interval", "operating-system"),
        },
    )
    sync_interval_ms: int = field(
        default=1000, metadata={"meaning": "time between syncs, with interval", "least": 1}
    )
    segment_bytes_max: int = field(
        default=1 << 30,
        metadata={"meaning": "size of a segment", "least": 1 << 14, "most": (1 << 31) - 1},
    )
    segment_age_ms_max: int = field(
        default=7 * 86_400_000, metadata={"meaning": "age of a segment", "least": 1000}
    )
    tail_cache_bytes: int = field(
        default=64 << 20,
        metadata={"meaning": "newest entries in memory, over all partitions", "least": 0},
    )
    broker_id: int = field(
        default=-1,
        metadata={
            "meaning": "number of this broker among replicas, for a new directory; -1: drawn. Say "
            "the former one after a disk was replaced",
            "least": -1,
            "most": (1 << 31) - 1,
        },
    )
    replication_factor: int = field(
        default=1,
        metadata={
            "meaning": "brokers that have a new partition, unless a policy says it",
            "least": 1,
            "most": 100,
        },
    )
    min_insync_replicas: int = field(
        default=1,
        metadata={
            "meaning": "replicas in sync without which nothing is taken, unless a policy says it",
            "least": 1,
            "most": 100,
        },
    )
    replica_lag_ms_max: int = field(
        default=30_000,
        metadata={
            "meaning": "a follower that was not at the log's end for so long is out of sync",
            "least": 100,
        },
    )
    deletion_grace_ms: int = field(
        default=60_000,
        metadata={
            "meaning": "how long files are kept of a partition that has no state in the metadata "
            "store any more",
            "least": 0,
        },
    )
    compaction_interval_ms: int = field(
        default=15_000,
        metadata={
            "meaning": "how often it is looked which partitions are to be compacted (topics with "
            "cleanup.policy=compact)",
            "least": 100,
        },
    )
    compaction_key_bytes_max: int = field(
        default=64 << 20,
        metadata={
            "meaning": "memory for the keys of the log that is compacted; one with more new keys "
            "is compacted in several passes",
            "least": 1 << 20,
        },
    )
    disk_warn_percent: int = field(
        default=90,
        metadata={"meaning": "use of the disk that is warned about", "least": 1, "most": 100},
    )
    disk_full_percent: int = field(
        default=95,
        metadata={
            "meaning": "use of the disk from which on partitions take nothing",
            "least": 1,
            "most": 100,
        },
    )
    disk_low_water_percent: int = field(
        default=93,
        metadata={
            "meaning": "use of the disk under which they take entries again",
            "least": 1,
            "most": 100,
        },
    )
    disk_free_bytes_least: int = field(
        default=256 << 20,
        metadata={
            "meaning": "kept free on the disk, an eighth of it at most: partitions take nothing "
            "when less is free",
            "least": 0,
        },
    )
    disk_check_interval_ms: int = field(
        default=1000, metadata={"meaning": "time between looks at the disk's space", "least": 10}
    )
    unclean_leader_election: bool = field(
        default=False,
        metadata={
            "meaning": "UNSAFE: a partition without a replica in sync is led by any, and loses "
            "what that lacks"
        },
    )
    preferred_leader_interval_ms: int = field(
        default=300_000,
        metadata={
            "meaning": "how often partitions are given back to their first replica; 0: never",
            "least": 0,
        },
    )


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """REST, metrics, lookup over HTTP."""

    host: str = field(default="127.0.0.1", metadata={"meaning": "address to listen on"})
    port: int = field(
        default=8080,
        metadata={
            "meaning": "port; 0 takes a free one; -1: none, which bookies and autorecovery have "
            "unless they are given one",
            "least": -1,
        },
    )
    tls_port: int = field(
        default=-1,
        metadata={"meaning": "as port, with TLS: 8443 is usual; -1: none", "least": -1},
    )
    health_of: str = field(
        default="",
        metadata={
            "meaning": "URL of another process whose health is told with a broker's own: "
            "`standalone --brokers` gives its brokers that of the one with the bookies; empty: none"
        },
    )


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who may do what. Secrets are named by their files, and never settings themselves."""

    authentication: bool = field(
        default=False,
        metadata={
            "meaning": "clients must show who they are, and may do what their role is permitted; "
            "off: whoever reaches a port may do everything"
        },
    )
    token_secret_key_file: str = field(
        default="", metadata={"meaning": "a secret that tokens are signed with (HS256)"}
    )
    token_public_key_file: str = field(
        default="",
        metadata={"meaning": "a public key that tokens are held against (RS256, ES256)"},
    )
    token_role_claim: str = field(
        default="sub", metadata={"meaning": "the claim of a token that is the role"}
    )
    token_audience: str = field(
        default="", metadata={"meaning": "what a token's `aud` must name; empty: anything"}
    )
    users_file: str = field(
        default="",
        metadata={"meaning": "users with passwords, as `magnetar users` writes them"},
    )
    stored_users: bool = field(
        default=False,
        metadata={
            "meaning": "users whom Kafka's admins make log in by SCRAM; their keys are in the "
            "metadata store, so whoever writes there can be any of them, but no super-user"
        },
    )
    super_users: str = field(
        default="",
        metadata={"meaning": "roles that may do everything, separated by commas"},
    )
    anonymous_role: str = field(
        default="",
        metadata={
            "meaning": "the role of who shows nothing, for what is permitted to it; empty: refused"
        },
    )
    own_token_file: str = field(
        default="",
        metadata={
            "meaning": "a token that this process shows to others of the cluster; of a super-user"
        },
    )
    open_metrics: bool = field(
        default=False, metadata={"meaning": "/metrics is for everybody, also without a token"}
    )
    open_health: bool = field(
        default=False, metadata={"meaning": "/health is for everybody, also without a token"}
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates of this process; ``broker.tls_port``, ``http.tls_port`` say where they are
    shown. Files are PEM, and read again when they change."""

    host: str = field(
        default="",
        metadata={"meaning": "address that TLS listeners listen on; empty: that of the plain one"},
    )
    certificate_file: str = field(
        default="",
        metadata={"meaning": "this server's certificate, with those up to its authority"},
    )
    key_file: str = field(default="", metadata={"meaning": "its key, without a password"})
    trusted_file: str = field(
        default="",
        metadata={
            "meaning": "authorities that sign clients' certificates, and those of other brokers"
        },
    )
    client_certificates: str = field(
        default="none",
        metadata={
            "meaning": "whether clients show certificates; the common name is the role: none, "
            "optional or required",
            "choices": ("none", "optional", "required"),
        },
    )
    between_brokers: bool = field(
        default=False, metadata={"meaning": "brokers ask one another by TLS"}
    )
    handshake_timeout_ms: int = field(
        default=10_000, metadata={"meaning": "time for a TLS handshake", "least": 100}
    )
    handshakes_max: int = field(
        default=256,
        metadata={"meaning": "handshakes under way at a listener; more are refused", "least": 1},
    )


@dataclass(frozen=True, slots=True)
class ConnectionsConfig:
    """What all connections to this process share, whichever protocol they speak."""

    partial_frame_bytes_max: int = field(
        default=128 << 20,
        metadata={
            "meaning": "bytes of unfinished large frames before those connections wait",
            "least": 1 << 20,
        },
    )
    unsent_bytes_max: int = field(
        default=256 << 20,
        metadata={
            "meaning": "bytes kept for clients that do not read before each gets little at a time",
            "least": 1 << 20,
        },
    )
    descriptors_reserved: int = field(
        default=1024,
        metadata={
            "meaning": "file descriptors kept for storage, metadata and REST; the rest is for "
            "connections",
            "least": 64,
        },
    )


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    url: str = field(
        default="",
        metadata={"meaning": "zk://HOST:PORT[,HOST:PORT]/ROOT or sqlite:PATH; empty: the data dir"},
    )
    session_timeout_ms: int = field(
        default=10_000, metadata={"meaning": "ZooKeeper session", "least": 100}
    )


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    huge_pages: bool = field(
        default=True,
        metadata={
            "meaning": "memory that is kept is put on pages of 2 MiB, where the kernel can (Linux "
            "6.1) and /sys/kernel/mm/transparent_hugepage/enabled is not never: less CPU"
        },
    )


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    level: str = field(
        default="info",
        metadata={
            "meaning": "debug, info, warning or error",
            "choices": ("debug", "info", "warning", "error"),
        },
    )
    json: bool = field(default=False, metadata={"meaning": "one JSON object a line"})


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """Auto-recovery: finding ledgers that lack copies, and giving them back."""

    in_bookies: bool = field(
        default=True,
        metadata={"meaning": "bookies run auto-recovery beside serving; not in a standalone"},
    )
    lost_bookie_delay_ms: int = field(
        default=120_000,
        metadata={
            "meaning": "how long a bookie is away before it counts as lost; what an operator has "
            "said to the cluster (magnetar recovery delay) wins; whole seconds",
            "least": 0,
        },
    )
    silent_bookie_delay_ms: int = field(
        default=300_000,
        metadata={
            "meaning": "how long a registered bookie lets requests go unanswered before others get "
            "its places in ledgers; 0: never",
            "least": 0,
        },
    )
    open_ledger_grace_ms: int = field(
        default=30_000,
        metadata={
            "meaning": "how long a ledger's writer has to replace a lost bookie by itself, before "
            "the ledger is taken from it and closed",
            "least": 0,
        },
    )
    copy_bytes_per_s: int = field(
        default=64 << 20,
        metadata={"meaning": "copied by one process; 0: as fast as it can", "least": 0},
    )
    look_interval_ms: int = field(
        default=5_000,
        metadata={"meaning": "time between looks for ledgers that lack copies", "least": 10},
    )
    audit_interval_ms: int = field(
        default=3_600_000,
        metadata={
            "meaning": "time between looks at all ledgers for bookies that are gone, besides when "
            "bookies go",
            "least": 100,
        },
    )
    check_interval_ms: int = field(
        default=86_400_000,
        metadata={
            "meaning": "time between checks of all ledgers, for which bookies are asked what they "
            "hold; 0: never",
            "least": 0,
        },
    )
    give_up_interval_ms: int = field(
        default=3_600_000,
        metadata={
            "meaning": "time between looks of a bookie for copies that it holds and no ledger's "
            "metadata names, since it came back too late; 0: never",
            "least": 0,
        },
    )
    ledgers_per_s: int = field(
        default=200,
        metadata={"meaning": "how fast auditor and bookies go through ledgers", "least": 1},
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a process."""

    data_dir: Path = field(
        default=Path("data"), metadata={"meaning": "where everything of this process lies"}
    )
    cluster: str = field(default="standalone", metadata={"meaning": "name of the cluster"})
    bookie: BookieConfig = field(default_factory=BookieConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    connections: ConnectionsConfig = field(default_factory=ConnectionsConfig)
    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
