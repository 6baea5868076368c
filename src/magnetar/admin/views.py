"""What REST shows. Field names go out in camel case; Pulsar's names where Pulsar has them.

Byte payloads are base64. Stats of topics are in ``stats_views``.
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


class ClusterView(View):
    service_url: str  # REST
    service_url_tls: str | None = None
    broker_service_url: str
    broker_service_url_tls: str | None = None


class BrokerView(View):
    """A broker, as it reports itself."""

    broker_id: str
    service_url: str
    http_url: str
    version: str
    zone: str
    draining: bool  # gives away what it has, and takes no more
    read_only: bool  # owns nothing: serves subscriptions of others' topics
    bundles: int
    topics: int  # open ones
    msg_rate_in: float
    msg_rate_out: float


class BundlesView(View):
    """How a namespace is cut; Pulsar's words."""

    boundaries: list[str]
    num_bundles: int


class BundleView(View):
    """``owner``: the id of the broker that owns it; empty if none does."""

    bundle: str
    owner: str


class OwnedView(BaseModel):
    """Pulsar's words, with underscores. Bundles are nobody's by policy here."""

    broker_assignment: str
    is_controlled: bool
    is_active: bool


class TenantView(View):
    """Nobody is told apart, so there are no roles."""

    admin_roles: list[str]
    allowed_clusters: list[str]


class FragmentView(View):
    first_entry_id: int
    bookies: list[str]


class LedgerView(View):
    ledger_id: int
    state: str  # UNREADABLE: its metadata are damaged, and nothing else here says anything
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


class WaitingSpaceView(View):
    """What deletions have left on a bookie's disks, and when it looks for more of it."""

    byte_count: int  # in complete entry logs: goes with those files
    deleted_ledgers: int  # held still, until their time of grace is over
    next_look: str


class BookieView(View):
    bookie_id: str
    available: bool  # takes new entries
    local: bool  # runs in this process
    waiting_space: WaitingSpaceView | None = None  # of bookies that run in this process


class MessageIdView(View):
    """``batchIndex`` is -1: an id of a whole entry."""

    ledger_id: int
    entry_id: int
    partition_index: int
    batch_index: int = -1


class SchemaView(View):
    """A version of a topic's schema."""

    version: int
    type: str
    timestamp: int  # when it was registered, milliseconds since 1970
    data: str  # the definition
    properties: dict[str, str]


class SchemaListView(View):
    get_schema_responses: list[SchemaView]


class SchemaVersionView(View):
    version: int


class PostedSchemaView(View):
    version: SchemaVersionView


class LongRunningView(View):
    """``lastError``: why the last one failed."""

    status: str
    last_error: str


class CompatibilityView(View):
    """``reason`` is ours: why not."""

    compatibility: bool
    schema_compatibility_strategy: str
    reason: str
