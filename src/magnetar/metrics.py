"""Every metric of the platform: name, unit, labels. Nothing is declared anywhere else.

Parts count in plain attributes on the hot path and fold them into these at scrape time, or once
per batch; no metric is touched per message.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LATENCY_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """The metrics of one process, on a registry of its own (no module-level state)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_repair()
        self.journal_commit_seconds = Histogram(
            "magnetar_journal_commit_seconds",
            "Group commits: write and fdatasync",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.journal_bytes_total = Counter(
            "magnetar_journal_bytes_total", "Bytes committed to journals", registry=self.registry
        )
        self.journal_entries_total = Counter(
            "magnetar_journal_entries_total",
            "Records committed to journals",
            registry=self.registry,
        )
        self.bookie_flush_seconds = Histogram(
            "magnetar_bookie_flush_seconds",
            "Flushes of a ledger directory's write cache: entry log, index, mark",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.bookie_flush_failures_total = Counter(
            "magnetar_bookie_flush_failures_total",
            "Flushes that failed and are tried again",
            registry=self.registry,
        )
        self.bookie_failed_reads_total = Counter(
            "magnetar_bookie_failed_reads_total",
            "Reads of stored entries, or of lists of them, that failed",
            registry=self.registry,
        )
        self.bookie_replayed_entries_total = Counter(
            "magnetar_bookie_replayed_entries_total",
            "Entries taken from journals at start",
            registry=self.registry,
        )
        self.bookie_journal_damages_total = Counter(
            "magnetar_bookie_journal_damages_total",
            "Damaged places found in journals at start, torn tails left out",
            registry=self.registry,
        )
        self.bookie_read_only = Gauge(
            "magnetar_bookie_read_only",
            "1 while a bookie takes no new entries (disks, health)",
            registry=self.registry,
        )
        self.bookie_failed_directories = Gauge(
            "magnetar_bookie_failed_directories",
            "Ledger directories whose flushes fail",
            registry=self.registry,
        )
        self._declare_bookie_space()
        self._declare_broker()
        self._declare_budgets()

    def _declare_bookie_space(self) -> None:
        self.bookie_compacted_bytes_total = Counter(
            "magnetar_bookie_compacted_bytes_total",
            "Bytes of live entries copied by compaction",
            registry=self.registry,
        )
        self.bookie_compacted_logs_total = Counter(
            "magnetar_bookie_compacted_logs_total",
            "Entry logs removed by compaction",
            registry=self.registry,
        )
        self.bookie_reclaimable_bytes = Gauge(
            "magnetar_bookie_reclaimable_bytes",
            "Bytes in complete entry logs that are not live and wait to be given back",
            registry=self.registry,
        )
        self.bookie_deleted_ledgers_held = Gauge(
            "magnetar_bookie_deleted_ledgers_held",
            "Deleted ledgers that bookies of this process have not forgotten yet",
            registry=self.registry,
        )

    def _add_repair(self) -> None:
        self.repair_auditor = Gauge(
            "magnetar_repair_auditor",
            "1 while this process is the auditor of the cluster",
            registry=self.registry,
        )
        self.repair_bookies_gone = Gauge(
            "magnetar_repair_bookies_gone",
            "Bookies that are lost or to be emptied, as the auditor last saw",
            registry=self.registry,
        )
        self.repair_given_up_ledgers_total = Counter(
            "magnetar_repair_given_up_ledgers_total",
            "Ledgers of which the bookie beside has deleted its copies, which nobody named",
            registry=self.registry,
        )
        self.repair_defects_total = Counter(
            "magnetar_repair_defects_total",
            "Auto-recoveries beside a bookie that have ended by a defect of this program",
            registry=self.registry,
        )
        self.repair_ledgers_found_total = Counter(
            "magnetar_repair_ledgers_found_total",
            "Ledgers that the auditor found to lack copies",
            registry=self.registry,
        )
        self.repair_ledgers_total = Counter(
            "magnetar_repair_ledgers_total",
            "Ledgers that have all of their copies again, by this process",
            registry=self.registry,
        )
        self.repair_ledgers_left_total = Counter(
            "magnetar_repair_ledgers_left_total",
            "Times that a ledger could not be made whole and was left for later",
            registry=self.registry,
        )
        self.repair_copied_entries_total = Counter(
            "magnetar_repair_copied_entries_total",
            "Entries copied to bookies that lacked them",
            registry=self.registry,
        )
        self.repair_copied_bytes_total = Counter(
            "magnetar_repair_copied_bytes_total",
            "Bytes of those entries",
            registry=self.registry,
        )

    def _declare_budgets(self) -> None:
        """What all connections of a process share, whoever they are from."""

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"magnetar_{name}", meaning, registry=self.registry)

        self.connections = gauge("connections", "Connections that others made to this process")
        self.connections_max = gauge("connections_max", "Connections after which more are refused")
        self.connections_refused = gauge(
            "connections_refused", "Connections closed as they came, since the start"
        )
        self.receive_bytes = gauge(
            "receive_bytes", "Bytes held of large frames that have not arrived whole"
        )
        self.receive_bytes_max = gauge(
            "receive_bytes_max", "Their bound: connections.partial_frame_bytes_max"
        )
        self.receive_waiting_connections = gauge(
            "receive_waiting_connections", "Connections not read because that bound is reached"
        )
        self.unsent_bytes = gauge("unsent_bytes", "Bytes held for peers that are slow to read")
        self.unsent_bytes_max = gauge(
            "unsent_bytes_max", "Their bound: connections.unsent_bytes_max"
        )
        self.slow_connections = gauge("slow_connections", "Connections whose peers are so slow")
        self.descriptors = gauge("descriptors", "File descriptors that are open")
        self.descriptors_max = gauge("descriptors_max", "File descriptors that may be open")
        self.descriptors_reserved = gauge(
            "descriptors_reserved", "Those of them that connections may not take"
        )

    def _declare_broker(self) -> None:
        self.broker_connections = Gauge(
            "magnetar_broker_connections", "Client connections", registry=self.registry
        )
        self.broker_open_topics = Gauge(
            "magnetar_broker_open_topics", "Topics that are open", registry=self.registry
        )
        self.broker_doomed_partitions = Gauge(
            "magnetar_broker_doomed_partitions",
            "Partitions that have files here and no state in the metadata store",
            registry=self.registry,
        )
        self.broker_unloaded_idle_topics_total = Counter(
            "magnetar_broker_unloaded_idle_topics_total",
            "Topics unloaded because nobody used them",
            registry=self.registry,
        )
        self.broker_over_quota_topics = Gauge(
            "magnetar_broker_over_quota_topics",
            "Open topics that refuse producers, since a backlog quota is exceeded",
            registry=self.registry,
        )
        self.broker_evicted_entries_total = Counter(
            "magnetar_broker_evicted_entries_total",
            "Entries that subscriptions did not get, since a backlog quota had them evicted",
            registry=self.registry,
        )
        self.broker_published_entries_total = Counter(
            "magnetar_broker_published_entries_total",
            "Entries confirmed to producers",
            registry=self.registry,
        )
        self.broker_dispatched_entries_total = Counter(
            "magnetar_broker_dispatched_entries_total",
            "Entries sent to consumers",
            registry=self.registry,
        )
        self._declare_tables()
        self._declare_compaction()
        self._declare_kafka()

    def _declare_tables(self) -> None:
        """Of the open topics that have a table (docs/tables.md)."""

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"magnetar_table_{name}", meaning, registry=self.registry)

        self.table_topics = gauge("topics", "Open topics, each partition one, that have a table")
        self.table_failing_topics = gauge(
            "failing_topics", "Those of them whose job said last that it could not fill the table"
        )
        self.table_waiting_ledgers = gauge(
            "waiting_ledgers", "Closed ledgers that are not in their topic's table"
        )
        self.table_waiting_bytes = gauge("waiting_bytes", "Stored bytes of those ledgers")
        self.table_waiting_seconds = gauge(
            "waiting_seconds", "Time since the first of those ledgers was closed; 0: none waits"
        )

    def _declare_compaction(self) -> None:
        """Of this broker's replicas of partitions with ``cleanup.policy=compact``."""

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"magnetar_compaction_{name}", meaning, registry=self.registry)

        def counter(name: str, meaning: str) -> Counter:
            return Counter(f"magnetar_compaction_{name}", meaning, registry=self.registry)

        self.compaction_logs = gauge("logs", "Logs that are compacted")
        self.compaction_failing_logs = gauge("failing_logs", "Those whose last try failed")
        self.compaction_dirty_ratio_max = gauge(
            "dirty_ratio_max", "Of the dirtiest of them: what share was not compacted yet"
        )
        self.compaction_passes_total = counter("passes_total", "Logs compacted")
        self.compaction_failures_total = counter("failures_total", "Tries that failed")
        self.compaction_read_bytes_total = counter("read_bytes_total", "Bytes read for it")
        self.compaction_freed_bytes_total = counter("freed_bytes_total", "Bytes that it has freed")
        self.compaction_seconds_total = counter("seconds_total", "Time that it took, with pauses")

    def _declare_kafka(self) -> None:
        self.kafka_connections = Gauge(
            "magnetar_kafka_connections", "Connections of Kafka's clients", registry=self.registry
        )
        self.kafka_requests_total = Counter(
            "magnetar_kafka_requests_total",
            "Requests of Kafka's clients, by their kind",
            ["api"],
            registry=self.registry,
        )
        self.kafka_refused_requests_total = Counter(
            "magnetar_kafka_refused_requests_total",
            "Requests that ended their connection: not served, or failed",
            registry=self.registry,
        )
        self.kafka_failed_authentications_total = Counter(
            "magnetar_kafka_failed_authentications_total",
            "Kafka's clients that did not show who they are: wrong, expired or not offered",
            registry=self.registry,
        )
        self.kafka_fetched_bytes_total = Counter(
            "magnetar_kafka_fetched_bytes_total",
            "Bytes of record batches sent to Kafka's clients",
            registry=self.registry,
        )
