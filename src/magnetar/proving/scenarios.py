"""The scenarios: which fault, which lanes, and what must come out of each.

The counts are those of Kafka's and of BookKeeper's models (docs/prove.md says why each is what it
is). Pure; how a fault is made: ``faults``, ``ledger_faults``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.log.policy import Engine
from magnetar.model.errors import ConfigError
from magnetar.proving.counting import EXPOSED, RESENT, Back, Expected, LaneSpec

BEFORE: Final = 50
"""Messages of each lane before the fault, on every copy."""
EXPOSED_MESSAGES: Final = 200
"""Sent while one machine alone gets them."""
AFTER: Final = 50
ENTRIES: Final = 300
HELD: Final = 33
"""Of ledgers."""
ALL: Final = -1
LEDGER, PARTITION = Engine.LEDGER, Engine.PARTITION
SAFE: Final = Expected()
AT_LEAST_ONCE: Final = Expected(duplicated=RESENT)
"""Of a producer that is not idempotent, as clients' are not with acks=1."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``fault``: what is done, in one sentence; ``lesson``: what it shows, for who decides."""

    name: str
    title: str
    fault: str
    lesson: str
    lanes: tuple[LaneSpec, ...]


def _lossy(**more: object) -> Expected:
    return Expected(lost=EXPOSED, exposed=EXPOSED_MESSAGES, **more)  # type: ignore[arg-type]


