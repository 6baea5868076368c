"""Which bookies are silent: registered, and without an answer for the delay.

Decides only; the time comes with each call (seconds on one clock that never goes back).

    asked, no answer                                  -> unanswered since then
    an answer                                         -> not unanswered
    ``ASKED_LEAST`` times without one, over ``delay_s`` -> silent

Kept by bookie, and by bookie, ledger and kind of request: a disk that hangs lets a bookie answer
what it knows by heart, and whatever lies on its other disks; the ledgers on that disk would lack
copies for ever.

Silence is never taken for an answer: it says neither that copies are there nor that they are not.
It gives others the bookie's places, for which they get copies first, so that to be wrong costs
copies too many and nothing else. Against being wrong about many there is a bound: while half of
the registered bookies are silent nobody is. Who hears from so few is cut off itself. Why so:
docs/adr/0104-silent-bookies.md.

One that is silent is not asked for ``ASK_AGAIN_S``, since each request would wait for its
deadline; then one finds out. Bounded by the number of bookies, and by ``REQUESTS_MAX``, past which
the oldest is forgotten, and its time begins anew.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from magnetar.model.ids import BookieId

ASKED_LEAST = 3
ASK_AGAIN_S = 30.0
REQUESTS_MAX = 10_000


class Inquiry(Enum):
    """What was asked of a bookie about a ledger."""

    HELD = "what it holds, and samples of it"
    COPIES = "to take copies"


class _Key(NamedTuple):
    bookie: BookieId
    ledger_id: int
    request: Inquiry


class _Unanswered(NamedTuple):
    since_s: float
    last_s: float
    times: int

    def again(self, now_s: float) -> _Unanswered:
        return _Unanswered(self.since_s, now_s, self.times + 1)


class Silences:
    """``delay_s`` 0: nobody ever counts as silent."""

    def __init__(self, delay_s: float, requests_max: int = REQUESTS_MAX) -> None:
        self.delay_s = delay_s
        self._requests_max = requests_max
        self._bookies: dict[BookieId, _Unanswered] = {}
        self._requests: dict[_Key, _Unanswered] = {}
        self._registered = 0

    def look(self, registered: Collection[BookieId]) -> None:
        """These are registered now: whoever is not has its own reasons to be silent."""
        self._registered = len(registered)
        for bookie in [each for each in self._bookies if each not in registered]:
            del self._bookies[bookie]
        for key in [each for each in self._requests if each.bookie not in registered]:
            del self._requests[key]

    def unanswered(self, bookie: BookieId, ledger_id: int, request: Inquiry, now_s: float) -> None:
        """It has let a request pass its deadline, or could not be reached."""
        first = _Unanswered(now_s, now_s, 0)
        key = _Key(bookie, ledger_id, request)
        self._requests[key] = self._requests.pop(key, first).again(now_s)
        while len(self._requests) > self._requests_max:
            del self._requests[next(iter(self._requests))]
        if request is Inquiry.HELD:
            self._bookies[bookie] = self._bookies.get(bookie, first).again(now_s)

    def answered(self, bookie: BookieId, ledger_id: int, request: Inquiry) -> None:
        """It has answered, whatever it said."""
        self._requests.pop(_Key(bookie, ledger_id, request), None)
        if request is Inquiry.HELD:
            self._bookies.pop(bookie, None)

    def is_silent(self, bookie: BookieId, ledger_id: int) -> bool:
        """Whether the bookie's places in the ledger are for others."""
        kept = [self._requests.get(_Key(bookie, ledger_id, request)) for request in Inquiry]
        if not any(self._counts(each) for each in (self._bookies.get(bookie), *kept)):
            return False
        return self._few()

    @property
    def silent(self) -> list[BookieId]:
        """Those that say nothing at all."""
        found = [bookie for bookie, told in self._bookies.items() if self._counts(told)]
        return found if self._few() else []

    @property
    def cut_off(self) -> bool:
        """Whether this process hears from so few that it is rather itself that is not heard."""
        return any(map(self._counts, self._bookies.values())) and not self._few()

    def rests(self, bookie: BookieId, now_s: float) -> bool:
        """Whether it is silent, and was asked so lately that it need not be asked now."""
        told = self._bookies.get(bookie)
        return (
            told is not None
            and self._counts(told)
            and self._few()
            and now_s - told.last_s < ASK_AGAIN_S
        )

    def _counts(self, told: _Unanswered | None) -> bool:
        if told is None or not self.delay_s:
            return False
        return told.times >= ASKED_LEAST and told.last_s - told.since_s >= self.delay_s

    def _few(self) -> bool:
        return 2 * sum(map(self._counts, self._bookies.values())) < self._registered
