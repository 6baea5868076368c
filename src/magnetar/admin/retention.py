"""What retention keeps, in words."""

from __future__ import annotations

from typing import Final

from magnetar.admin.stats_views import RetentionView
from magnetar.log.policy import Retention

NO_LIMIT: Final = -1
UNITS_MS: Final = (
    (24 * 3_600_000, "days"),
    (3_600_000, "hours"),
    (60_000, "minutes"),
    (1000, "s"),
    (1, "ms"),
)
UNITS_BYTES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def retention_view(retention: Retention) -> RetentionView:
    return RetentionView(
        kept=kept(retention.kept_ms, retention.kept_bytes),
        retention_ms=retention.kept_ms,
        retention_bytes=retention.kept_bytes,
    )


def kept(retention_ms: int, retention_bytes: int) -> str:
    """What is kept of messages that every subscription has acknowledged. Others are always kept,
    and deletion is by whole closed ledgers, so a little more is kept than the limits say."""
    if retention_ms == NO_LIMIT and retention_bytes == NO_LIMIT:
        return "everything, for ever"
    limits = []
    if retention_ms != NO_LIMIT:
        limits.append(f"for {_amount(retention_ms, UNITS_MS)}")
    if retention_bytes != NO_LIMIT:
        limits.append(f"up to {_amount(retention_bytes, UNITS_BYTES)} of a topic")
    if retention_ms == 0 or retention_bytes == 0:
        return "nothing that every subscription has acknowledged"
    return "what is acknowledged " + " and ".join(limits)


def _amount(value: int, units: tuple[tuple[int, str], ...]) -> str:
    """In the largest unit of which it is a whole number."""
    for size, unit in units:
        if value and value % size == 0:
            return f"{value // size} {unit}"
    return f"0 {units[-1][1]}"
