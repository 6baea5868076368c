"""How rows are delivered: the options of a write that decide between its two ways. Pure.

| ``deliveryGuarantee`` | way | needs |
|---|---|---|
| ``exactly-once`` (the default) | staged ledgers, committed by the driver (``staged_sink``) | bookies in reach of the tasks |
| ``at-least-once`` | messages to brokers (``sink``) | brokers alone |

What staged writes need of the metadata store the brokers do for them; with ``metadata.url`` driver
and tasks ask the store itself.

There is no option for the name under which a stream's batches are committed: it is the id in the
stream's checkpoint. Batch numbers begin anew with a new checkpoint, and under a name that stays they
would be taken for batches that are committed already, and dropped. Whoever writes batches in
``foreachBatch`` says name and number himself (``txnAppId``, ``txnVersion``, as Delta Lake spells
them), and has that to look after.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from magnetar.model.errors import ConfigError, StagedWriteError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.option_values import OptionValues
from magnetar.staging.records import check_query

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

DELIVERY_OPTIONS: Final = (
    "deliveryGuarantee", "metadata.url", "txnAppId", "txnVersion", "commitWait",
    "commitTimeoutMs", "backlogTimeoutMs", "batchingType", "batchingMaxBytes", "chunkingEnabled",
    "ensembleSize", "writeQuorum", "ackQuorum",
)  # fmt: skip

DECIDED: Final = "decided"
TAKEN_IN: Final = "taken-in"
BATCHING_BYTES_MAX: Final = 256 << 10
TOPIC_DIGITS: Final = 16
TRANSACTION_PREFIX: Final = "txn-"
"""Before the name of a query that its user named: others are the engine's ids."""


class Transaction(NamedTuple):
    """Batch ``version`` of all that ``app_id`` writes; numbers grow."""

    app_id: str
    version: int


@dataclass(frozen=True)
class DeliveryOptions:
    """``exactly_once``: by staged ledgers, of which the metadata are asked of the brokers if
    ``metadata_url`` is None. ``transaction``: which batch of which query a batch write is, if that
    is said. ``wait_taken_in``: a commit returns only when the topics hold its rows; None: one of a
    batch write waits for that, but does not fail without. ``by_key``: each entry holds the rows of
    one key. ``chunked``: a row that is larger than an entry becomes a message in chunks."""

    exactly_once: bool
    metadata_url: str | None
    transaction: Transaction | None
    wait_taken_in: bool | None
    commit_timeout_ms: int
    backlog_timeout_ms: int
    by_key: bool
    batching_bytes_max: int
    quorums: Quorums | None
    chunked: bool = False


def parse_delivery(options: OptionValues) -> DeliveryOptions:
    """Raises ``ConfigError``."""
    url = options.text("metadata.url")
    guarantee = options.choice("deliveryGuarantee", (EXACTLY_ONCE, AT_LEAST_ONCE))
    if url is not None and not url.startswith("zk://"):
        raise ConfigError(
            f"option 'metadata.url' is {url!r}; it takes the address of the cluster's ZooKeeper, "
            "for example 'zk://127.0.0.1:2181/'. Without it the brokers are asked, which is enough"
        )
    return DeliveryOptions(
        exactly_once=guarantee == EXACTLY_ONCE,
        metadata_url=url,
        transaction=_transaction(options, guarantee),
        wait_taken_in=_wait(options),
        commit_timeout_ms=options.timeout_ms("commitTimeoutMs", 120_000),
        backlog_timeout_ms=options.timeout_ms("backlogTimeoutMs", 600_000),
        by_key=options.choice("batchingType", ("default", "key")) == "key",
        batching_bytes_max=options.size("batchingMaxBytes") or BATCHING_BYTES_MAX,
        quorums=_quorums(options),
        chunked=options.flag("chunkingEnabled", default=False),
    )


def _wait(options: OptionValues) -> bool | None:
    if options.text("commitWait") is None:
        return None
    return options.choice("commitWait", (DECIDED, TAKEN_IN)) == TAKEN_IN


def _transaction(options: OptionValues, guarantee: str) -> Transaction | None:
    app_id, version = options.text("txnAppId"), options.number("txnVersion", None, least=0)
    if app_id is None and version is None:
        return None
    if not app_id or version is None or guarantee != EXACTLY_ONCE:
        raise ConfigError(
            "options 'txnAppId' and 'txnVersion' say which batch of which query a batch write is, "
            "so that it is written once however often it is tried: give both, and no "
            "'deliveryGuarantee' but exactly-once"
        )
    transaction = Transaction(app_id, version)
    try:
        check_query(query_of(transaction, None))
    except StagedWriteError as error:
        raise ConfigError(f"option 'txnAppId': {error}") from error
    return transaction


def query_of(transaction: Transaction, topic: str | None) -> str:
    """The query that the batch is one of: of each topic another, so that a call of
    ``foreachBatch`` may write to several under one name. Topics' names may be too long for it."""
    digest = sha256((topic or "").encode()).hexdigest()[:TOPIC_DIGITS]
    return f"{TRANSACTION_PREFIX}{transaction.app_id}-{digest}"


def _quorums(options: OptionValues) -> Quorums | None:
    size = options.number("ensembleSize", None)
    write = options.number("writeQuorum", size)
    ack = options.number("ackQuorum", None if write is None else write // 2 + 1)
    if size is None and write is None and ack is None:
        return None
    if size is None or write is None or ack is None or not size >= write >= ack:
        raise ConfigError(
            f"options 'ensembleSize' ({size}), 'writeQuorum' ({write}) and 'ackQuorum' ({ack}) "
            "cannot be used together: give the first, and none larger than the one before it"
        )
    return Quorums(size, write, ack)
