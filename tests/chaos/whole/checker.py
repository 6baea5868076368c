"""Judges histories: what was promised to clients, and what came of it. Pure.

Records come by time, of all clients together (``history.read_folder``). Promised:

* *lost*: what was acknowledged to a producer reaches every subscription of its topic, and is in
  the log at the end (the subscription ``audit``).
* *reordered*: exclusive and failover subscriptions, readers and the log show the messages of a
  lane (``modes``) for the first time in the order in which they were sent. Again, after a
  redelivery, they may come at any time.
* *again*: what was acknowledged, with a receipt, is not delivered again on any connection that
  subscribed after the receipt came. (On older ones it may have been under way.)
* *repeated*: the log holds a message once, however often its client had to send it again.
* *early*: a shared subscription gets a message for later not before its time.
* *unknown*: nothing is delivered that nobody sent.
* *idle*: every topic has acknowledged messages, and every subscription that is judged got some. A
  run in which nothing happened proves nothing.

Allowed, and counted: sends that were refused, deliveries again of what had no receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.chaos.whole.history import ACKED, GOT, REFUSED, SEND, SENT, STORED, Record
from tests.chaos.whole.modes import AUDIT, ORDERED, SHARED, Topic, lane

RULES: Final = ("lost", "reordered", "again", "repeated", "early", "unknown", "idle")
EXAMPLES_MAX: Final = 4
"""Of each rule: a report is one page."""
EARLY_S: Final = 0.005
"""Two processes read two clocks (due times are of the wall's) a moment apart."""


class Message(NamedTuple):
    producer: str
    number: int


class Verdict(NamedTuple):
    """``violations``: rule -> how many; ``examples``: some of them, as text."""

    violations: Mapping[str, int]
    counts: Mapping[str, int]
    examples: Sequence[str]

    @property
    def good(self) -> bool:
        return not any(self.violations.values())


class _Seen:
    """What one subscription of one topic was delivered."""

    def __init__(self) -> None:
        self.messages: set[Message] = set()
        self.last: dict[tuple[str, int], int] = {}
        self.stored: dict[Message, float] = {}


class Checker:
    """``feed`` all records, by time; then ``verdict``. ``missing`` may be asked in between."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._ordered = {
            (topic.name, each.name)
            for topic in topics
            for each in topic.subscriptions
            if each.kind in ORDERED
        } | {(topic.name, AUDIT) for topic in topics}
        self._delayed = {
            (topic.name, each.name)
            for topic in topics
            for each in topic.subscriptions
            if topic.delayed and each.kind == SHARED
        }
        self._sent: dict[str, dict[Message, float]] = {name: {} for name in self._topics}
        self._acknowledged: dict[str, set[Message]] = {name: set() for name in self._topics}
        self._seen = {
            (topic.name, each): _Seen()
            for topic in topics
            for each in (*(one.name for one in topic.subscriptions), AUDIT)
        }
        self._violations: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._examples: list[str] = []
        self._on: Mapping[str, Any] = {
            SEND: self._send,
            SENT: self._was_sent,
            REFUSED: self._refused,
            GOT: self._got,
            ACKED: self._acked,
            STORED: self._was_stored,
        }

    def feed(self, records: Iterable[Record]) -> None:
        for time_s, what, *values in records:
            handle = self._on.get(what)
            if handle is not None:
                handle(time_s, *values)

    def missing(self, but: str = "") -> dict[tuple[str, str], set[Message]]:
        """(topic, subscription) -> what is acknowledged and has not come, of all but one."""
        found = {
            (topic, name): self._acknowledged[topic] - seen.messages
            for (topic, name), seen in self._seen.items()
            if name != but
        }
        return {key: messages for key, messages in found.items() if messages}

    def verdict(self) -> Verdict:
        """To be asked once, at the end."""
        for (topic, name), messages in self.missing().items():
            self._found("lost", len(messages), f"{topic} {name}: {_some(messages)}")
        for topic, acknowledged in self._acknowledged.items():
            if not acknowledged:
                self._found("idle", 1, f"nothing was acknowledged on {topic}")
        for (topic, name), seen in self._seen.items():
            if not seen.messages:
                self._found("idle", 1, f"{topic} {name} got nothing")
        violations = {rule: self._violations[rule] for rule in RULES}
        return Verdict(violations, dict(self._counts), tuple(self._examples))

    def _found(self, rule: str, count: int, example: str) -> None:
        self._violations[rule] += count
        self._told[rule] += 1
        if self._told[rule] <= EXAMPLES_MAX:
            self._examples.append(f"{rule}: {example}")

    # -- records --------------------------------------------------------------------------------

    def _send(self, _time_s: float, topic: str, producer: str, number: int, due_s: float) -> None:
        self._sent[topic][Message(producer, number)] = due_s
        self._counts["sent"] += 1

    def _was_sent(self, _time_s: float, topic: str, producer: str, number: int, _id: str) -> None:
        self._acknowledged[topic].add(Message(producer, number))
        self._counts["acknowledged"] += 1

    def _refused(self, _time_s: float, topic: str, producer: str, number: int, why: str) -> None:
        self._counts["refused"] += 1

    def _got(
        self,
        time_s: float,
        topic: str,
        subscription: str,
        producer: str,
        number: int,
        _redelivery: int,
        consumer: str,
        since_s: float,
    ) -> None:
        message, seen = Message(producer, number), self._seen[topic, subscription]
        where = f"{topic} {subscription}: {producer} {number} at {time_s:.3f} to {consumer}"
        self._counts["delivered"] += 1
        if message not in self._sent[topic]:
            self._found("unknown", 1, where)
            return
        if message in seen.messages:
            self._once_more(message, seen, subscription, since_s, where)
            return
        seen.messages.add(message)
        self._in_order(topic, subscription, message, seen, where)
        due_s = self._sent[topic][message]
        if (topic, subscription) in self._delayed and time_s < due_s - EARLY_S:
            self._found("early", 1, f"{where}, due at {due_s:.3f}")

    def _once_more(
        self, message: Message, seen: _Seen, subscription: str, since_s: float, where: str
    ) -> None:
        if subscription == AUDIT:
            self._found("repeated", 1, where)
            return
        self._counts["delivered again"] += 1
        stored_s = seen.stored.get(message)
        if stored_s is None:
            return
        if since_s > stored_s:
            what = f"{where}, subscribed at {since_s:.3f}, stored at {stored_s:.3f}"
            self._found("again", 1, what)
        else:
            self._counts["again, on a connection older than the receipt"] += 1

    def _in_order(
        self, topic: str, subscription: str, message: Message, seen: _Seen, where: str
    ) -> None:
        if (topic, subscription) not in self._ordered:
            return
        key = (message.producer, lane(self._topics[topic], message.number))
        last = seen.last.get(key, -1)
        if message.number < last:
            self._found("reordered", 1, f"{where}, after {last}")
        seen.last[key] = max(last, message.number)

    def _acked(
        self, _time_s: float, topic: str, subscription: str, producer: str, number: int
    ) -> None:
        self._counts["acknowledgements"] += 1

    def _was_stored(
        self, time_s: float, topic: str, subscription: str, producer: str, number: int
    ) -> None:
        stored = self._seen[topic, subscription].stored
        stored.setdefault(Message(producer, number), time_s)
        self._counts["acknowledgements with a receipt"] += 1


def _some(messages: Iterable[Message]) -> str:
    ordered = sorted(messages)
    text = ", ".join(f"{each.producer} {each.number}" for each in ordered[:5])
    return text + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
