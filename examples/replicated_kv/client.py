"""A client: finds the active replica, and asks again until a request is confirmed.

Each request has a number. One that was not answered is sent again under the same number, perhaps to
another replica: it is applied once, also if its first attempt was confirmed and the answer lost.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

ANSWER_S = 10.0
PAUSE_S = 0.2


class Client:
    """``addresses``: of the replicas, ``host:port``. For one thread."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._name = secrets.token_hex(8)
        self._number = 0
        self._connection: socket.socket | None = None
        self._lines: Any = None

    def put(self, key: str, value: str, patience_s: float = 60.0) -> tuple[int, int]:
        """Returns the position at which it was confirmed. Raises ``TimeoutError``: perhaps it was,
        perhaps not."""
        answer = self._confirmed({"op": "put", "key": key, "value": value}, patience_s)
        return tuple(answer["position"])

    def delete(self, key: str, patience_s: float = 60.0) -> None:
        """As ``put``."""
        self._confirmed({"op": "delete", "key": key}, patience_s)

    def get(self, key: str, patience_s: float = 60.0) -> str | None:
        """What was written last."""
        value: str | None = self._ask_active({"op": "get", "key": key}, patience_s)["value"]
        return value

    def _confirmed(self, asked: dict[str, Any], patience_s: float) -> dict[str, Any]:
        self._number += 1
        numbered = {**asked, "client": self._name, "number": self._number}
        return self._ask_active(numbered, patience_s)

    def _ask_active(self, asked: dict[str, Any], patience_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            try:
                answer = self._ask(asked)
            except (OSError, ValueError):
                self._next_address()
            else:
                if answer["ok"]:
                    return answer
                if not answer.get("again"):
                    raise ValueError(answer["error"])
                self._next_address(answer.get("active", ""))
            time.sleep(PAUSE_S)
        raise TimeoutError(f"no replica confirms {asked['op']} within {patience_s:g} s")

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._connection is None:
            host, _, port = self._addresses[0].rpartition(":")
            self._connection = socket.create_connection((host, int(port)), timeout=ANSWER_S)
            self._lines = self._connection.makefile("rb")
        self._connection.sendall(json.dumps(asked).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise OSError("the replica has gone")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _next_address(self, active: str = "") -> None:
        self.close()
        first, *others = self._addresses
        self._addresses = [*others, first]
        if active in self._addresses:
            self._addresses.remove(active)
            self._addresses.insert(0, active)

    def close(self) -> None:
        """Idempotent; the next request connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                self._lines.close()
                connection.close()
