"""Modelled bookies and the connections to them.

A bookie keeps a real one's promises (``model`` of ``bookie/``): what it acknowledged is durable,
a fence is durable before its answer, fence check and insert are atomic, a negative answer is
certain. It may be down: requests fail, answers under way are lost.

A link is one client's connection to one bookie, quick or slow: requests and answers arrive in
order (unless the run plays with reordering), or are lost and reported as failed; late answers are
reported as failed first and arrive all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from magnetar_sim.world.scheduler import Scheduler

TIMEOUT = 400
QUICK = 10


class Stored(NamedTuple):
    """An entry on a bookie: who made it (``token`` tells payloads apart) and its LAC."""

    token: int
    lac: int


class Answer(Enum):
    DONE = "done"
    FENCED = "fenced"
    NO_ENTRY = "no entry"
    UNAVAILABLE = "unavailable"


class Lac(NamedTuple):
    last_add_confirmed: int


Reply: TypeAlias = Answer | Stored | Lac


class Weather:
    """How rough a run is; calm once all faults have healed. Delays are in ticks."""

    def __init__(self, scheduler: Scheduler) -> None:
        rng = scheduler.random
        self._random = rng
        self.calm = False
        self.in_order = rng.random() < 0.8
        self.loss = rng.choice((0.0, 0.02, 0.1))
        self.slow_links = rng.choice((0.1, 0.4))
        self.store_delay_max = rng.choice((30, 300))
        self.lost_store_answers = rng.choice((0.0, 0.2))

    def link_delay_max(self) -> int:
        """For a new link: quick, or slow up to what passes the deadline."""
        if self._random.random() < self.slow_links:
            return self._random.choice((60, 250, 2 * TIMEOUT))
        return QUICK

    def loses(self, probability: float) -> bool:
        return not self.calm and self._random.random() < probability


class SimBookie:
    """One bookie's state for one ledger."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[int, Stored] = {}
        self.fenced = False
        self.up = True

    def add(self, entry_ids: Sequence[int], entries: Sequence[Stored], recovery: bool) -> Reply:
        if self.fenced and not recovery:
            return Answer.FENCED
        self.entries.update(zip(entry_ids, entries, strict=True))
        return Answer.DONE

    def read(self, entry_id: int, fence: bool) -> Reply:
        self.fenced |= fence
        return self.entries.get(entry_id, Answer.NO_ENTRY)

    def read_lac(self) -> Reply:
        """A fencing LAC read."""
        self.fenced = True
        if not self.entries:
            return Lac(-1)
        return Lac(self.entries[max(self.entries)].lac)


class Link:
    """One client's connection to one bookie."""

    def __init__(self, scheduler: Scheduler, bookie: SimBookie, weather: Weather) -> None:
        self._scheduler = scheduler
        self.bookie = bookie
        self._weather = weather
        self._delay_max = weather.link_delay_max()
        self._last_arrival = 0
        self._last_answer = 0
        self.misses = 0
        """So many of the next requests fail at once: the bookie cannot be connected to."""

    def set_delay_max(self, ticks: int) -> None:
        self._delay_max = ticks

    def request(self, act: Callable[[SimBookie], Reply], answered: Callable[[Reply], None]) -> None:
        """Have the bookie ``act``; ``answered`` gets its reply, or UNAVAILABLE, or, when the
        answer is late, first the one and then the other."""
        if self.misses:
            self.misses -= 1
            self._scheduler.after(1, lambda: answered(Answer.UNAVAILABLE))
            return
        if self._weather.loses(self._weather.loss):
            self._scheduler.after(TIMEOUT, lambda: answered(Answer.UNAVAILABLE))
            return
        self._last_arrival = arrival = self._time(self._last_arrival)
        self._scheduler.at(arrival, lambda: self._arrive(act, answered))

    def _time(self, last: int) -> int:
        scheduler, weather = self._scheduler, self._weather
        delay_max = QUICK if weather.calm else self._delay_max
        time = scheduler.now + scheduler.random.randint(1, delay_max)
        return max(time, last) if weather.in_order else time

    def _arrive(self, act: Callable[[SimBookie], Reply], answered: Callable[[Reply], None]) -> None:
        scheduler = self._scheduler
        if not self.bookie.up:
            scheduler.after(1, lambda: answered(Answer.UNAVAILABLE))
            return
        reply = act(self.bookie)
        self._last_answer = time = self._time(self._last_answer)
        if time - scheduler.now > TIMEOUT:
            scheduler.after(TIMEOUT, lambda: answered(Answer.UNAVAILABLE))
        lost = self._weather.loses(self._weather.loss)
        scheduler.at(
            time, lambda: answered(Answer.UNAVAILABLE if lost or not self.bookie.up else reply)
        )
