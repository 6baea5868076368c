"""Whose files are, and when they go: the rules, row by row."""

from __future__ import annotations

import pytest

from magnetar.log.partition.doom import (
    Claim,
    Doom,
    HeldFiles,
    StoreAnswer,
    claim,
    judge,
    superseded,
)

OURS, OTHER = "a" * 32, "b" * 32
GRACE_MS = 1000
HELD = HeldFiles(OURS, has_records=True)
NAMELESS = HeldFiles("", has_records=True)
DELETED = StoreAnswer("c1", rooted=True, topic_id=None)


@pytest.mark.parametrize(
    ("held", "wanted", "expected"),
    [
        (HELD, OURS, Claim.SERVE),
        (HELD, OTHER, Claim.REPLACE),
        (HELD, "", Claim.REFUSE),
        (NAMELESS, OURS, Claim.REFUSE),
        (NAMELESS, "", Claim.SERVE),
        (HeldFiles(OURS), OTHER, Claim.CLEAR),
        (HeldFiles(), OURS, Claim.CLEAR),
        (HeldFiles(OURS), OURS, Claim.SERVE),
        (HeldFiles(OURS, has_records=True, removing=True), OURS, Claim.CLEAR),
    ],
)
def test_what_is_done_before_a_partition_is_opened(
    held: HeldFiles, wanted: str, expected: Claim
) -> None:
    assert claim(held, wanted) is expected


def test_another_topic_of_the_name_ends_a_former_one_in_its_own_cluster_only() -> None:
    made_anew = StoreAnswer("c1", rooted=True, topic_id=OTHER)
    assert superseded(made_anew, "c1", OTHER)
    assert not superseded(made_anew, "c2", OTHER), "another cluster's store"
    assert not superseded(StoreAnswer("", rooted=True, topic_id=OTHER), "", OTHER), (
        "no id says nothing"
    )
    assert not superseded(made_anew, "c1", OURS), "it was made anew once more"
    assert not superseded(DELETED, "c1", OTHER)


@pytest.mark.parametrize(
    ("held", "said", "cluster", "doomed_ms", "expected"),
    [
        (HELD, DELETED, "c1", GRACE_MS, Doom.REMOVE),
        (HELD, DELETED, "c1", GRACE_MS - 1, Doom.WAIT),
        (HELD, None, "c1", 10 * GRACE_MS, Doom.KEEP),
        (HELD, DELETED, "c2", 10 * GRACE_MS, Doom.KEEP),
        (HELD, StoreAnswer("", rooted=False, topic_id=None), "c1", 10 * GRACE_MS, Doom.KEEP),
        (HELD, StoreAnswer("c1", rooted=False, topic_id=None), "c1", 10 * GRACE_MS, Doom.KEEP),
        (HELD, StoreAnswer("", rooted=True, topic_id=None), "", 10 * GRACE_MS, Doom.KEEP),
        (HELD, StoreAnswer("c1", rooted=True, topic_id=OURS), "c1", 10 * GRACE_MS, Doom.CLAIMED),
        (HELD, StoreAnswer("c1", rooted=True, topic_id=OTHER), "c1", GRACE_MS, Doom.REMOVE),
        (HELD, DELETED._replace(noted=False), "c1", 10 * GRACE_MS, Doom.KEEP),
        (HELD, StoreAnswer("c1", True, OTHER, noted=False), "c1", GRACE_MS, Doom.REMOVE),
        (NAMELESS, DELETED, "c1", 10 * GRACE_MS, Doom.KEEP),
        (HeldFiles(), DELETED, "c1", GRACE_MS, Doom.REMOVE),
        (HeldFiles("", has_records=True, removing=True), None, "c1", 0, Doom.REMOVE),
    ],
)
def test_what_becomes_of_doomed_files(
    held: HeldFiles, said: StoreAnswer | None, cluster: str, doomed_ms: int, expected: Doom
) -> None:
    found = judge(held, said, cluster, doomed_ms, GRACE_MS)
    assert found.verdict is expected
    assert found.why


def test_who_keeps_files_is_told_what_to_do() -> None:
    other = judge(HELD, StoreAnswer("c2", rooted=True, topic_id=None), "c1", GRACE_MS, GRACE_MS)
    assert "c2" in other.why
    assert "c1" in other.why
    assert "restore" in other.why
    assert "does not answer" in judge(HELD, None, "c1", GRACE_MS, GRACE_MS).why
