"""Records, ledgers' metadata and bookies as a broker tells of them, in place of a metadata store.

Each stands for what has the store itself (``staging.queries``, ``ledger.catalog.metadata``,
``ledger.connections.registry``) and behaves as it does, lost answers included. Entries are written
to the bookies and pass no broker.

Why: docs/adr/0085-brokers-hand-out-staged-writes.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final

from magnetar.env.metadata import Versioned
from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.model.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import LedgerMetadata, Quorums
from magnetar.model.registered_bookie import RegisteredBookie
from magnetar.pipeline.brokers.link import Address, BrokerLink, Reply
from magnetar.staging.queries import QueryRecords
from magnetar.wire.bookie.metadata import decode_ledger_metadata, encode_ledger_metadata
from magnetar.wire.pulsar.pulsar_pb2 import CommandStagedWrite as Ask

ATTEMPTS: Final = 3
"""Of a write whose answer was lost; the link itself waits for a connection."""
UNSEEN: Final = -2
"""No version of any record."""
LOOK_AGAIN_S: Final = 0.5
BOOKIES_KEPT_S: Final = 1.0


def _check(reply: Reply, missing: type[MetadataError] | type[NoSuchLedgerError]) -> Reply:
    if reply.outcome == Reply.MISSING:
        raise missing(reply.message)
    if reply.outcome == Reply.EXISTS:
        raise NodeExistsError(reply.message)
    if reply.outcome == Reply.CHANGED:
        raise BadVersionError(reply.message)
    return reply


class BrokerRecords:
    """``staging.queries.RecordStore``."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    async def get(self, query: str) -> Versioned:
        reply = await self._link.ask(Ask(action=Ask.READ_RECORD, name=query), reads=True)
        _check(reply, NoNodeError)
        return Versioned(reply.value, reply.version)

    async def create(self, query: str, value: bytes) -> None:
        ask = Ask(action=Ask.WRITE_RECORD, name=query, value=value)
        _check(await self._link.ask(ask, reads=False), NoNodeError)

    async def put(self, query: str, value: bytes, version: int) -> int:
        ask = Ask(action=Ask.WRITE_RECORD, name=query, value=value, version=version)
        return _check(await self._link.ask(ask, reads=False), NoNodeError).version

    async def sync(self) -> None:
        """Brokers never tell of a record as it was before they were asked."""

    def changes(self, query: str) -> BrokerChanges:
        return BrokerChanges(self._link, query)


class BrokerChanges(AbstractContextManager["BrokerChanges"]):
    """Waiting for a record to change, as ``env.node_changes``: the first wait ends at once."""

    def __init__(self, link: BrokerLink, query: str) -> None:
        self._link = link
        self._query = query
        self._version = UNSEEN

    async def wait(self, at_most_s: float) -> None:
        ask = Ask(action=Ask.AWAIT_RECORD, name=self._query, version=self._version)
        ask.wait_ms = int(at_most_s * 1000)
        try:
            reply = await self._link.ask(ask, reads=True, wait_s=at_most_s)
        except MetadataError:
            await asyncio.sleep(min(at_most_s, LOOK_AGAIN_S))  # whoever waits looks, and is told
        else:
            self._version = reply.version

    def __exit__(self, *_: object) -> None:
        """Nothing waits at the broker between two calls."""


class BrokerCatalog:
    """``ledger.catalog.seam.LedgerCatalog`` of staged ledgers."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    async def create_new(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """When an answer is lost another is made: one that nobody writes is left over, and goes as
        those of failed attempts do."""
        ask = Ask(action=Ask.CREATE_LEDGER, value=encode_ledger_metadata(metadata))
        for attempt in range(ATTEMPTS):
            try:
                return _ledger(await self._link.ask(ask, reads=False))
            except MetadataUnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        ask = Ask(action=Ask.READ_LEDGER, ledger_id=ledger_id)
        return _ledger(await self._link.ask(ask, reads=True))

    async def write(self, metadata: LedgerMetadata, version: int) -> int:
        ledger_id, value = metadata.ledger_id, encode_ledger_metadata(metadata)
        ask = Ask(action=Ask.WRITE_LEDGER, ledger_id=ledger_id, value=value, version=version)
        for attempt in range(ATTEMPTS):
            try:
                reply = await self._link.ask(ask, reads=False)
                return _check(reply, NoSuchLedgerError).version
            except MetadataUnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
            if await self.read(ledger_id) == (metadata, version + 1):
                return version + 1  # it was ours that was written
        raise AssertionError("the last attempt returns or raises")

    async def delete(self, ledger_id: int, version: int = -1) -> None:
        assert version < 0, "staged ledgers are deleted whatever their version"
        ask = Ask(action=Ask.DELETE_LEDGER, ledger_id=ledger_id)
        for attempt in range(ATTEMPTS):
            try:
                reply = await self._link.ask(ask, reads=False)
            except MetadataUnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            if reply.outcome == Reply.MISSING and attempt:
                return  # the attempt whose answer was lost has removed it
            _check(reply, NoSuchLedgerError)
            return


def _ledger(reply: Reply) -> tuple[LedgerMetadata, int]:
    _check(reply, NoSuchLedgerError)
    return decode_ledger_metadata(reply.ledger_id, reply.value), reply.version


class BrokerBookies:
    """``ledger.connecting.RegisteredBookies``."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._known: Mapping[BookieId, RegisteredBookie] = MappingProxyType({})
        self._known_until_s = 0.0

    async def _all(self) -> Mapping[BookieId, RegisteredBookie]:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._known_until_s:
            reply = await self._link.ask(Ask(action=Ask.BOOKIES), reads=True)
            found = [
                RegisteredBookie(
                    BookieId(told.bookie_id),
                    told.host,
                    told.port,
                    {pair.key: pair.value for pair in told.properties},
                    told.refusal if told.HasField("refusal") else None,
                    told.lacks_space,
                )
                for told in reply.bookies
            ]
            self._known = {bookie.bookie_id: bookie for bookie in found}
            self._known_until_s = loop.time() + BOOKIES_KEPT_S
        return self._known

    async def available(self) -> Mapping[BookieId, Address]:
        found = (await self._all()).values()
        return {each.bookie_id: (each.host, each.port) for each in found if each.refusal is None}

    async def all(self) -> Mapping[BookieId, Address]:
        return {each.bookie_id: (each.host, each.port) for each in (await self._all()).values()}

    async def properties(self) -> Mapping[BookieId, Mapping[str, str]]:
        return {each.bookie_id: each.properties for each in (await self._all()).values()}

    async def refusals(self) -> Mapping[BookieId, ReadOnlyReason]:
        return {
            each.bookie_id: ReadOnlyReason(each.refusal, each.lacks_space)
            for each in (await self._all()).values()
            if each.refusal is not None
        }


async def quorums_told(link: BrokerLink, topic: str | None) -> Quorums:
    """How what is written for the topic is to be replicated; None: for any."""
    reply = await link.ask(Ask(action=Ask.QUORUMS, name=topic or ""), reads=True)
    return Quorums(reply.ensemble_size, reply.write_quorum, reply.ack_quorum)


def query_records(link: BrokerLink) -> QueryRecords:
    return QueryRecords(BrokerRecords(link))
