"""Brokers that share topics, as processes, and their REST."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx

from magnetar.env.network.free_ports import free_port
from tests.roles import Role
from tests.scenarios.cluster import Cluster

WAIT_S = 60.0


class Brokers:
    """Some brokers, each with ports that it keeps over restarts. Those of ``read_only`` own
    nothing, and are not in the service URL. ``more``: arguments of some."""

    def __init__(
        self,
        cluster: Cluster,
        quorums: Sequence[int],
        count: int = 3,
        settings: Sequence[str] = (),
        read_only: Sequence[int] = (),
        more: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """``settings``: as ``NAME=VALUE``."""
        self.cluster = cluster
        self._read_only = read_only
        self._settings = [word for each in settings for word in ("--set", each)]
        self._more = more
        self._quorums = quorums
        self.ports = [(free_port(), free_port()) for _ in range(count)]
        self.roles: list[Role | None] = [None] * count
        owners = [port for i, (port, _) in enumerate(self.ports) if i not in read_only]
        self.service_url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in owners)
        self.rest = httpx.Client(timeout=WAIT_S, follow_redirects=True)

    def start(self, *indexes: int) -> None:
        for index in indexes:
            port, http_port = self.ports[index]
            more = ["--http-port", str(http_port), *self._settings, *self._more.get(index, ())]
            if index in self._read_only:
                more.append("--read-only")
            self.roles[index] = self.cluster.begin_broker(port, self._quorums, more=more)
        for index in indexes:
            self.role(index).wait_ready()

    def role(self, index: int) -> Role:
        role = self.roles[index]
        assert role is not None
        return role

    def ask(self, index: int, path: str, method: str = "GET") -> Any:
        answer = self.rest.request(method, f"http://{self.broker_id(index)}{path}")
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def dispatched(self, index: int) -> int:
        """Entries that consumers had from that broker since it started."""
        text = self.rest.get(f"http://{self.broker_id(index)}/metrics").text
        found = re.search(r"^magnetar_broker_dispatched_entries_total (\S+)$", text, re.M)
        assert found is not None, text
        return int(float(found[1]))

    def broker_id(self, index: int) -> str:
        return f"127.0.0.1:{self.ports[index][1]}"

    def owners(self, index: int) -> Mapping[str, str]:
        """Bundle -> id of its owner, as that broker sees it."""
        found = self.ask(index, "/magnetar/v1/namespaces/public/default/bundles")
        return {each["bundle"]: each["owner"] for each in found}

    def loaded(self) -> list[int]:
        """Which of the brokers own anything, and run."""
        running = [i for i, role in enumerate(self.roles) if role is not None and role.running]
        owners = set(self.owners(running[0]).values())
        return [index for index in running if self.broker_id(index) in owners]
