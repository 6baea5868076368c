"""Which logs compaction leaves alone: damage for good, a read that fails for a while."""

from __future__ import annotations

from magnetar.bookie.space.log_trouble import TRY_AGAIN_S, TRY_AGAIN_S_MAX, LogTroubles


def test_what_cannot_be_read_is_tried_again_later_and_later() -> None:
    troubles, now_s, waits = LogTroubles(), 100.0, []
    for _ in range(15):
        troubles.unreadable([7], now_s)
        begun_s = now_s
        while troubles.left_alone(7, now_s):
            now_s += 0.5
        waits.append(now_s - begun_s)
    assert waits[:4] == [TRY_AGAIN_S, 2 * TRY_AGAIN_S, 4 * TRY_AGAIN_S, 8 * TRY_AGAIN_S]
    assert waits[-1] == TRY_AGAIN_S_MAX


def test_what_could_be_read_begins_anew() -> None:
    troubles = LogTroubles()
    for now_s in (0.0, 10.0, 20.0):
        troubles.unreadable([7], now_s)
    troubles.readable([7])
    assert not troubles.left_alone(7, 20.0)
    troubles.unreadable([7], 30.0)
    assert troubles.left_alone(7, 30.0)
    assert not troubles.left_alone(7, 30.0 + TRY_AGAIN_S)


def test_damage_stays() -> None:
    troubles = LogTroubles()
    troubles.damaged([3])
    assert troubles.left_alone(3, 1e9)
    assert not troubles.waits(3, 1e9)
    troubles.keep({4})
    assert not troubles.left_alone(3, 0.0)
