"""How clients ask a replica: JSON over TCP, one object a line, answered in order.

    {"op": "put", "key": "k", "value": "v", "client": "c", "number": 1}   {"ok": true, "position":
    [7, 12]} {"op": "delete", "key": "k", "client": "c", "number": 2}
    {"op": "get", "key": "k"}       what was written last; the active replica answers
    {"op": "peek", "key": "k"}      what this replica knows: any answers, perhaps a little old
    {"op": "status"}

A refusal is ``{"ok": false, "error": ..., "active": "host:port"}``; ``"again": true`` says that the
same request may be sent again, there.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from magnetar.ledger import MetadataError
from replicated_kv.replica import BusyError, NotActiveError, Replica, UnconfirmedError
from replicated_kv.state import Command

LINE_BYTES_MAX = 1 << 20
IDLE_S = 300.0
CONNECTIONS_MAX = 500


class Service:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._connections = 0

    async def start(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._connected, host, port, limit=LINE_BYTES_MAX)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                await self._answer_all(reader, writer)
        except (OSError, TimeoutError, ValueError):
            pass  # gone, silent for long, or sending what is no line
        finally:
            self._connections -= 1
            writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                line = await reader.readline()
            if not line:
                return
            answer = await self._answer(json.loads(line))
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        replica, op = self._replica, asked.get("op")
        store = replica.log.store
        if op == "status":
            keys = len(store.values)
            return {"ok": True, "role": replica.role, "position": store.position, "keys": keys}
        if op == "peek":
            value = store.values.get(str(asked["key"]))
            return {"ok": True, "value": value, "position": store.position}
        try:
            if op == "get":
                value, position = await replica.read(str(asked["key"]))
                return {"ok": True, "value": value, "position": position}
            if op in ("put", "delete"):
                return {"ok": True, "position": await replica.submit(_command(asked))}
        except (NotActiveError, UnconfirmedError, BusyError) as error:
            told = {"ok": False, "error": str(error), "again": True}
            return {**told, "active": await self._active()}
        return {"ok": False, "error": f"op {op!r} is none of put, delete, get, peek, status"}

    async def _active(self) -> str:
        lock = self._replica.lock
        try:
            return "" if lock is None else await lock.holder()
        except MetadataError:
            return ""


def _command(asked: dict[str, Any]) -> Command:
    return Command(
        str(asked["op"]),
        str(asked["key"]),
        str(asked.get("value", "")),
        str(asked.get("client", "")),
        int(asked.get("number", 0)),
    )
