"""REST over a broker with its logs in memory; ledgers are a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from magnetar.admin import api
from magnetar.admin.backlogs import BacklogService
from magnetar.admin.messages import MessageService
from magnetar.admin.peers import NoPeers, Peers
from magnetar.admin.schemas import SchemaService
from magnetar.admin.termination import TerminationService
from magnetar.admin.views import BookieView, EntryView, FragmentView, LedgerView, WaitingSpaceView
from magnetar.app.broker import Broker
from magnetar.env.health import Health
from magnetar.model.errors import BookieUnavailableError, NoSuchLedgerError
from magnetar.protocols.entry_formats import EitherEntryFormat
from tests.doubles.admin import (
    broker_service,
    compaction_service,
    deletion_service,
    namespace_service,
    policy_service,
    topic_service,
)


def application(
    broker: Broker,
    ledgers: FakeLedgers,
    health: Health | None = None,
    registry: CollectorRegistry | None = None,
    before_scrape: Sequence[Callable[[], None]] = (),
) -> FastAPI:
    """The application that serves this broker from now on, and no longer the one before."""
    topics = topic_service(broker)
    messages = MessageService(topics, EitherEntryFormat())
    _Served.parts = {
        "registry": registry or CollectorRegistry(),
        "namespaces": namespace_service(broker),
        "topics": topics,
        "ledgers": ledgers,
        "health": health or Health(),
        "schemas": SchemaService(broker.control),
        "policies": policy_service(broker),
        "brokers": broker_service(broker),
        "compaction": compaction_service(broker),
        "deletions": deletion_service(broker),
        "messages": messages,
        "termination": TerminationService(topics, messages, Peers(NoPeers())),
        "backlogs": BacklogService(topics, broker.look_at_backlogs),
    }
    _Served.before_scrape[:] = before_scrape
    return _application()


class _Served:
    """A part of the one application: whatever it is asked, it asks the part that is served now."""

    parts: ClassVar[dict[str, object]] = {}
    before_scrape: ClassVar[list[Callable[[], None]]] = []

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_Served.parts[self._name], attribute)


@cache
def _application() -> FastAPI:
    """It has some two hundred paths, and takes longer to make than most tests of it."""
    parts: dict[str, Any] = {name: _Served(name) for name in _Served.parts}
    return api.create(before_scrape=_Served.before_scrape, **parts)


class FakeLedgers:
    def __init__(self) -> None:
        self.unavailable = False

    async def ledgers(self, after: int, limit: int) -> list[LedgerView]:
        return [await self.ledger(n) for n in (1, 2, 3) if n > after][:limit]

    async def ledger(self, ledger_id: int) -> LedgerView:
        if ledger_id > 3:
            raise NoSuchLedgerError(f"there is no ledger {ledger_id}")
        return LedgerView(
            ledger_id=ledger_id,
            state="CLOSED",
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            digest="CRC32C",
            last_entry_id=9,
            length=100,
            created_ms=0,
            custom={"log": "a"},
            fragments=[FragmentView(first_entry_id=0, bookies=["b:1"])],
        )

    async def entries(self, ledger_id: int, first: int, count: int) -> list[EntryView]:
        if self.unavailable:
            raise BookieUnavailableError("bookie b:1 does not answer")
        await self.ledger(ledger_id)
        return [
            EntryView(
                ledger_id=ledger_id,
                entry_id=n,
                last_add_confirmed=n - 1,
                payload="aGVsbG8=",
                payload_bytes=5,
                message=None,
            )
            for n in range(first, min(first + count, 10))
        ]

    async def bookies(self) -> list[BookieView]:
        waiting = WaitingSpaceView(
            byte_count=5 << 20, deleted_ledgers=3, next_look="2026-01-02T03:04:05+00:00"
        )
        return [
            BookieView(bookie_id="b:1", available=True, local=True, waiting_space=waiting),
            BookieView(bookie_id="b:2", available=True, local=False),
        ]
