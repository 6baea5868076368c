"""Who leads, who is in sync, who is eligible: rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.log.partition.replication.election import (
    LiveBroker,
    elect,
    give_up,
    move,
    prefer,
    relieve,
    rescue,
    with_isr,
)
from magnetar.log.partition.replication.partition_state import (
    NO_LEADER,
    NOT_KNOWN,
    Member,
    PartitionState,
    decode_state,
    encode_state,
)
from magnetar.model.errors import MetadataFormatError

ONE, TWO, THREE = (Member(number, number * 10) for number in (1, 2, 3))
ALL = {number: LiveBroker(7, number * 10) for number in (1, 2, 3)}


def state(min_isr: int = 2, **fields: object) -> PartitionState:
    known: dict[str, object] = {
        "isr": (ONE, TWO, THREE), "leader": 1, "leader_start": 7, "leader_epoch": 4,
    }  # fmt: skip
    return PartitionState((1, 2, 3), min_isr, **(known | fields))  # type: ignore[arg-type]


def live(*numbers: int, **changed: LiveBroker) -> dict[int, LiveBroker]:
    return {number: ALL[number] for number in numbers}


def test_nothing_changes_while_all_live() -> None:
    assert elect(state(), ALL) is None


def test_the_first_replica_in_sync_takes_over_with_a_new_epoch() -> None:
    found = elect(state(), live(2, 3))
    assert found == state(isr=(TWO, THREE), leader=2, leader_epoch=5)


def test_a_follower_that_dies_leaves_and_the_leader_stays() -> None:
    assert elect(state(), live(1, 3)) == state(isr=(ONE, THREE))


def test_whoever_leaves_a_set_that_is_too_small_is_eligible() -> None:
    alone = elect(state(), live(1))
    assert alone == state(isr=(ONE,), elr=(TWO, THREE))
    nobody = elect(alone, {})
    assert nobody == state(
        isr=(), elr=(TWO, THREE, ONE), leader=NO_LEADER, leader_start=0, leader_epoch=5
    )
    assert elect(nobody, {}) is None
    back = elect(nobody, live(3))
    assert back == state(isr=(THREE,), elr=(TWO, ONE), leader=3, leader_epoch=6)
    assert with_isr(back, [THREE, ONE]) == state(isr=(THREE, ONE), leader=3, leader_epoch=6)


def test_nobody_out_of_sync_is_elected_unless_it_is_said() -> None:
    small = state(1, isr=(ONE,))
    waits = elect(small, live(2, 3))
    assert waits is not None
    assert (waits.leader, waits.isr, waits.elr) == (NO_LEADER, (), (ONE,))
    found = elect(small, live(2, 3), unclean=True)
    assert found == state(1, isr=(TWO,), leader=2, leader_epoch=5)
    said = elect(state(1, isr=(ONE,), unclean=True), live(2, 3))
    assert said == state(1, isr=(TWO,), leader=2, leader_epoch=5, unclean=True)


def led(found: PartitionState | None) -> tuple[int, int]:
    assert found is not None
    return found.leader, found.whole_since


def test_what_readers_had_is_there_unless_whoever_lives_was_elected() -> None:
    whole = state(1, isr=(ONE, TWO), whole_since=2)
    assert led(elect(whole, live(2, 3))) == (2, 2), "in sync"
    assert led(elect(state(isr=(ONE,), elr=(TWO, THREE), whole_since=2), live(3))) == (3, 2)
    unclean = elect(whole, live(3), unclean=True)
    assert unclean is not None
    assert led(unclean) == (3, NOT_KNOWN)
    again = elect(with_isr(unclean, [THREE, ONE]), live(1))
    assert led(again) == (1, NOT_KNOWN), "what was lost stays lost"
    owned = move(unclean, live(3), 3)
    assert owned is not None
    assert (owned.leader_epoch, *led(owned)) == (6, 3, 6)
    assert led(move(owned, live(3), 3)) == (3, 6)


def test_an_only_replica_that_has_forgotten_ends_what_is_whole() -> None:
    only = PartitionState((1,), 1, isr=(ONE,), leader=1, leader_start=7, whole_since=2)
    for forgets in (True, False):
        assert led(give_up(only, ALL, 1, forgets=forgets))[1] == (NOT_KNOWN if forgets else 2)
    assert led(elect(only, {1: LiveBroker(8, 99)})) == (1, NOT_KNOWN)


def test_a_state_of_a_release_that_does_not_know_the_field_says_nothing() -> None:
    whole = state(whole_since=2)
    assert decode_state(encode_state(whole), "p") == whole
    older = encode_state(whole).replace(b',"whole_since":2', b"")
    assert decode_state(older, "p") == replace(whole, whole_since=NOT_KNOWN)


def test_a_process_that_was_started_again_is_another_leader() -> None:
    again = {**ALL, 1: LiveBroker(8, 10)}
    assert elect(state(), again) == state(leader_start=8, leader_epoch=5)


def test_a_disk_that_has_forgotten_is_another_replica() -> None:
    forgot = {**ALL, 1: LiveBroker(8, 11)}
    assert elect(state(), forgot) == state(isr=(TWO, THREE), leader=2, leader_epoch=5)
    lost = state(isr=(TWO,), elr=(ONE, THREE), leader=2)
    found = elect(lost, {1: LiveBroker(8, 11)})
    assert found is not None
    assert (found.leader, found.elr) == (NO_LEADER, (THREE, TWO))


def test_the_preferred_replica_leads_again_when_it_can() -> None:
    other = state(leader=2, leader_epoch=5)
    assert prefer(other, ALL) == state(leader_epoch=6)
    assert prefer(other, live(2, 3)) is None
    assert prefer(state(isr=(TWO, THREE), leader=2), ALL) is None
    assert prefer(state(), ALL) is None


def test_who_asks_for_it_has_any_replica_lead_that_lives_where_nobody_does() -> None:
    lost = state(isr=(), elr=(ONE, TWO), leader=NO_LEADER, leader_start=0)
    assert elect(lost, live(3)) is None
    assert rescue(lost, live(3)) == state(isr=(THREE,), leader=3, leader_epoch=5)
    assert rescue(lost, {}) is None
    assert rescue(lost, live(2, 3)) == elect(lost, live(2, 3)), "who has everything comes first"
    assert rescue(state(isr=(ONE,)), ALL) is None, "it is led"


def drained(*numbers: int) -> dict[int, LiveBroker]:
    return {each: ALL[each]._replace(drains=each in numbers) for each in ALL}


def test_a_leader_that_drains_is_relieved_and_stays_in_sync() -> None:
    assert elect(state(), drained(1)) is None
    assert relieve(state(), ALL) is None
    assert relieve(state(), drained(1)) == state(leader=2, leader_epoch=5)
    assert relieve(state(), drained(1, 2)) == state(leader=3, leader_epoch=5)
    assert relieve(state(), drained(2, 3)) is None
    assert relieve(state(leader=2), drained(2)) == state(leader=1, leader_epoch=5)
    assert prefer(state(leader=2), drained(1)) is None, "it is not given back"


def test_one_that_drains_leads_where_nobody_else_can() -> None:
    for alone in (state(isr=(ONE,), elr=(TWO, THREE)), state(1, isr=(ONE,)), state()):
        assert relieve(alone, drained(1, 2, 3)) is None
    assert relieve(state(1, isr=(ONE,)), drained(1)) is None, "the others may lack something"
    dead = {each: broker for each, broker in drained(2).items() if each != 1}
    found = elect(state(), dead)
    assert found == state(isr=(TWO, THREE), leader=3, leader_epoch=5), "who drains comes last"
    only = elect(state(isr=(ONE, TWO)), {2: dead[2]})
    assert only is not None
    assert only.leader == 2


def test_the_bytes_say_the_same() -> None:
    given = state(isr=(ONE,), elr=(TWO,))
    assert decode_state(encode_state(given), "/p") == given
    unclean = state(unclean=True)
    assert decode_state(encode_state(unclean), "/p") == unclean
    before = encode_state(given).replace(b',"unclean":false', b"")
    assert decode_state(before, "/p") == given, "states of before there was such a setting"
    for data in (b"", b"[]", b'{"version":2}', b'{"version":1,"replicas":[1]}'):
        with pytest.raises(MetadataFormatError, match="/p"):
            decode_state(data, "/p")


def test_a_replica_whose_log_failed_is_out_of_sync() -> None:
    assert give_up(state(), ALL, 2, forgets=False) == state(isr=(ONE, THREE))
    led = give_up(state(), ALL, 1, forgets=False)
    assert led == state(isr=(TWO, THREE), leader=2, leader_epoch=5)
    small = state(isr=(ONE, TWO))
    eligible = state(isr=(ONE,), elr=(TWO,))
    assert give_up(small, ALL, 2, forgets=False) == eligible, "it has all that it has stored"
    assert give_up(eligible, ALL, 2, forgets=False) is None
    assert give_up(eligible, ALL, 3, forgets=False) is None, "it was not counted on"


def test_one_that_may_have_forgotten_is_not_eligible() -> None:
    """Where syncs are not waited for, a failed log may lack what it counted as stored."""
    small = state(isr=(ONE, TWO))
    # In another epoch: a fetch of before, held up somewhere, must not say that it has all.
    alone = state(isr=(ONE,), leader_epoch=5)
    assert give_up(small, ALL, 2, forgets=True) == alone
    assert give_up(state(isr=(ONE,), elr=(TWO,)), ALL, 2, forgets=True) == alone
    assert give_up(alone, ALL, 2, forgets=True) is None, "once"
    assert give_up(small, ALL, 1, forgets=True) == state(isr=(TWO,), leader=2, leader_epoch=5)
    # Whoever has all that is committed is waited for.
    waits = give_up(small, live(2), 2, forgets=True)
    assert waits is not None
    assert (waits.leader, waits.isr, waits.elr) == (NO_LEADER, (), (ONE,))
    assert elect(waits, live(2, 3)) is None
    assert elect(waits, ALL) == state(isr=(ONE,), leader_epoch=6)


def test_one_that_may_have_forgotten_goes_on_if_nobody_has_more() -> None:
    alone = state(1, isr=(ONE,))
    nobody = give_up(alone, ALL, 1, forgets=True)
    assert nobody is not None
    assert (nobody.leader, nobody.isr, nobody.elr) == (NO_LEADER, (), (ONE,))
    assert elect(nobody, ALL) == state(1, isr=(ONE,), leader_epoch=6)


def test_the_only_replica_goes_on_with_what_it_has() -> None:
    """Whoever opened its topic would lead it so; but nobody may open one that nobody leads."""
    only = PartitionState((1,), 1, isr=(ONE,), leader=1, leader_start=7, leader_epoch=4)
    nobody = elect(only, {})
    assert nobody is not None
    assert (nobody.leader, nobody.elr) == (NO_LEADER, (ONE,))
    forgot = elect(nobody, {1: LiveBroker(8, 11)})
    assert forgot is not None
    assert (forgot.leader, forgot.leader_start, forgot.leader_epoch) == (1, 8, 6)
    assert (forgot.isr, forgot.elr) == ((Member(1, 11),), ())
    assert elect(only, {1: LiveBroker(8, 11)}) == replace(forgot, leader_epoch=5)
