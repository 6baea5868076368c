"""Where a subscription is served: by the owner of its topic, or by a read-only broker, and which.

Asked by the owner for every consumer that subscribes (``Steering.place``), and by whoever serves a
subscription when rules or brokers have changed (``Steering.move``). Rules:

* One place for all consumers of a subscription (of one partition). Where it is bound it stays,
  while its broker lives, is not drained, and the rules allow it: also when another would be chosen
  now. Until a binding is known, where it was sent last counts for one (``SENT_S``).
* Who is chosen among several: by a hash of subscription and broker, so that subscriptions spread
  and few of them move with a broker; brokers with much more to do than the others are passed by.
* No read-only broker is there that the rules mean: the owner serves it. Reads go on without them.
* A consumer that was sent to a broker and stands before the owner again, ``RETURNS_MAX`` times in a
  row, cannot be served there: the broker is dead and nobody has noticed, refuses it, or cannot be
  reached by this client. The broker is avoided for the subscription, longer each time; if the
  subscription is bound to it, and so perhaps served there to others, the consumer has to wait. So a
  client is sent to and fro a few times at most, whatever it makes of it.
* A client that would not follow is not sent at all, and has the subscription served by the owner.
* Who is served is moved only when the same other place has been the right one for ``SETTLE_S``.

Pure. Times are seconds of one clock that only rises.

Why: docs/adr/0093-consumers-are-sent-to-read-only-brokers.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from hashlib import blake2b
from typing import Final, Generic, NamedTuple, TypeVar

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.read_rules import Asked, ReadRules

RETURN_S: Final = 15.0
"""Who comes back later than that has been served meanwhile."""
RETURNS_MAX: Final = 2
SENT_S: Final = 15.0
AVOID_S: Final = 30.0
AVOID_S_MAX: Final = 3600.0
SETTLE_S: Final = 5.0
KEPT_MAX: Final = 10_000
"""Subscriptions of which something is remembered; what is forgotten is found out again."""
LOAD_SPREAD: Final = 1.5
LOAD_SLACK: Final = 20.0
"""A broker takes part in the choice up to so many times the mean load, and so much more."""
MESSAGES_PER_S_OF_A_TOPIC: Final = 1000.0

V = TypeVar("V")


class Sought(NamedTuple):
    """A subscription of a topic, of one partition of a partitioned one: names."""

    topic: str
    subscription: str


class Sent(NamedTuple):
    """A consumer was sent to a read-only broker; whoever keeps it gives it back when the consumer
    stands there again. ``returns``: how often it has come back already."""

    sought: Sought
    broker: str
    at_s: float
    returns: int = 0


class Seeker(NamedTuple):
    """A consumer that subscribes. ``follows``: it goes where it is sent. ``sent``: where this same
    consumer was sent last, if anywhere."""

    sought: Sought
    asked: Asked
    follows: bool
    sent: Sent | None = None


class Placing(NamedTuple):
    """``sent`` None: the owner serves it. ``instead_of``: the broker whose binding has to end
    first. ``waits``: nobody serves it now, it is to come again, with the ``sent`` that it has."""

    sent: Sent | None
    instead_of: str | None = None
    waits: bool = False


class Move(NamedTuple):
    """To that read-only broker; None: to the owner."""

    broker: str | None


class _Candidate(NamedTuple):
    broker: str | None
    since_s: float


class _Avoided(NamedTuple):
    until_s: float
    times: int


def choose(
    sought: Sought,
    asked: Asked,
    rules: ReadRules,
    reports: Mapping[str, BrokerReport],
    bound: str | None,
    avoided: Container[str] = (),
) -> str | None:
    """The id of the read-only broker that is to serve it; None: the owner. ``reports``: of all
    brokers that live."""
    target = rules.target(asked)
    if target.owner:
        return None
    able = {
        name: report
        for name, report in reports.items()
        if report.read_only and not report.draining and target.takes(report)
    }
    able = {name: report for name, report in able.items() if name not in avoided}
    if bound in able:
        return bound
    if not able:
        return None
    return max(_not_busy(able), key=lambda name: (_rank(sought, name), name))


def _not_busy(able: Mapping[str, BrokerReport]) -> list[str]:
    loads = {name: _load(report) for name, report in able.items()}
    most = LOAD_SPREAD * sum(loads.values()) / len(loads) + LOAD_SLACK
    return [name for name, load in loads.items() if load <= most]


def _load(report: BrokerReport) -> float:
    return report.topics + report.messages_out_per_s / MESSAGES_PER_S_OF_A_TOPIC


def _rank(sought: Sought, broker: str) -> bytes:
    """The highest wins (rendezvous hashing): without one broker, only its own go elsewhere. Not a
    checksum: of those of two brokers always the same bits differ, and some would never win."""
    return blake2b("\0".join((*sought, broker)).encode(), digest_size=8).digest()


class Steering:
    """What one broker remembers of subscriptions that it has sent away, or is about to."""

    def __init__(self) -> None:
        self._sent: _Kept[Sent] = _Kept()
        self._avoided: _Kept[dict[str, _Avoided]] = _Kept()
        self._candidates: _Kept[_Candidate] = _Kept()

    def place(
        self,
        seeker: Seeker,
        rules: ReadRules,
        reports: Mapping[str, BrokerReport],
        bound: str | None,
        now_s: float,
    ) -> Placing:
        """Where the consumer is to be served, asked by the owner, which serves nobody else of the
        subscription. ``bound``: the broker that the subscription is bound to."""
        sought, asked, follows, sent = seeker
        if not follows:
            return Placing(None, bound)
        if bound is not None:
            self._works(sought, bound)
        returns = self._returns(sought, sent, now_s)
        if returns >= RETURNS_MAX and sent is not None:
            if sent.broker == bound == choose(sought, asked, rules, reports, bound):
                return Placing(sent, waits=True)
            self._avoid(sought, sent.broker, now_s)
        before = bound or self._sent_to(sought, now_s)
        chosen = choose(sought, asked, rules, reports, before, self._avoided_now(sought, now_s))
        instead_of = bound if bound != chosen else None
        if chosen is None:
            return Placing(None, instead_of)
        if sent is None or sent.broker != chosen:
            returns = 0
        self._sent[sought] = placed = Sent(sought, chosen, now_s, returns)
        return Placing(placed, instead_of)

    @staticmethod
    def _returns(sought: Sought, sent: Sent | None, now_s: float) -> int:
        """How often a consumer that was ``sent`` away has come back, with this time."""
        if sent is None or sent.sought != sought or now_s - sent.at_s > RETURN_S:
            return 0
        return sent.returns + 1

    def _avoid(self, sought: Sought, broker: str, now_s: float) -> None:
        avoided = self._avoided.setdefault(sought, dict)
        before = avoided.get(broker, _Avoided(now_s, 0))
        if now_s < before.until_s:
            return  # several consumers have come back from there
        times = before.times + 1
        pause_s = min(AVOID_S_MAX, AVOID_S * 2 ** min(times - 1, 16))
        avoided[broker] = _Avoided(now_s + pause_s, times)
        self._sent.pop(sought)

    def _avoided_now(self, sought: Sought, now_s: float) -> Container[str]:
        avoided = self._avoided.get(sought) or {}
        return [broker for broker, each in avoided.items() if now_s < each.until_s]

    def _sent_to(self, sought: Sought, now_s: float) -> str | None:
        sent = self._sent.get(sought)
        return sent.broker if sent is not None and now_s - sent.at_s <= SENT_S else None

    def _works(self, sought: Sought, broker: str) -> None:
        """Somebody has arrived there."""
        avoided = self._avoided.get(sought)
        if avoided is not None:
            avoided.pop(broker, None)

    def move(
        self,
        sought: Sought,
        asked: Asked,
        rules: ReadRules,
        reports: Mapping[str, BrokerReport],
        here: str | None,
        now_s: float,
    ) -> Move | None:
        """Where a subscription is to go that is served ``here``: None means by its owner. The
        answer None: nowhere, for now."""
        found = self._candidates.get(sought)
        avoided = self._avoided_now(sought, now_s)
        wanted = choose(sought, asked, rules, reports, here, avoided)
        if wanted != here and found is not None:
            # Loads change all the time: what was right at the last look is, while it can be.
            wanted = choose(sought, asked, rules, reports, found.broker, avoided)
        if wanted == here:
            self._candidates.pop(sought)
            return None
        if found is None or found.broker != wanted:
            self._candidates[sought] = _Candidate(wanted, now_s)
            return None
        if now_s - found.since_s < SETTLE_S:
            return None
        self._candidates.pop(sought)
        if wanted is not None:
            self._sent[sought] = Sent(sought, wanted, now_s)
        return Move(wanted)


class _Kept(Generic[V]):
    """By subscription, at most ``KEPT_MAX`` of them: the one that was written longest ago goes."""

    def __init__(self) -> None:
        self._values: OrderedDict[Sought, V] = OrderedDict()

    def get(self, sought: Sought) -> V | None:
        return self._values.get(sought)

    def __setitem__(self, sought: Sought, value: V) -> None:
        self._values[sought] = value
        self._values.move_to_end(sought)
        if len(self._values) > KEPT_MAX:
            self._values.popitem(last=False)

    def setdefault(self, sought: Sought, make: Callable[[], V]) -> V:
        value = self._values.get(sought)
        self[sought] = made = make() if value is None else value
        return made

    def pop(self, sought: Sought) -> None:
        self._values.pop(sought, None)

    def __len__(self) -> int:
        return len(self._values)
