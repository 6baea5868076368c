"""Decides which entry logs are left alone by compaction, and until when.

    what was met                     the log is
    bytes that are wrong             damaged: left as it is for this life of the bookie
    a read that fails                set aside: it may pass. Tried again after ``TRY_AGAIN_S``, and
                                     after each further failure in twice the time, at most
                                     ``TRY_AGAIN_S_MAX``
    a read that fails no more        like any other

A device that fails for two seconds must not cost the space of a log until the next restart, and a
sector that is gone for good must not have its log copied in vain again and again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from magnetar.model.errors import BookieIOError

TRY_AGAIN_S = 1.0
TRY_AGAIN_S_MAX = 1800.0


class DamagedLogError(BookieIOError):
    """Bytes that are wrong. ``log_ids``: what must be left as it is."""

    def __init__(self, log_ids: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.log_ids = log_ids


class UnreadableLogError(BookieIOError):
    """A read that failed; nothing is known of the bytes. ``log_ids``: what waits for them."""

    def __init__(self, log_ids: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.log_ids = log_ids


def damage(path: object, log_id: int, offset: int) -> DamagedLogError:
    return DamagedLogError(
        (log_id,),
        f"{path} is damaged at offset {offset}; it is not compacted: read what was there from "
        "another bookie, and have this one's ledgers copied from the others (magnetar bookie "
        "decommission)",
    )


def unreadable(path: object, log_ids: tuple[int, ...], error: OSError) -> UnreadableLogError:
    return UnreadableLogError(
        log_ids, f"{path} fails: {error}; it is tried again later; look at the disk"
    )


class LogTroubles:
    """Of one ledger directory. Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._damaged: set[int] = set()
        self._waits: dict[int, tuple[float, float]] = {}
        """Log id -> (when it may be tried again, how long it has waited for that)."""

    def damaged(self, log_ids: Iterable[int]) -> None:
        self._damaged.update(log_ids)

    def unreadable(self, log_ids: Iterable[int], now_s: float) -> None:
        for log_id in log_ids:
            _, waited_s = self._waits.get(log_id, (0.0, TRY_AGAIN_S / 2))
            wait_s = min(2 * waited_s, TRY_AGAIN_S_MAX)
            self._waits[log_id] = (now_s + wait_s, wait_s)

    def readable(self, log_ids: Iterable[int]) -> None:
        for log_id in log_ids:
            self._waits.pop(log_id, None)

    def waits(self, log_id: int, now_s: float) -> bool:
        """Whether it is too early to try the log again."""
        return log_id in self._waits and now_s < self._waits[log_id][0]

    def left_alone(self, log_id: int, now_s: float) -> bool:
        return log_id in self._damaged or self.waits(log_id, now_s)

    def keep(self, log_ids: Container[int]) -> None:
        """Only these are there still."""
        self._damaged = {log_id for log_id in self._damaged if log_id in log_ids}
        self._waits = {log_id: each for log_id, each in self._waits.items() if log_id in log_ids}
