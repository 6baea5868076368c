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
ids itself may leave some out; whoever runs an audit can say that gaps are no fault. Of a producer
with more than ``RUNS_MAX`` runs it is only told how often its ids went back (``IdSteps``).

A batch may say its first id only. Then either its messages are numbered (C++'s clients, Python's),
or batches are (Go's, and tasks of Spark's): what follows it tells which.

Kafka's producers that are idempotent number the records of each epoch, from 0 to 2^31 - 1 and from
0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SEQUENCES: Final = 1 << 31

RUNS_MAX: Final = 10_000
"""Of one producer in one piece of work. One with more gives its ids by another rule."""


class EntryAt(NamedTuple):
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


class EntryHead(NamedTuple):
    """What an entry says of itself. ``producer`` "": it has no sequence ids. ``later_chunk``: it
    goes on with the message before it. ``last_offset`` -1: it has no number. ``may_last``: the last
    id may be this one as well, if its producer numbers messages and not batches; -1: it may not."""

    producer: str
    first: int
    last: int
    messages: int
    later_chunk: bool
    publish_ms: int
    last_offset: int
    may_last: int = -1
    wraps: bool = False
    """Behind ``SEQUENCES`` ids they begin with 0 again, as those of Kafka's producers do."""


class IdRun(NamedTuple):
    """Neighbouring ids of one producer: ``first`` at the entry ``at``, ``last`` at ``last_at``."""

    producer: str
    first: int
    last: int
    at: EntryAt
    last_at: EntryAt
    first_publish_ms: int
    last_publish_ms: int
    continued: bool = False
    """It begins with a later chunk of message ``first``."""
    may_last: int = -1
    """As of its last entry."""
    wraps: bool = False

    def goes_on(self, first: int) -> bool:
        """Whether that id is the next one."""
        return first in (self.last + 1, self.may_last + 1)

    def behind(self, top: int) -> IdRun:
        """With ids that count on where they begin with 0 again, after ``top``."""
        rounds = max(0, top - self.first + SEQUENCES // 2) // SEQUENCES if self.wraps else 0
        more = rounds * SEQUENCES
        return self._replace(first=self.first + more, last=self.last + more) if more else self


class IdSteps(NamedTuple):
    """Of a producer that has more runs than are told apart: its first and last id in the log's
    order, and how often they went ``back``."""

    first: int
    last: int
    first_publish_ms: int
    last_publish_ms: int
    back: int = 0

    def then(self, first: int, last: int, first_publish_ms: int, last_publish_ms: int) -> IdSteps:
        """With ids that follow."""
        anew = first == 0 and first_publish_ms > self.last_publish_ms
        back = self.back + (first <= self.last and not anew)
        return IdSteps(self.first, last, self.first_publish_ms, last_publish_ms, back)


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
        self._numbers_messages: dict[str, bool] = {}
        self.untidy: dict[str, IdSteps] = {}

    def add(self, head: EntryHead, at: EntryAt) -> None:
        if not head.producer:
            return
        if head.producer in self.untidy:
            self._step(head)
            return
        now = self._open.get(head.producer)
        if head.may_last > head.last or (now is not None and now.may_last > now.last):
            head, now = self._by_rule(head, now)
        if now is not None and head.later_chunk and head.first == now.last:
            self._open[head.producer] = now._replace(last_at=at)
            return
        if now is not None and head.first == now.last + 1:
            self._open[head.producer] = now._replace(
                last=head.last,
                last_at=at,
                last_publish_ms=head.publish_ms,
                may_last=head.may_last,
            )
            return
        if now is not None:
            self._close(now)
            if head.producer in self.untidy:
                self._step(head)
                return
        self._open[head.producer] = IdRun(
            head.producer,
            head.first,
            head.last,
            at,
            at,
            head.publish_ms,
            head.publish_ms,
            head.later_chunk,
            head.may_last,
            head.wraps,
        )

    def _by_rule(self, head: EntryHead, now: IdRun | None) -> tuple[EntryHead, IdRun | None]:
        """Both with what their producer numbers, once what follows a batch has told it."""
        rule = self._numbers_messages.get(head.producer)
        if rule is None and now is not None and now.may_last > now.last:
            if not now.goes_on(head.first):
                return head, now
            rule = self._numbers_messages[head.producer] = head.first == now.may_last + 1
            now = now._replace(last=now.may_last if rule else now.last, may_last=-1)
        if rule is not None:
            head = head._replace(last=max(head.last, head.may_last) if rule else head.last)
            head = head._replace(may_last=-1)
        return head, now

    def _step(self, head: EntryHead) -> None:
        steps = self.untidy[head.producer]
        if not (head.later_chunk and head.first == steps.last):
            told = head.first, head.last, head.publish_ms, head.publish_ms
            self.untidy[head.producer] = steps.then(*told)

    def _close(self, run: IdRun) -> None:
        closed = self._closed.setdefault(run.producer, [])
        closed.append(run)
        if len(closed) >= RUNS_MAX:
            self.untidy[run.producer] = steps_of(closed)
            del self._closed[run.producer]
            del self._open[run.producer]

    def all(self) -> list[IdRun]:
        """Of each producer in order; without those that are ``untidy``."""
        return [
            run
            for producer, last in self._open.items()
            if producer not in self.untidy
            for run in (*self._closed.get(producer, ()), last)
        ]


def steps_of(parts: Sequence[IdRun | IdSteps]) -> IdSteps:
    """Together, of parts that follow each other."""
    whole: IdSteps | None = None
    for each in parts:
        told = each.first, each.last, each.first_publish_ms, each.last_publish_ms
        back = each.back if isinstance(each, IdSteps) else 0
        if whole is None:
            whole = IdSteps(*told, back)
            continue
        if isinstance(each, IdRun) and each.continued and each.first == whole.last:
            told = each.last + 1, *told[1:]
        whole = whole.then(*told)
        whole = whole._replace(back=whole.back + back)
    assert whole is not None
    return whole


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
        elif run.continued and run.first == life[-1].last:
            life[-1] = _together(life[-1], run)  # a message's chunks that were read apart
        elif run.first == 0 and run.first_publish_ms > max(one.last_publish_ms for one in life):
            found.begun_anew += 1
            lives[run.producer] = [run]
        else:
            run = run.behind(max(one.last for one in life))
            found.oddities += _following(run, life)
            _remember(run, life)
    return found


def _following(run: IdRun, life: list[IdRun]) -> Iterator[Oddity]:
    """What is odd about a run that comes after those of its life."""
    top = max(one.last for one in life)
    if run.first > top + 1 and not life[-1].goes_on(run.first):
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
    if life[-1].goes_on(run.first):
        life[-1] = _together(life[-1], run)
    else:
        life.append(run)


def _together(run: IdRun, following: IdRun) -> IdRun:
    return run._replace(
        last=following.last,
        last_at=following.last_at,
        last_publish_ms=following.last_publish_ms,
        may_last=following.may_last,
    )
