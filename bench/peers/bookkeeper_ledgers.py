"""Ledgers by BookKeeper's own client (``LedgersPeer.java``), for ``magnetar.proving``."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from magnetar.env.child_process import ends_with
from magnetar.model.errors import LedgerError, LedgerRecoveryError
from magnetar.proving.ledgers import LedgerWork, Owner

PROGRAM: Final = Path(__file__).with_name("LedgersPeer.java")
ANSWER_S: Final = 180.0


class BookKeeperClient:
    """The process. ``java``: the command with its class path."""

    def __init__(self, java: Sequence[str], metadata_uri: str, log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*java, str(PROGRAM), metadata_uri],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=ends_with(os.getpid(), signal.SIGKILL),
            )
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: str, wanted: str) -> str:
        """What follows ``wanted`` in the answer. Raises ``LedgerError``, if it is refused
        ``LedgerRecoveryError``."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{command}\n".encode())
        process.stdin.flush()
        line = b""
        if select.select([process.stdout], [], [], ANSWER_S)[0]:
            line = process.stdout.readline()
        said, _, rest = line.decode().strip().partition(" ")
        if said == "refused":
            raise LedgerRecoveryError(rest)
        if said != wanted:
            log = " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])
            raise LedgerError(f"BookKeeper's client has answered {command!r} by {line!r}: {log}")
        return rest

    def kill(self) -> None:
        process = self._process
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


class BookKeeperOwner(Owner):
    """See ``Owner``."""

    def __init__(self, client: BookKeeperClient, ack_quorum: int) -> None:
        self._client = client
        self.ledger_id = int(client.ask(f"create {ack_quorum}", "ledger"))

    async def append(self, messages: int) -> None:
        await asyncio.to_thread(self._client.ask, f"add {messages}", "added")

    async def close(self) -> None:
        await asyncio.to_thread(self._client.ask, "close", "closed")

    async def abandon(self) -> None:
        await asyncio.to_thread(self._client.ask, "abandon", "abandoned")


class BookKeeperLedgers(LedgerWork):
    """See ``LedgerWork``."""

    def __init__(self, client: BookKeeperClient) -> None:
        self._client = client

    @asynccontextmanager
    async def owner(self, ack_quorum: int) -> AsyncIterator[Owner]:
        yield BookKeeperOwner(self._client, ack_quorum)

    async def read(self, ledger_id: int) -> list[int]:
        said = await asyncio.to_thread(self._client.ask, f"read {ledger_id}", "read")
        return [int(each) for each in said.split()]
