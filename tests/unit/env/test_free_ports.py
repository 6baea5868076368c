"""Ports for servers that start later."""

from __future__ import annotations

import socket

import pytest

from magnetar.env.network.free_ports import FIRST, KEPT, LAST, free_port
from magnetar.model.errors import StartError


def test_none_is_handed_out_twice_and_none_is_the_kernels_to_give() -> None:
    ports = [free_port() for _ in range(500)]
    assert len({*ports}) == 500
    assert all(FIRST <= port <= LAST for port in ports)


def test_what_another_process_has_just_been_handed_is_passed_over() -> None:
    """Nobody listens there yet."""
    had = free_port()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark,
        pytest.raises(OSError, match="in use"),
    ):
        mark.bind(("127.0.0.1", had))
    with socket.socket() as server:
        server.bind(("127.0.0.1", had))
        server.listen()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark:
        mark.bind(("127.0.0.1", had + KEPT + 7))
        assert had + KEPT + 7 not in [free_port() for _ in range(KEPT + 20)]


def test_one_that_somebody_has_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        had = taken.getsockname()[1]
        assert had not in [free_port() for _ in range(LAST + 1 - FIRST)]


def test_an_address_that_is_not_this_machines_is_said() -> None:
    with pytest.raises(StartError, match=r"http\.port = 0: cannot listen on 192\.0\.2\.1"):
        free_port("192.0.2.1", "http.port")
