"""How rows are delivered: the options of a write that decide between its two ways. Pure.

| ``deliveryGuarantee`` | way | needs |
|---|---|---|
| ``exactly-once`` | staged ledgers, committed by the driver (``staged_sink``) | ``metadata.url``, bookies in reach of the tasks |
| ``at-least-once`` | messages to brokers (``sink``) | ``service.url`` alone |

Without the option it is ``exactly-once`` if ``metadata.url`` is given, and else ``at-least-once``.

There is no option for the name under which a stream's batches are committed: it is the id in the
stream's checkpoint. Batch numbers begin anew with a new checkpoint, and under a name that stays they
would be taken for batches that are committed already, and dropped.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.model.errors import ConfigError
from magnetar.model.ledger import Quorums
from magnetar.pipeline.option_values import OptionValues

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

DELIVERY_OPTIONS: Final = (
    "deliveryGuarantee", "metadata.url", "commitWait", "commitTimeoutMs", "backlogTimeoutMs",
    "batchingType", "batchingMaxBytes", "ensembleSize", "writeQuorum", "ackQuorum",
)  # fmt: skip

DECIDED: Final = "decided"
TAKEN_IN: Final = "taken-in"
BATCHING_BYTES_MAX: Final = 256 << 10


@dataclass(frozen=True)
class DeliveryOptions:
    """``metadata_url``: None for at least once. ``wait_taken_in``: a commit returns only when the
    topics hold its rows. ``by_key``: each entry holds the rows of one key."""

    metadata_url: str | None
    wait_taken_in: bool
    commit_timeout_ms: int
    backlog_timeout_ms: int
    by_key: bool
    batching_bytes_max: int
    quorums: Quorums | None


def parse_delivery(options: OptionValues) -> DeliveryOptions:
    """Raises ``ConfigError``."""
    url = options.text("metadata.url")
    guarantee = options.choice(
        "deliveryGuarantee", (EXACTLY_ONCE, AT_LEAST_ONCE) if url else (AT_LEAST_ONCE, EXACTLY_ONCE)
    )
    if guarantee == EXACTLY_ONCE and not (url or "").startswith("zk://"):
        raise ConfigError(
            "option 'deliveryGuarantee' is exactly-once, which needs the option 'metadata.url' of "
            "the cluster, for example 'zk://127.0.0.1:2181/', within reach of driver and tasks; "
            f"it is {url!r}. Through brokers alone rows are delivered at least once"
        )
    return DeliveryOptions(
        metadata_url=url if guarantee == EXACTLY_ONCE else None,
        wait_taken_in=options.choice("commitWait", (DECIDED, TAKEN_IN)) == TAKEN_IN,
        commit_timeout_ms=options.number("commitTimeoutMs", 120_000) or 0,
        backlog_timeout_ms=options.number("backlogTimeoutMs", 600_000) or 0,
        by_key=options.choice("batchingType", ("default", "key")) == "key",
        batching_bytes_max=options.size("batchingMaxBytes") or BATCHING_BYTES_MAX,
        quorums=_quorums(options),
    )


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