SCENARIOS: Final = (
    Scenario(
        "leader-dies",
        "The leader dies with what no follower has",
        f"Followers are kept from fetching; the leader takes {EXPOSED_MESSAGES} messages and is "
        "killed (SIGKILL); followers elect another.",
        "acks=1 is a bet that one machine lives a moment longer. acks=all, and ledgers, do not "
        "make it.",
        (
            LaneSpec("partition-acks1", PARTITION, 1, _lossy(duplicated=RESENT)),
            LaneSpec("partition-all", PARTITION, ALL, SAFE),
            LaneSpec("ledger-acks1", LEDGER, 1, AT_LEAST_ONCE),
            LaneSpec("ledger-all", LEDGER, ALL, SAFE),
        ),
    ),
    Scenario(
        "isr-shrinks",
        "The in-sync set shrinks to the leader, then the leader dies",
        "The leader is cut off from both followers (and from two of five bookies) until it is alone"
        f" in sync; it is sent {EXPOSED_MESSAGES} messages, acks=all, and is killed; the links "
        "heal; it is started again 12 s later.",
        "acks=all means all that are in sync, and that may be one. min.insync.replicas=2 refuses "
        "instead; a ledger takes other bookies and goes on.",
        (
            LaneSpec("partition-min1", PARTITION, ALL, Expected(back=Back.SAME), 1, False,
                     "unavailable until the leader is back"),
            LaneSpec("partition-min1-unclean", PARTITION, ALL, _lossy(), 1, True),
            LaneSpec("partition-min2", PARTITION, ALL, Expected(refused=True), 2, False),
            LaneSpec("partition-min2-unclean", PARTITION, ALL, Expected(refused=True), 2, True),
            LaneSpec("ledger", LEDGER, ALL, SAFE),
        ),
    ),
    Scenario(
        "cut-from-metadata",
        "The leader is cut off from the controller only",
        "The leader's link to ZooKeeper is cut; it reaches clients, followers and bookies all the "
        "time, and its clients go on with it as long as it answers.",
        "A deposed leader that has not heard of it acknowledges at acks=1 what nobody will keep. "
        "At acks=all nobody follows it, and a ledger's bookies refuse it (fencing).",
        (
            LaneSpec("partition-acks1", PARTITION, 1,
                     Expected(lost=EXPOSED, duplicated=RESENT)),
            LaneSpec("partition-all", PARTITION, ALL, SAFE),
            LaneSpec("ledger-acks1", LEDGER, 1, AT_LEAST_ONCE),
            LaneSpec("ledger-all", LEDGER, ALL, SAFE),
        ),
    ),
    Scenario(
        "isolated",
        "The leader is cut off from everybody",
        "Every link of the leader is cut, to clients, brokers, bookies and ZooKeeper, once all "
        "that was acknowledged is on every copy.",
        "Nobody who cannot be reached can acknowledge: nothing is lost on either. What differs is "
        "nothing but the time until another serves.",
        (
            LaneSpec("partition-acks1", PARTITION, 1, AT_LEAST_ONCE),
            LaneSpec("partition-all", PARTITION, ALL, SAFE),
            LaneSpec("ledger-all", LEDGER, ALL, SAFE),
        ),
    ),
    Scenario(
        "paused",
        "The leader is paused past its session and goes on",
        "SIGSTOP; 20 messages are sent to it meanwhile; another is elected and used; SIGCONT, and "
        "the old leader finds what was sent to it.",
        "The pause of a virtual machine or of a garbage collector is a split brain for a moment. A "
        "fence at the storage ends it; at acks=1 there is none.",
        (
            LaneSpec("partition-acks1", PARTITION, 1,
                     Expected(lost=EXPOSED, duplicated=RESENT)),
            LaneSpec("partition-all", PARTITION, ALL, SAFE),
            LaneSpec("ledger-acks1", LEDGER, 1, AT_LEAST_ONCE),
            LaneSpec("ledger-all", LEDGER, ALL, SAFE),
        ),
    ),
    Scenario(
        "power-cut-synced",
        "The power goes everywhere, disks are synced",
        f"After {EXPOSED_MESSAGES} messages every broker and bookie stops at once, and no disk "
        "keeps what was not synced. Both engines sync before they acknowledge (their default).",
        "What is synced before it is acknowledged survives. Kafka's own default does not sync.",
        (
            LaneSpec("partition-all", PARTITION, ALL, Expected(back=None)),
            LaneSpec("ledger-all", LEDGER, ALL, Expected(back=None)),
        ),
    ),
    Scenario(
        "power-cut-unsynced",
        "The power goes everywhere, disks are not synced",
        "The same with partition.sync=operating-system and bookie.journal.sync=false.",
        "Copies in the memory of three machines are none when all lose power, whatever acks says.",
        (
            LaneSpec("partition-clean", PARTITION, ALL, Expected(back=Back.NOBODY), 1, False,
                     "no replica is known to have what was in sync: nobody leads until an operator "
                     "decides"),
            LaneSpec("partition-unclean", PARTITION, ALL, _lossy(back=None), 1, True),
            LaneSpec("ledger-all", LEDGER, ALL, _lossy(back=None)),
        ),
    ),
    Scenario(
        "ledger-loses-bookies",
        "Ledgers lose bookies",
        f"Closed ledgers of {ENTRIES} entries on E3 Qw2 Qa2 lose bookies with their disks; an open "
        "one on E3 Qw2 Qa1 loses its owner and the only bookie that acknowledged the last entry.",
        "A ledger loses what all bookies of a write set held, and says which entries. What it may "
        "have acknowledged and cannot find it does not give up: recovery waits for the bookie.",
        (
            LaneSpec("closed-one-wiped", LEDGER, ALL, Expected(back=Back.ALWAYS),
                     text="one bookie wiped"),
            LaneSpec("closed-two-wiped", LEDGER, ALL,
                     Expected(lost=EXPOSED, exposed=ENTRIES // 3, back=Back.ALWAYS),
                     text="two bookies wiped: every third entry had only those"),
            LaneSpec("closed-repaired", LEDGER, ALL, Expected(back=Back.ALWAYS),
                     text="one wiped, repaired, then another wiped"),
            LaneSpec("open-only-copy-away", LEDGER, 1, Expected(refused=True, back=Back.SAME),
                     text="E3 Qw2 Qa1: recovery refuses until the bookie is back"),
        ),
    ),
)  # fmt: skip

BY_NAME: Final = {each.name: each for each in SCENARIOS}


def chosen(names: Sequence[str]) -> list[Scenario]:
    """Of these names; all if there are none. Raises ``ConfigError``."""
    for name in names:
        if name not in BY_NAME:
            raise ConfigError(f"no scenario {name!r}; there are: {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names] or list(SCENARIOS)
