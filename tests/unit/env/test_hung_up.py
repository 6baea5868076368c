"""The other side's end of a connection is seen without reading from it."""

from __future__ import annotations

import socket

from magnetar.env.network.hung_up import hung_up


def test_who_sends_no_more_is_seen_whatever_came_before() -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    (quiet, _), (sent, sender), (over, ender), (last, talker) = pairs
    all_of = [each.fileno() for each in (quiet, sent, over, last)]
    try:
        sender.sendall(b"more")
        assert hung_up(all_of) == []
        ender.close()
        talker.sendall(b"the last")
        talker.shutdown(socket.SHUT_WR)
        assert hung_up(all_of) == [over.fileno(), last.fileno()]
        assert hung_up([]) == []
    finally:
        for pair in pairs:
            for each in pair:
                each.close()
