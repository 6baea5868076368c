"""A network of the harness's own: a server is a host in a network namespace; links go silent.

``enter`` starts this program again in namespaces of its own (processes, mounts, network; of users
too when it is not root), from which nothing leaves the machine and of which nothing is left when
the program ends, however it does: the kernel takes processes, links and mounts with it.

In there the program's own network is a bridge, ``clients``; each host hangs on it. A link is cut
by a wrong entry in a host's table of neighbours: its packets to the other go to a card that
nobody has. No error comes of it, on either side, and open connections stay open: what a partition
looks like. Addresses are those that are set aside for tests of networks (RFC 2544).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Final

from magnetar.env.child_process import ends_with

CLIENTS: Final = "clients"
_INSIDE: Final = "MAGNETAR_CHAOS_INSIDE"
_NOBODY: Final = "02:00:00:00:00:01"
_NETWORK: Final = "198.18.0."
_WAYS: Final = (
    ("unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child"),
    ("unshare", "-U", "-r", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child"),
)


def inside() -> bool:
    return _INSIDE in os.environ


def way_in() -> Sequence[str] | None:
    """The command that runs another in namespaces of its own; None where this is not allowed."""
    probe = "ip link add br0 type bridge && mount -t tmpfs tmpfs /mnt"
    for way in _WAYS:
        try:
            done = subprocess.run([*way, "sh", "-c", probe], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return way
    return None


def enter(way: Sequence[str], module: str, arguments: Sequence[str]) -> None:
    """Become ``module``, in there. Does not return."""
    os.environ[_INSIDE] = "1"
    os.execvp(way[0], [*way, sys.executable, "-m", module, *arguments])


def run(*command: str, given: str = "") -> None:
    """Raises ``RuntimeError`` with what the command says."""
    done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}; given: {given}")


class Namespaces:
    """Hosts in network namespaces. ``cut`` and ``heal`` may be called by any thread."""

    description: Final = "network namespaces, links that go silent"

    def __init__(self, hosts: Sequence[str]) -> None:
        self._addresses = {CLIENTS: _NETWORK + "1"} | {
            host: f"{_NETWORK}{number}" for number, host in enumerate(hosts, 11)
        }
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        run(
            "ip", "-batch", "-",
            given=f"link set lo up\nlink add {CLIENTS} type bridge\n"
            f"addr add {self._addresses[CLIENTS]}/24 dev {CLIENTS}\nlink set {CLIENTS} up\n",
        )  # fmt: skip
        for host in self._addresses:
            if host != CLIENTS:
                self._add(host)

    def _add(self, host: str) -> None:
        holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
            preexec_fn=ends_with(os.getpid(), SIGKILL),
        )
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in its namespace from here on
        self._holders[host] = holder
        outer = f"to-{self._addresses[host].rpartition('.')[2]}"
        run(
            "ip", "-batch", "-",
            given=f"link add {outer} type veth peer name eth0 netns {holder.pid}\n"
            f"link set {outer} master {CLIENTS} up\n",
        )  # fmt: skip
        self._ip(
            host,
            f"link set lo up\naddr add {self._addresses[host]}/24 dev eth0\nlink set eth0 up\n",
        )

    def _ip(self, host: str, given: str) -> None:
        run(*self.command(host, ["ip", "-batch", "-"]), given=given)

    @property
    def hosts(self) -> list[str]:
        return list(self._addresses)

    def address(self, host: str) -> str:
        """Where it listens."""
        return self._addresses[host]

    def told(self, host: str) -> str:
        """What it tells others of where it is."""
        return self._addresses[host]

    def reached(self, _caller: str, host: str, port: int) -> tuple[str, int]:
        """Where a caller finds it."""
        return self._addresses[host], port

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """``command`` as it is run on that host."""
        if host == CLIENTS:
            return list(command)
        return ["nsenter", f"--net=/proc/{self._holders[host].pid}/ns/net", "--", *command]

    def cut(self, host: str, others: Iterable[str], both: bool = True) -> Callable[[], None]:
        """Nothing that ``host`` sends reaches the others, nor, with ``both``, the other way round.
        Returns what undoes it. A link that is cut twice is whole when both are undone."""
        pairs = [(host, other) for other in others if other != host]
        if both:
            pairs += [(other, source) for source, other in pairs]
        self._change(pairs, 1)
        return lambda: self._change(pairs, -1)

    def _change(self, pairs: Sequence[tuple[str, str]], by: int) -> None:
        with self._lock:
            lines: dict[str, list[str]] = {}
            for source, to in pairs:
                count = self._cuts[source, to] = self._cuts.get((source, to), 0) + by
                if count == max(by, 0):  # the first cut of it, or the last one undone
                    lines.setdefault(source, []).append(self._line(source, to, by))
            for source, each in lines.items():
                self._ip(source, "".join(each))

    def _line(self, source: str, to: str, by: int) -> str:
        card = CLIENTS if source == CLIENTS else "eth0"
        where = f"{self._addresses[to]} dev {card}"
        if by > 0:
            return f"neigh replace {where} lladdr {_NOBODY} nud permanent\n"
        return f"neigh del {where}\n"

    def end(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()


def small_disk(at: Path, size_bytes: int) -> None:
    """A file system of its own, in the program's own namespace of mounts."""
    at.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(at))
