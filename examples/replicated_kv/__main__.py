"""A replica as a process: see README.md.

python -m replicated_kv replica  zk://HOST:PORT/ROOT --port 7001
python -m replicated_kv observer zk://HOST:PORT/ROOT --port 7003
"""

from __future__ import annotations

import argparse
import asyncio
import signal

from magnetar.ledger import LedgerConfig, connect
from replicated_kv.leader import LeaderLock
from replicated_kv.log import Log
from replicated_kv.replica import Replica
from replicated_kv.service import Service

HOST = "127.0.0.1"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="replicated_kv")
    parser.add_argument("role", choices=["replica", "observer"])
    parser.add_argument("metadata", help="zk://HOST:PORT/ROOT of the cluster with the bookies")
    parser.add_argument("--name", default="kv", help="of the store")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--ensemble", type=int, default=3)
    parser.add_argument("--write-quorum", type=int, default=3)
    parser.add_argument("--ack-quorum", type=int, default=2)
    parser.add_argument("--entries-per-ledger", type=int, default=100_000)
    parser.add_argument("--session-timeout-ms", type=int, default=6_000)
    return parser.parse_args()


async def main(given: argparse.Namespace) -> None:
    config = LedgerConfig(
        ensemble_size=given.ensemble,
        write_quorum=given.write_quorum,
        ack_quorum=given.ack_quorum,
        explicit_lac_interval_ms=100,  # how far standbys may be behind an idle active replica
    )
    timeout_ms = given.session_timeout_ms
    async with connect(given.metadata, config, session_timeout_ms=timeout_ms) as client:
        log = Log(client, given.name, given.entries_per_ledger)
        lock: LeaderLock | None = None
        # The address is known, and told, once the port is: the service answers before it is ready.
        replica = Replica(log, None)
        server = await Service(replica).start(HOST, given.port)
        port = server.sockets[0].getsockname()[1]
        if given.role == "replica":
            path = f"/replicated-kv/{given.name}/leader"
            lock = LeaderLock(client.metadata, path, f"{HOST}:{port}")
            replica.lock, replica.role = lock, "standby"
        print(f"ready {HOST}:{port} {given.role}", flush=True)
        running = asyncio.create_task(replica.run())
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await asyncio.wait([running])
        stopping.cancel()
        server.close()


if __name__ == "__main__":
    asyncio.run(main(arguments()))
