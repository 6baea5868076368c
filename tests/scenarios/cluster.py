"""Processes of a cluster under faults: bookies and brokers as an operator runs them.

A bookie keeps its data directory and its port over restarts, so it stays the same bookie; a wiped
one has lost its directory and stays down.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from magnetar.env.network.free_ports import free_port
from tests.roles import Role
from tests.scenarios.link import Link

SESSION_MS = 4000
"""A process that the machine gives no time for two seconds keeps its session."""
SETTINGS = (
    "--set", f"metadata.session_timeout_ms={SESSION_MS}",
    "--set", "bookie.journal.file_bytes=8MiB",
    "--set", "bookie.write_cache_bytes=16MiB",
)  # fmt: skip


class BookieMachine:
    """One bookie: a directory, a port, and the process that runs on them now and then."""

    def __init__(
        self, folder: Path, index: int, metadata_url: str, settings: Sequence[str] = SETTINGS
    ) -> None:
        self.data_dir = folder / f"bookie-{index}"
        self.port = free_port()
        self.bookie_id = f"127.0.0.1:{self.port}"
        self._folder = folder
        self._metadata_url = metadata_url
        self._settings = settings
        self._role: Role | None = None

    @property
    def started(self) -> bool:
        return self._role is not None

    @property
    def role(self) -> Role:
        assert self._role is not None, f"{self.bookie_id} was never started"
        return self._role

    def begin(self) -> Role:
        """Start without waiting until it is ready."""
        data = ("--data-dir", str(self.data_dir), "--port", str(self.port))
        self._role = Role(
            self._folder, "bookie", *data, "--metadata", self._metadata_url, *self._settings
        )
        return self._role

    def start(self) -> None:
        self.begin().wait_ready()

    def kill(self) -> None:
        self.role.kill()

    def wipe(self) -> None:
        """The machine is lost with everything on it."""
        self.kill()
        shutil.rmtree(self.data_dir)


class LinkedMachine(BookieMachine):
    """A bookie whom others reach by a link that can go silent, while its session goes on."""

    def __init__(
        self, folder: Path, index: int, metadata_url: str, settings: Sequence[str]
    ) -> None:
        hosts = f"127.0.7.{index + 1}", f"127.0.8.{index + 1}"
        placed = (
            "--set", f"bookie.host={hosts[0]}", "--set", f"bookie.advertised_host={hosts[1]}"
        )  # fmt: skip
        super().__init__(folder, index, metadata_url, (*settings, *placed))
        self.bookie_id = f"{hosts[1]}:{self.port}"
        self.link = Link(f"{hosts[0]}:{self.port}", (hosts[1], self.port))


class Cluster:
    """Bookies on one metadata URL. Brokers are started by the scenarios that want one."""

    def __init__(
        self,
        folder: Path,
        metadata_url: str,
        bookies: int,
        settings: Sequence[str] = SETTINGS,
    ) -> None:
        self.folder = folder
        self.metadata_url = metadata_url
        self._settings = settings
        self.bookies = [
            BookieMachine(folder, index, metadata_url, settings) for index in range(bookies)
        ]
        self.brokers: list[Role] = []

    def start_bookies(self) -> None:
        """All that do not run, at once."""
        begun = [each.begin() for each in self.bookies if not (each.started and each.role.running)]
        for role in begun:
            role.wait_ready()

    def add_bookie(self) -> BookieMachine:
        """A new, empty machine joins."""
        added = BookieMachine(self.folder, len(self.bookies), self.metadata_url, self._settings)
        self.bookies.append(added)
        added.start()
        return added

    def add_linked_bookie(self) -> LinkedMachine:
        """As ``add_bookie``; the link must be entered before anybody can reach it."""
        added = LinkedMachine(self.folder, len(self.bookies), self.metadata_url, self._settings)
        self.bookies.append(added)
        added.start()
        return added

    def bookie(self, bookie_id: str) -> BookieMachine:
        return next(each for each in self.bookies if each.bookie_id == bookie_id)

    def begin_broker(
        self,
        port: int,
        quorums: Sequence[int],
        metadata_url: str | None = None,
        more: Sequence[str] = (),
    ) -> Role:
        """Start a broker, with ``more`` arguments, without waiting until it is ready."""
        size, write_quorum, ack_quorum = quorums
        arguments = (
            "--port", str(port),
            "--http-port", "0",
            "--metadata", metadata_url or self.metadata_url,
            "--set", f"metadata.session_timeout_ms={SESSION_MS}",
            "--set", f"ledger.ensemble_size={size}",
            "--set", f"ledger.write_quorum={write_quorum}",
            "--set", f"ledger.ack_quorum={ack_quorum}",
        )  # fmt: skip
        role = Role(self.folder, "broker", *arguments, *more)
        self.brokers.append(role)
        return role

    def end(self) -> None:
        for role in self.brokers:
            role.kill()
        for bookie in self.bookies:
            if bookie.started:
                bookie.kill()
