"""Tenants, namespaces and policies that come and go, requests that are refused, and what is no
request at all."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from tests.chaos.churn.server import PERSISTENT, Server, UnexpectedAnswerError

NO_REQUESTS: Final = (
    b"GET / HTTP/1.0\r\n\r\n",
    struct.pack(">II", 40, 36) + bytes(36),
    struct.pack(">I", 1 << 30),
    b"",
)


SCHEMA: Final = {"type": "STRING", "schema": "", "properties": {}}


def tenants(server: Server, name: str) -> None:
    tenant, namespace = f"/admin/v2/tenants/{name}", f"/admin/v2/namespaces/{name}/ns"
    topic = f"/admin/v2/persistent/{name}/ns/t"
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    server.ask("PUT", tenant, {"allowedClusters": [], "adminRoles": []})
    server.ask("PUT", namespace, {})
    server.ask("POST", f"{namespace}/retention", retention)
    server.ask("POST", f"{namespace}/messageTTL", 100)
    server.ask("PUT", topic)
    server.ask("POST", f"{topic}/retention", retention)
    server.ask("PUT", f"{topic}/subscription/s")
    for what in ("stats", "internalStats", "subscriptions"):
        server.ask("GET", f"{topic}/{what}")
    server.ask("GET", "/metrics")
    server.ask("DELETE", f"{topic}/subscription/s")
    server.ask("DELETE", topic, force="true")
    server.ask("PUT", f"{topic}-parts/partitions", 2)
    server.ask("POST", f"/admin/v2/schemas/{name}/ns/t-parts/schema", SCHEMA)
    server.ask("DELETE", namespace, force="true")
    server.ask("DELETE", tenant)


def refused(server: Server, name: str) -> None:
    for path in ("/admin/v2/none", f"{PERSISTENT}/{name}-none/stats", f"{PERSISTENT}/x/y/z"):
        answer = server.rest.get(path)
        if answer.status_code != 404:
            raise UnexpectedAnswerError(f"GET {path}: {answer.status_code}")
    answer = server.rest.put(f"/admin/v2/tenants/{name}-bad", content=b"{")
    if not 400 <= answer.status_code < 500:
        raise UnexpectedAnswerError(f"half a tenant: {answer.status_code}")


def no_requests(server: Server, _name: str) -> None:
    for each in (*NO_REQUESTS, os.urandom(300)):
        for port in (server.broker_port, server.kafka_port, server.http_port):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(0.05)
                try:
                    connection.sendall(each)
                    connection.recv(100)
                except OSError:  # a time-out too: whether there is an answer is not asked here
                    continue


WORK: Final = (tenants, refused, no_requests)
