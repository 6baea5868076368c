"""How much may pass at a limited rate. Pure: the time comes with each call (seconds of one clock
that never goes back).

A bucket of tokens, of messages or of bytes, holds at most what comes in one period, and begins
full: what was not used of that may be made up for at once. Who finds anything in it may take more
than there is, since a batch is not cut: the bucket is in debt then, and gives nothing until that is
paid. So over any time no more passes than a period's tokens, those that came, and one batch.

Why: docs/adr/0217-rates-hold-back.md.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

ANY: Final = 1 << 62
"""More than anybody has."""
GRAIN_S: Final = 0.01
"""Who waits, waits for as much as comes in that time, and not for one message after the other."""
PACE_S: Final = 1.0
EACH_MAX: Final = 10_000
"""That are remembered; who did it longest ago gives way."""
_ROUNDING: Final = 1e-6


class RateLimit(NamedTuple):
    """So many messages and bytes in ``period_s``; 0: any number. ``relative``: so many beside those
    that are published meanwhile."""

    messages: int = 0
    byte_count: int = 0
    period_s: int = 1
    relative: bool = False

    @property
    def limits(self) -> bool:
        return self.messages > 0 or self.byte_count > 0


NO_RATE: Final = RateLimit()


class TokenBucket:
    """See the module's text. ``amount`` comes in each ``period_s``."""

    __slots__ = ("_at_s", "_more_per_s", "_per_s", "_period_s", "_tokens")

    def __init__(self, amount: int, period_s: float, now_s: float) -> None:
        assert amount > 0, "nothing would ever pass"
        assert period_s > 0, "it would all pass at once"
        self._per_s = amount / period_s
        self._more_per_s = 0.0
        self._period_s = period_s
        self._tokens = float(amount)
        self._at_s = now_s

    def left(self, now_s: float) -> int:
        """How many may pass now."""
        self._fill(now_s)
        return max(0, int(self._tokens + _ROUNDING))

    def take(self, count: int) -> None:
        """So many have passed, perhaps more than there was."""
        self._tokens -= count

    def wait_s(self, now_s: float) -> float:
        """How long until something may pass; 0: it may now."""
        if self.left(now_s):
            return 0.0
        per_s = self._per_s + self._more_per_s
        wanted = max(1.0, min(per_s * self._period_s, per_s * GRAIN_S))
        return (wanted - self._tokens) / per_s

    def add_per_s(self, more_per_s: float, now_s: float) -> None:
        """From now on so many come beside the bucket's own."""
        self._fill(now_s)
        self._more_per_s = more_per_s

    def _fill(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            per_s = self._per_s + self._more_per_s
            most = max(1.0, per_s * self._period_s)
            self._tokens = min(most, self._tokens + passed_s * per_s)
            self._at_s = now_s


class PublishPace:
    """How fast counts have grown, over the last ``PACE_S`` or somewhat more."""

    __slots__ = ("_at_s", "_counts", "per_s")

    def __init__(self, counts: tuple[int, int], now_s: float) -> None:
        self._counts = counts
        self._at_s = now_s
        self.per_s = (0.0, 0.0)

    def look(self, counts: tuple[int, int], now_s: float) -> bool:
        """True if ``per_s`` is another one since."""
        passed_s = now_s - self._at_s
        if passed_s < PACE_S:
            return False
        before, self._counts, self._at_s = self._counts, counts, now_s
        self.per_s = (
            max(0, counts[0] - before[0]) / passed_s,
            max(0, counts[1] - before[1]) / passed_s,
        )
        return True


class MayPass(NamedTuple):
    """What may pass; ``ANY``: as much as there is."""

    messages: int
    byte_count: int


class Allowance:
    """What a ``RateLimit`` lets pass: messages and bytes, until either is used up."""

    __slots__ = ("_bytes", "_messages", "_pace")

    def __init__(self, limit: RateLimit, now_s: float) -> None:
        self._messages = _bucket(limit.messages, limit.period_s, now_s)
        self._bytes = _bucket(limit.byte_count, limit.period_s, now_s)
        self._pace: PublishPace | None = None

    def published(self, counts: tuple[int, int], now_s: float) -> None:
        """So many messages and bytes have been published so far: as many more may pass as come."""
        if self._pace is None:
            self._pace = PublishPace(counts, now_s)
        elif self._pace.look(counts, now_s):
            for bucket, per_s in zip((self._messages, self._bytes), self._pace.per_s, strict=True):
                if bucket is not None:
                    bucket.add_per_s(per_s, now_s)

    def left(self, now_s: float) -> MayPass | None:
        """What may pass now; None: nothing."""
        messages = ANY if self._messages is None else self._messages.left(now_s)
        byte_count = ANY if self._bytes is None else self._bytes.left(now_s)
        return MayPass(messages, byte_count) if messages and byte_count else None

    def take(self, messages: int, byte_count: int) -> None:
        """So much has passed."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(byte_count)

    def wait_s(self, now_s: float) -> float:
        """How long until something may pass; 0: it may now."""
        buckets = (self._messages, self._bytes)
        return max((each.wait_s(now_s) for each in buckets if each is not None), default=0.0)


class TimesOfEach:
    """How often each of many may do something: a bucket each, of those that did it last."""

    __slots__ = ("_buckets", "_limit")

    def __init__(self, limit: RateLimit) -> None:
        assert limit.messages > 0, "else nobody is limited"
        self._limit = limit
        self._buckets: dict[Hashable, TokenBucket] = {}

    def admits(self, who: Hashable, now_s: float) -> bool:
        """Whether ``who`` may do it now; that counts as done."""
        bucket = self._buckets.pop(who, None)
        if bucket is None:
            bucket = TokenBucket(self._limit.messages, self._limit.period_s, now_s)
        self._buckets[who] = bucket
        if len(self._buckets) > EACH_MAX:
            del self._buckets[next(iter(self._buckets))]
        if not bucket.left(now_s):
            return False
        bucket.take(1)
        return True


def _bucket(amount: int, period_s: float, now_s: float) -> TokenBucket | None:
    return TokenBucket(amount, period_s, now_s) if amount > 0 else None
