"""What producers' sequence ids say of a log: what is twice in it, and what is not in it.

Decides only; ``audit_reading`` reads. A producer numbers its messages one by one. Within a log, in
its order, each producer's ids are cut into *runs* of neighbours, which a task finds for the ledgers
that it reads (``IdRuns``), and which are put behind each other for the whole log (``judge``). Of a
run that follows another of the same producer:

==================================  ==============================================================
its first id is                     then
==================================  ==============================================================
the one after the last              it goes on
greater                             the ids between are a *gap*
0, published after all before it    the producer has begun anew, and so does its numbering
not greater, and seen before        they are *duplicates*
not greater, and not seen before    they are out of *order*: they belong into an earlier gap
==================================  ==============================================================

What came before the first run is not known: a log may have been trimmed, and an application may
begin where it likes. The chunks of a large message all have its id. An application that gives its
ids itself may leave some out; whoever runs an audit can say that gaps are no fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

RUNS_MAX: Final = 10_000
"""Of one producer in one piece of work. One with more gives its ids by another rule."""


class EntryAt(NamedTuple):
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class EntryHead(NamedTuple):
    """What an entry says of itself. ``producer`` "": it has no sequence ids. ``later_chunk``: it
    goes on with the message before it. ``last_offset`` -1: it has no number."""

    producer: str
    first: int
    last: int
    messages: int
    later_chunk: bool
    publish_ms: int
    last_offset: int


class IdRun(NamedTuple):
    """Neighbouring ids of one producer: ``first`` at the entry ``at``, ``last`` at ``last_at``."""

    producer: str
    first: int
    last: int
    at: EntryAt
    last_at: EntryAt
    first_publish_ms: int
    last_publish_ms: int


class Oddity(NamedTuple):
    """``fault``: "gap", "duplicate" or "order", of the ids from ``first`` to ``last``, seen at the
    entry ``at``."""

    fault: str
    producer: str
    first: int
    last: int
    at: EntryAt
    why: str


class IdRuns:
    """The runs of some ledgers, entry by entry."""

    def __init__(self) -> None:
        self._open: dict[str, IdRun] = {}
        self._closed: dict[str, list[IdRun]] = {}
        self.untidy: dict[str, None] = {}

    def add(self, head: EntryHead, at: EntryAt) -> None:
        if not head.producer or head.producer in self.untidy:
            return
        now = self._open.get(head.producer)
        if now is not None and head.later_chunk and head.first == now.last:
            self._open[head.producer] = now._replace(last_at=at)
            return
        if now is not None and head.first == now.last + 1:
            self._open[head.producer] = now._replace(
                last=head.last, last_at=at, last_publish_ms=head.publish_ms
            )
            return
        if now is not None:
            self._close(now)
        self._open[head.producer] = IdRun(
            head.producer, head.first, head.last, at, at, head.publish_ms, head.publish_ms
        )

    def _close(self, run: IdRun) -> None:
        closed = self._closed.setdefault(run.producer, [])
        closed.append(run)
        if len(closed) >= RUNS_MAX:
            self.untidy[run.producer] = None
            del self._closed[run.producer]

    def all(self) -> list[IdRun]:
        """Of each producer in order; without those that are ``untidy``."""
        return [
            run
            for producer, last in self._open.items()
            if producer not in self.untidy
            for run in (*self._closed.get(producer, ()), last)
        ]


@dataclass
class Judgement:
    oddities: list[Oddity] = field(default_factory=list)
    producers: int = 0
    begun_anew: int = 0


def judge(runs: Iterable[IdRun]) -> Judgement:
    """``runs``: of a whole log; of each producer in the order of the log."""
    found = Judgement()
    lives: dict[str, list[IdRun]] = {}
    for run in runs:
        life = lives.get(run.producer)
        if life is None:
            found.producers += 1
            lives[run.producer] = [run]
        elif run.first == 0 and run.first_publish_ms > max(one.last_publish_ms for one in life):
            found.begun_anew += 1
            lives[run.producer] = [run]
        else:
            found.oddities += _following(run, life)
            _remember(run, life)
    return found


def _following(run: IdRun, life: list[IdRun]) -> Iterator[Oddity]:
    """What is odd about a run that comes after those of its life."""
    top = max(one.last for one in life)
    if run.first > top + 1:
        told = f"message {run.first} follows message {top}"
        yield Oddity("gap", run.producer, top + 1, run.first - 1, run.at, told)
    at = run.first
    while at <= min(run.last, top):
        before = next((one for one in life if one.first <= at <= one.last), None)
        if before is None:
            stop = min([one.first for one in life if one.first > at] + [run.last + 1, top + 1])
            told = f"message {top} came before it"
            yield Oddity("order", run.producer, at, stop - 1, run.at, told)
        else:
            stop = min(before.last, run.last) + 1
            told = f"the log has it before, between {before.at} and {before.last_at}"
            yield Oddity("duplicate", run.producer, at, stop - 1, run.at, told)
        at = stop


def _remember(run: IdRun, life: list[IdRun]) -> None:
    """Neighbours become one, so that a life is as long as it has gaps."""
    last = life[-1]
    if run.first == last.last + 1:
        life[-1] = last._replace(
            last=run.last, last_at=run.last_at, last_publish_ms=run.last_publish_ms
        )
    else:
        life.append(run)
