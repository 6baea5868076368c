"""What ``make damage`` calls wrong."""

from __future__ import annotations

from tests.chaos.damage.contents import COMPACTED, KEYS, TOPICS, message, number_of
from tests.chaos.damage.damaging import kind_of
from tests.chaos.damage.filling import ACKNOWLEDGED, COMPACTED_ROUND, ROUND
from tests.chaos.damage.judge import LIMBO, judge
from tests.chaos.damage.looking import Look, Seen

TOPIC = "ledger-kafka"
NAME = f"kafka {TOPIC}"


def whole() -> Look:
    """Of one round."""
    found = Look(committed={each.name: ACKNOWLEDGED for each in TOPICS})
    for each in TOPICS:
        found.seen[f"kafka {each.name}"] = Seen(list(range(ROUND)))
        found.seen[f"left {each.name}"] = Seen(list(range(ACKNOWLEDGED - 3, ROUND)), complaint="x")
    for each in COMPACTED:
        latest = list(range(COMPACTED_ROUND - KEYS, COMPACTED_ROUND))
        found.seen[f"compacted {each.name}"] = Seen(latest)
        found.seen[f"pulsar {each.name}"] = Seen(list(range(COMPACTED_ROUND)))
    return found


def test_what_is_whole_is_right() -> None:
    verdict = judge(whole(), 1, "")
    assert (verdict.wrong, verdict.told) == ([], [])


def test_what_is_lost_has_to_be_told_by_client_and_server() -> None:
    for complaint, health, said, right in (
        ("an error", TOPIC, "", True),
        ("an error", LIMBO, "", True),
        ("an error", "", TOPIC, True),
        ("an error", "", "", False),
        ("", TOPIC, TOPIC, False),
    ):
        found = whole()
        found.health = health
        found.seen[NAME] = Seen(list(range(100)), complaint=complaint)
        verdict = judge(found, 1, said)
        assert (len(verdict.told), len(verdict.wrong)) == ((1, 0) if right else (0, 1))


def test_nothing_is_passed_over_repeated_or_foreign() -> None:
    every = list(range(ROUND))
    for numbers in (every[:50] + every[51:], [*every[:50], *every[49:]], every[::-1]):
        found = whole()
        found.health = TOPIC
        found.seen[NAME] = Seen(numbers, complaint="an error")
        assert judge(found, 1, "").wrong
    found = whole()
    found.seen[NAME].foreign.append(b"aborted")
    assert judge(found, 1, "").wrong


def test_an_older_offset_is_wrong_and_none_is_told() -> None:
    found = whole()
    found.committed[TOPIC] = 3
    assert judge(found, 1, "").wrong
    found.committed[TOPIC] = "an error"
    assert judge(found, 1, "").told


def test_messages_are_known_by_their_bytes() -> None:
    data = message(TOPIC, 7)
    assert number_of(TOPIC, data) == 7
    assert number_of("other", data) is None
    assert number_of(TOPIC, data[:-1]) is None


def test_files_have_kinds() -> None:
    for path, kind in (
        ("bookie-0/journal/0000000000000008.journal", "journal file"),
        ("bookie-0/ledgers/00000001.log", "entry log"),
        ("bookie-0/ledgers/index/000026.log", "index log"),
        ("bookie-0/ledgers/index/LOCK", "beside the index"),
        ("LOCK", "lock"),
        ("partitions/LOCK", "lock"),
        ("partitions/t-0/00000000000000000030.log", "segment"),
        ("partitions/recovery-point-offset-checkpoint", "checkpoint"),
        ("metadata.sqlite", "metadata"),
        ("bookie-0/ledgers/index/LOG", None),
    ):
        assert kind_of(path) == kind, path
