"""A counter that survives its owner: a replicated state machine on ledgers.

    python replicated_counter.py zk://localhost:2181/cluster active     # type numbers
    python replicated_counter.py zk://localhost:2181/cluster standby    # type "take over"

The active replica writes every command to its ledger before it applies it. A standby follows the
same ledgers. When it takes over it recovers the last ledger: that fences the old owner off, so
that nothing the old owner writes from then on is ever confirmed, and keeps everything that was.
"""

from __future__ import annotations

import asyncio
import sys

from magnetar.ledger import (
    BadVersionError,
    LedgerClient,
    LedgerClosedError,
    LedgerConfig,
    LedgerFencedError,
    LedgerWriter,
    connect,
)

QUORUMS = LedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
ENTRIES_PER_LEDGER = 1000


class Counter:
    """The state. Commands must be deterministic: every replica applies the same ones."""

    def __init__(self) -> None:
        self.total = 0
        self.applied = 0

    def apply(self, command: bytes) -> None:
        self.total += int(command)
        self.applied += 1


class Replica:
    """A counter and its place in the log: the ledgers of the list ``counter``."""

    def __init__(self, client: LedgerClient) -> None:
        self.counter = Counter()
        self._client = client
        self._list = client.ledger_list("counter")
        self._next: dict[int, int] = {}  # ledger -> first entry that is not applied
        self._writer: LedgerWriter | None = None

    # -- standby ------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Apply what the owner writes, for ever."""
        while True:
            for ledger_id in (await self._list.read()).ledger_ids:
                await self._follow_ledger(ledger_id)
            await asyncio.sleep(0.1)  # the next ledger is added after the last is closed

    async def _follow_ledger(self, ledger_id: int) -> None:
        async with await self._client.open_no_recovery(ledger_id) as tail:
            async for entry in tail.follow(self._next.get(ledger_id, 0)):
                self._apply(ledger_id, entry.entry_id, bytes(entry.payload))

    def _apply(self, ledger_id: int, entry_id: int, command: bytes) -> None:
        self.counter.apply(command)
        self._next[ledger_id] = entry_id + 1

    # -- active -------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Become the owner: fence and replay what is there, then begin a ledger of our own.

        Raises ``BadVersionError`` when another replica has done so at the same time.
        """
        listed = await self._list.read()
        for ledger_id in listed.ledger_ids:
            reader = await self._client.open(ledger_id)  # recovers the one that is open
            following = self._next.get(ledger_id, 0)
            while following <= reader.last_add_confirmed:
                for entry in await reader.read(following, max_entries=100, max_bytes=1 << 20):
                    self._apply(ledger_id, entry.entry_id, bytes(entry.payload))
                    following = entry.entry_id + 1
        writer = await self._client.create({"application": b"replicated-counter"})
        try:
            await self._list.write((*listed.ledger_ids, writer.ledger_id), listed.version)
        except BadVersionError:
            await writer.close()
            await self._client.delete(writer.ledger_id)
            raise
        self._writer = writer

    async def submit(self, command: bytes) -> int:
        """Log the command, then apply it; the new total. Raises ``LedgerFencedError`` or
        ``LedgerClosedError`` when another replica has taken over: stop, or stand by."""
        assert self._writer is not None, "take over first"
        if self._writer.last_add_confirmed + 1 >= ENTRIES_PER_LEDGER:
            await self._writer.close()
            await self.take_over()
        writer = self._writer
        entry_id = await writer.add([command])
        self._apply(writer.ledger_id, entry_id, command)
        return self.counter.total

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()


async def run_active(replica: Replica) -> None:
    await replica.take_over()
    print(f"active at {replica.counter.total}", flush=True)
    try:
        while line := await read_line():
            print(f"total {await replica.submit(line.encode())}", flush=True)
        await replica.close()
    except (LedgerFencedError, LedgerClosedError, BadVersionError) as error:
        print(f"lost: {error}", flush=True)


async def run_standby(replica: Replica) -> None:
    following = asyncio.create_task(replica.follow())
    print("standing by", flush=True)
    while (line := await read_line()) == "look":
        print(f"seen {replica.counter.applied}", flush=True)
    following.cancel()
    await asyncio.wait([following])
    if line == "take over":
        await run_active(replica)


async def read_line() -> str:
    """The next line of the standard input; empty at its end."""
    line: str = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return line.strip()


async def main(metadata_url: str, role: str) -> None:
    async with connect(metadata_url, QUORUMS) as client:
        replica = Replica(client)
        await (run_active(replica) if role == "active" else run_standby(replica))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
