"""The checker finds every kind of violation, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos.whole.checker import EXAMPLES_MAX, RULES, Checker, Verdict
from tests.chaos.whole.history import (
    ACKED,
    GOT,
    REFUSED,
    SEND,
    SENT,
    STORED,
    HistoryWriter,
    Record,
    parse_lines,
    read_folder,
)
from tests.chaos.whole.modes import (
    AUDIT,
    EXCLUSIVE,
    FAILOVER,
    KEYS,
    READER,
    RECEIPTS,
    SHARED,
    Subscription,
    Topic,
)

PLAIN = Topic("plain", 1, (Subscription("one", EXCLUSIVE), Subscription("all", RECEIPTS)))
LATER = Topic("later", 1, (Subscription("s", SHARED), Subscription("f", FAILOVER)), delayed=True)
PARTS = Topic("parts", 1, (Subscription("r", READER),), partitions=2)
TOPICS = (PLAIN, LATER, PARTS)
COUNT = 3 * KEYS


def got(time_s: float, topic: str, subscription: str, number: int, since_s: float = 0.0) -> Record:
    return [time_s, GOT, topic, subscription, "p", number, 0, "c", since_s]


def sound() -> list[Record]:
    """Everything sent, acknowledged, received by everyone, acknowledged, stored, audited."""
    records: list[Record] = []
    for topic in TOPICS:
        for number in range(COUNT):
            sent_s = 1.0 + number
            due_s = sent_s + 5.0 if topic.delayed else 0.0
            records.append([sent_s, SEND, topic.name, "p", number, due_s])
            records.append([sent_s + 0.1, SENT, topic.name, "p", number, f"({number})"])
            for each in topic.subscriptions:
                at_s = max(due_s if each.kind == SHARED else 0.0, sent_s) + 0.2
                records.append(got(at_s, topic.name, each.name, number, 0.5))
                records.append([at_s + 0.1, ACKED, topic.name, each.name, "p", number])
                if each.kind == RECEIPTS:
                    records.append([at_s + 0.2, STORED, topic.name, each.name, "p", number])
            records.append(got(1000.0 + number, topic.name, AUDIT, number))
    return sorted(records, key=lambda record: record[0])


def judged(records: Sequence[Record]) -> Verdict:
    checker = Checker(TOPICS)
    checker.feed(sorted(records, key=lambda record: record[0]))
    return checker.verdict()


def broken(verdict: Verdict) -> dict[str, int]:
    return {rule: count for rule, count in verdict.violations.items() if count}


def without(records: Sequence[Record], *heads: Sequence[object]) -> list[Record]:
    return [r for r in records if not any(r[1 : 1 + len(head)] == list(head) for head in heads)]


def test_a_sound_history_is_sound() -> None:
    verdict = judged(sound())
    assert verdict.good, verdict.examples
    assert verdict.counts["acknowledged"] == 3 * COUNT
    assert verdict.counts["acknowledgements with a receipt"] == COUNT


Plant = Callable[[list[Record]], list[Record]]


def late(topic: str, subscription: str) -> Plant:
    """One message comes for the first time after those that were sent behind it."""

    def plant(records: list[Record]) -> list[Record]:
        kept = without(records, [GOT, topic, subscription, "p", 0])
        return [*kept, got(900.0 if subscription != AUDIT else 1500.0, topic, subscription, 0)]

    return plant


PLANTED: dict[str, tuple[str, Plant]] = {
    "a subscription never gets one": (
        "lost",
        lambda records: without(records, [GOT, "plain", "one", "p", COUNT - 1]),
    ),
    "a delayed one never comes": (
        "lost",
        lambda records: without(records, [GOT, "later", "s", "p", 7]),
    ),
    "the log has lost one that everybody got": (
        "lost",
        lambda records: without(records, [GOT, "parts", AUDIT, "p", COUNT - 1]),
    ),
    "exclusive, out of order": ("reordered", late("plain", "one")),
    "failover, out of order": ("reordered", late("later", "f")),
    "a reader of one key, out of order": ("reordered", late("parts", "r")),
    "the log, out of order": ("reordered", late("plain", AUDIT)),
    "stored, and delivered again to a later connection": (
        "again",
        lambda records: [*records, got(500.0, "plain", "all", 3, 499.0)],
    ),
    "twice in the log": (
        "repeated",
        lambda records: [*records, got(1500.0, "plain", AUDIT, 3)],
    ),
    "delivered before its time": (
        "early",
        lambda records: [
            *without(records, [GOT, "later", "s", "p", 4]),
            got(5.5, "later", "s", 4),
        ],
    ),
    "delivered, but nobody has sent it": (
        "unknown",
        lambda records: [*records, got(500.0, "plain", "one", COUNT)],
    ),
    "a topic on which nothing happened": (
        "idle",
        lambda records: [record for record in records if record[2] != "plain"],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_violation_is_found(name: str) -> None:
    rule, plant = PLANTED[name]
    verdict = judged(plant(sound()))
    assert set(broken(verdict)) == {rule}, verdict.examples
    assert any(text.startswith(f"{rule}: ") for text in verdict.examples)


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED.values()} == set(RULES)


ALLOWED: dict[str, list[Record]] = {
    "a redelivery of what has no receipt": [got(600.0, "plain", "one", 3, 599.0)],
    "again on the connection it came from": [got(600.0, "plain", "all", 3, 0.5)],
    "an exclusive one goes back, and on": [
        got(600.0 + number, "plain", "one", number, 599.0) for number in range(COUNT)
    ],
    "refused, and not there": [
        [50.0, SEND, "plain", "p", 99, 0.0],
        [50.1, REFUSED, "plain", "p", 99, "Timeout"],
    ],
    "not answered, and there": [
        [50.0, SEND, "plain", "p", 99, 0.0],
        got(51.0, "plain", "one", 99),
        got(2000.0, "plain", AUDIT, 99),
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_no_violation(name: str) -> None:
    verdict = judged([*sound(), *ALLOWED[name]])
    assert verdict.good, verdict.examples


def test_keys_of_a_partitioned_topic_come_in_any_order_among_each_other() -> None:
    """Only what one producer sent with one key is in order: keys are on several partitions."""
    moved = [
        [record[0] + 200.0 * (record[5] % KEYS), *record[1:]]
        if record[1:4] == [GOT, "parts", "r"]
        else record
        for record in sound()
    ]
    assert judged(moved).good


def test_examples_of_one_rule_leave_room_for_the_others() -> None:
    repeated = [got(1500.0 + number, "plain", AUDIT, number) for number in range(COUNT)]
    verdict = judged([*sound(), *repeated, got(600.0, "plain", "one", COUNT)])
    assert broken(verdict) == {"repeated": COUNT, "unknown": 1}
    rules = [text.partition(":")[0] for text in verdict.examples]
    assert sorted(set(rules)) == ["repeated", "unknown"]
    assert len(rules) == EXAMPLES_MAX + 1


def test_what_has_not_come_yet_is_told_meanwhile() -> None:
    checker = Checker(TOPICS)
    checker.feed(without(sound(), [GOT, "plain", "one", "p", 5], [GOT, "plain", AUDIT]))
    missing = checker.missing(but=AUDIT)
    assert {key: [each.number for each in some] for key, some in missing.items()} == {
        ("plain", "one"): [5]
    }


def test_histories_are_written_and_read_by_time(tmp_path: Path) -> None:
    one, two = HistoryWriter(tmp_path / "1.jsonl"), HistoryWriter(tmp_path / "2.jsonl")
    for number in range(3):
        one.write(SEND, "plain", "p", number, 0.0)
        two.write(SENT, "plain", "p", number, "(1)")
    assert [record[1] for record in read_folder(tmp_path)] == [SEND, SENT] * 3


def test_a_killed_process_leaves_a_torn_line_at_most_at_the_end() -> None:
    assert list(parse_lines(['[1.0, "note", "a"]\n', '[2.0, "no'])) == [[1.0, "note", "a"]]
    with pytest.raises(ValueError, match="damaged"):
        list(parse_lines(['[2.0, "no', '[1.0, "note", "a"]\n']))
