"""The network of ``make chaos``: links that go silent one way or both, and are whole again."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.chaos.whole import network
from tests.chaos.whole.network import CLIENTS, Namespaces
from tests.chaos.whole.relays import Relays

PORT = 9107
WAIT_S = 2.0
HOSTS = ("one", "two", "three")
LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print(flush=True)
    while True:
        server.accept()[0].sendall(b"hello")
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7), 2.0) as connection:
    connection.settimeout(2.0)
    sys.exit(connection.recv(5) != b"hello")
"""


def ask(links: Namespaces, host: str, other: str) -> subprocess.Popen[bytes]:
    command = links.command(host, [sys.executable, "-c", ASK, links.address(other)])
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def all_links(links: Namespaces) -> dict[tuple[str, str], bool]:
    """Whether they are whole; all are tried at once."""
    asking = {
        (host, other): ask(links, host, other)
        for host in (*HOSTS, CLIENTS)
        for other in HOSTS
        if other != host
    }
    return {link: each.wait() == 0 for link, each in asking.items()}


def walk() -> None:
    """In namespaces of its own (``python -m tests.integration.test_chaos_network``)."""
    links = Namespaces(HOSTS)
    links.start()
    listening = [
        subprocess.Popen(
            links.command(host, [sys.executable, "-c", LISTEN, links.address(host), "7"]),
            stdout=subprocess.PIPE,
        )
        for host in HOSTS
    ]
    for each in listening:
        assert each.stdout is not None
        each.stdout.readline()
    assert all(all_links(links).values())

    heal = links.cut("one", ["two"])
    cut = {link for link, whole in all_links(links).items() if not whole}
    assert cut == {("one", "two"), ("two", "one")}, cut

    heal_more = links.cut("one", links.hosts)
    heal()
    cut = {link for link, whole in all_links(links).items() if not whole}
    assert cut == {link for link in all_links(links) if "one" in link}, "it is cut off still"
    heal_more()
    assert all(all_links(links).values())

    heal = links.cut("three", [CLIENTS], both=False)
    assert not all_links(links)[CLIENTS, "three"], "its answers do not come"
    heal()
    for each in listening:
        each.kill()
    links.end()


def test_links_go_silent_and_are_whole_again() -> None:
    way = network.way_in()
    if way is None:
        pytest.skip("namespaces are not allowed here")
    done = subprocess.run(
        [*way, sys.executable, "-m", "tests.integration.test_chaos_network"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_relays_go_silent_and_are_whole_again() -> None:
    """``common`` is reached by each through a relay of its own."""
    relays = Relays({"server": (PORT,), "common": (PORT,), "third": ()}, ("common",))
    relays.start()
    greeter = subprocess.Popen(
        [sys.executable, "-c", LISTEN, relays.address("server"), str(PORT)], stdout=subprocess.PIPE
    )
    common = subprocess.Popen(
        [sys.executable, "-c", LISTEN, relays.address("common"), str(PORT)], stdout=subprocess.PIPE
    )
    try:
        for each in (greeter, common):
            assert each.stdout is not None
            each.stdout.readline()

        def whole() -> list[bool]:
            links = ((CLIENTS, "server"), ("server", "common"), (CLIENTS, "common"))
            return [answers(*relays.reached(caller, to, PORT)) for caller, to in links]

        assert whole() == [True, True, True]
        heal = relays.cut("server", ["common"])
        assert whole() == [True, False, True]
        heal_more = relays.cut("server", relays.hosts)
        assert whole() == [False, False, True]
        heal()
        assert whole() == [False, False, True]
        heal_more()
        assert whole() == [True, True, True]
        with pytest.raises(ValueError, match="alone"):
            relays.cut("common", ["server"])
    finally:
        for each in (greeter, common):
            each.kill()
            each.wait()
        relays.end()


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), WAIT_S) as connection:
            connection.settimeout(WAIT_S)
            return connection.recv(5) == b"hello"
    except OSError:
        return False


if __name__ == "__main__":
    walk()
