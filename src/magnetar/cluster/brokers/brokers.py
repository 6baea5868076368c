"""Which brokers there are: the registrations of all, kept in memory as long as the store would tell
of a change, and this broker's own.

A registration is an ephemeral node under the broker's id, which is its address. A broker that finds
its id taken by an earlier start takes it over: that one cannot live, its address would be in use. A
broker that finds that another took its own id ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.brokers.reports import (
    BROKERS,
    BrokerReport,
    broker_path,
    decode_report,
    encode_report,
)
from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.shared_reads import shared_children
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.env.metadata import CreateMode, MetadataStore, SessionState
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
)

log = structlog.get_logger(__name__)

BROKERS_MAX: Final = 10_000


class _SeenBroker(NamedTuple):
    report: BrokerReport | None


class Brokers:
    """The brokers that are registered now."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._nodes = WatchedNodes(metadata, _seen, BROKERS_MAX)
        self._lists = shared_children(metadata)
        self._nodes.watch_changes(self._changed)
        self._names: list[str] | None = None
        self._reports: Mapping[str, BrokerReport] | None = None
        """As the nodes in memory say: made once, and not for each who asks."""
        self._changes = 0
        self._connected = True
        self._end_watch = metadata.watch(BROKERS, self._forget)
        self._end_session_watch = metadata.watch_session(self._session_changed)

    async def reports(self) -> Mapping[str, BrokerReport]:
        """By broker id, sorted. Raises ``MetadataError``."""
        if self._reports is not None:
            return self._reports
        changes, names = self._changes, await self.names()
        seen = {name: self._nodes.known(broker_path(name)) for name in names}
        # A task for each that is asked for; most have not changed since.
        missing = [name for name, each in seen.items() if each is None]
        read = await asyncio.gather(*(self._nodes.get(broker_path(name)) for name in missing))
        seen.update(zip(missing, read, strict=True))
        reports = {
            name: each.report
            for name, each in seen.items()
            # Without one it went between the list and its node.
            if each is not None and each.report is not None
        }
        if self._connected and self._changes == changes:
            self._reports = MappingProxyType(reports)
        return reports

    async def names(self) -> list[str]:
        """The ids of all. Raises ``MetadataError``."""
        if self._names is not None:
            return self._names
        changes = self._changes
        names = await self._lists.get(BROKERS)
        if self._connected and self._changes == changes:
            self._names = names
        return names

    def _forget(self, path: str) -> None:
        self._changed(path)
        self._names = None

    def _changed(self, _path: str) -> None:
        """What was read before this is not kept."""
        self._changes += 1
        self._reports = None

    def _session_changed(self, state: SessionState) -> None:
        self._connected = state is SessionState.CONNECTED
        self._forget(BROKERS)

    def forget(self, broker_id: str) -> None:
        """Its registration was changed from here."""
        self._nodes.forget(broker_path(broker_id))
        self._forget(BROKERS)

    def close(self) -> None:
        self._end_watch()
        self._end_session_watch()
        self._nodes.close()


def _seen(path: str, value: bytes | None) -> _SeenBroker:
    if value is None:
        return _SeenBroker(None)
    try:
        return _SeenBroker(decode_report(path, value))
    except BrokerMetadataError as error:  # one that cannot be read must not hide the others
        log.warning("a broker's registration is passed over", error=str(error))
        return _SeenBroker(None)


class Registration:
    """This broker's own. ``lost`` is told when another has the id."""

    def __init__(
        self, metadata: MetadataStore, report: BrokerReport, lost: Callable[[str], None]
    ) -> None:
        self.report = report
        """What others were told last."""
        self._metadata = metadata
        self._path = broker_path(report.broker_id)
        self._lost = lost
        self._version = 0
        self._begun = False

    async def begin(self) -> None:
        """Be seen by others. Raises ``MetadataError``."""
        value = encode_report(self.report)
        for _ in range(RACES_MAX):
            try:
                await self._metadata.create(self._path, value, CreateMode.EPHEMERAL)
            except NodeExistsError:
                if not await self._is_ours():
                    await self._remove_earlier()
                    continue
            self._begun = True
            return
        raise BrokerMetadataError(
            f"{self._path} is registered again and again by another process; two brokers must not "
            "advertise the same address"
        )

    async def _is_ours(self) -> bool:
        """Ours in spite of the error: the answer was lost. Keeps the version that it has."""
        try:
            node = await self._metadata.get(self._path)
        except NoNodeError:
            return False
        self._version = node.version
        return decode_report(self._path, node.value).start == self.report.start

    async def _remove_earlier(self) -> None:
        try:
            await self._metadata.delete(self._path, self._version)
        except (NoNodeError, BadVersionError):
            return  # it went by itself, or was written: look again
        log.info("the registration of an earlier start was in place", path=self._path)

    async def tell(self, report: BrokerReport) -> None:
        """Raises ``MetadataError``."""
        try:
            self._version = await self._metadata.put(
                self._path, encode_report(report), self._version
            )
        except (NoNodeError, BadVersionError):
            if not await self._is_ours():
                self._lost(f"another process is registered as {report.broker_id}, or none is")
                return
            # An answer was lost; the version is known now.
            self._version = await self._metadata.put(
                self._path, encode_report(report), self._version
            )
        self.report = report

    async def end(self) -> None:
        """Be seen no more, if the registration is still ours. Idempotent."""
        if not self._begun:
            return
        self._begun = False
        try:
            if await self._is_ours():
                await self._metadata.delete(self._path, self._version)
        except MetadataError as error:  # then it goes with the session
            log.warning("registration not withdrawn", path=self._path, error=str(error))
