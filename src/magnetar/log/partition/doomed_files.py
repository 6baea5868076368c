"""A process's doomed partitions: which there are, since when, and their removal.

Owns the list and its timer. ``doom`` decides; this asks the store and the disk. Nothing of it is
stored: after a start whatever no state claims is found anew, and its grace begins anew.

Rules:

* What is open is not doomed. Looks, openings and removals exclude one another (``opening``).
* The files' topic is read from the disk right before they are removed, and the store is asked right
  before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

import structlog

from magnetar.env.files.disk import Lane
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.doom import (
    Claim,
    Doom,
    JudgedDoom,
    StoreAnswer,
    claim,
    judge,
    superseded,
)
from magnetar.log.partition.log_directory import LogDirectory, folder_name
from magnetar.log.partition.replication.state_witness import Witness
from magnetar.log.partition.replication.wake import Wake
from magnetar.model.errors import MagnetarError, MetadataError, OtherClusterError

log = structlog.get_logger(__name__)

GRACE_MS: Final = 60_000
"""[file.delete.delay.ms]"""
SCAN_S: Final = 600.0
"""Directories that nobody has opened are looked for so often."""
LOOK_S_LEAST: Final = 0.2
_WAITS: Final = "their topic was deleted"


@dataclass(slots=True)
class _Doomed:
    since_s: float
    told: str = ""
    """What becomes of them, as the log was told last."""


class DoomedPartitions:
    """``lane``: the directory's. ``witness`` None: nobody can say that a topic was deleted, so that
    nothing ever is."""

    def __init__(
        self,
        directory: LogDirectory,
        lane: Lane,
        opening: asyncio.Lock,
        witness: Witness | None,
        grace_ms: int,
    ) -> None:
        self._directory = directory
        self._lane = lane
        self._opening = opening
        self._witness = witness
        self._grace_ms = grace_ms
        self._doomed: dict[Partition, _Doomed] = {}
        self._wake = Wake()
        self._scanned_s: float | None = None

    def __len__(self) -> int:
        return len(self._doomed)

    def add(self, partition: Partition) -> None:
        """Its state is gone; it is closed. Why that is so is asked for, and told, at once."""
        if partition not in self._doomed:
            self._doomed[partition] = _Doomed(_now_s())
            self._wake.set()

    # -- opening ------------------------------------------------------------------------------

    async def make_way(self, partition: Partition, topic_id: str) -> None:
        """Before the partition is opened for a state with ``topic_id``, ``opening`` held: what lies
        there is that topic's now, or nothing. Raises ``OtherClusterError``: it is of another topic,
        and must not go; ``MetadataError``, ``OSError``."""
        directory = self._directory
        held = await self._lane.run(lambda: directory.held(partition))
        what = Claim.SERVE if held is None else claim(held, topic_id)
        if held is not None and what in (Claim.REPLACE, Claim.REFUSE):
            certain = what is Claim.REPLACE and await self._superseded(partition, topic_id)
            if not certain:
                whose = f"topic {held.topic_id}" if held.topic_id else "no topic that they name"
                raise OtherClusterError(
                    f"files of {folder_name(partition)} in {directory.path} are of {whose}, and "
                    f"the metadata store (of cluster {directory.cluster or '(unknown)'}, as far as "
                    f"it could be asked) has topic {topic_id or '(without an id)'}: it is not "
                    "known that the former one was deleted. Restore the store, or move the files "
                    "away"
                )
            log.warning(
                "files of a deleted topic make room for the next one of its name",
                partition=folder_name(partition),
                was=held.topic_id,
                now=topic_id,
            )
        if what is not Claim.SERVE:
            await self._lane.run(lambda: directory.delete_log(partition))
        if self._doomed.pop(partition, None) is not None and what is Claim.SERVE:
            log.warning(
                "a partition's state is back: its files are served again",
                partition=folder_name(partition),
            )

    async def _superseded(self, partition: Partition, topic_id: str) -> bool:
        if self._witness is None:
            return False
        said = await self._witness.ask(partition)
        cluster = self._directory.cluster
        if cluster and said.cluster == cluster and said.topic_id != topic_id:
            raise MetadataError(
                f"{folder_name(partition)} was deleted or made again while it was opened"
            )
        return superseded(said, cluster, topic_id)

    # -- looking ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at what is doomed, and now and then for what nobody has opened, until cancelled."""
        look_s = max(LOOK_S_LEAST, self._grace_ms / 2000)
        while True:
            await self._wake.wait(look_s)
            if self._scanned_s is None or _now_s() - self._scanned_s >= SCAN_S:
                await self._tried(self._scan())
            for partition in list(self._doomed):
                await self._tried(self._look(partition))

    async def _tried(self, looking: Awaitable[None]) -> None:
        try:
            await looking
        except (OSError, MagnetarError) as error:  # the next look tries again
            log.info("doomed partitions cannot be looked at now", error=str(error))

    async def _scan(self) -> None:
        """What is here, not open, and has no state."""
        if self._witness is None:
            return
        directory = self._directory
        async with self._opening:
            here = set(await self._lane.run(directory.partitions)) - directory.logs.keys()
        lost = here - await self._witness.listed() if here else set()
        self._scanned_s = _now_s()
        for partition in sorted(lost):
            if partition not in directory.logs:
                self.add(partition)

    async def _look(self, partition: Partition) -> None:
        verdict = await self._judged(partition)
        if verdict is Doom.REMOVE:
            # Once more, and now nothing is opened meanwhile. (Not at once: a store that does not
            # answer would keep all openings waiting.)
            async with self._opening:
                verdict = await self._judged(partition)
                if verdict is Doom.REMOVE:
                    await self._lane.run(lambda: self._directory.delete_log(partition))
                    log.info("files of a partition are removed", partition=folder_name(partition))
        if verdict in (Doom.REMOVE, Doom.CLAIMED):
            self._doomed.pop(partition, None)

    async def _judged(self, partition: Partition) -> Doom:
        directory, doomed = self._directory, self._doomed.get(partition)
        before = await self._lane.run(lambda: directory.held(partition))
        topic_id = "" if before is None else before.topic_id
        said = await self._answer(partition, topic_id)
        held = await self._lane.run(lambda: directory.held(partition))
        if doomed is None or held is None or partition in directory.logs:
            return Doom.CLAIMED
        if held.topic_id != topic_id:  # it was asked of another topic's files
            return Doom.WAIT
        past_ms = int((_now_s() - doomed.since_s) * 1000)
        found = judge(held, said, directory.cluster, past_ms, self._grace_ms)
        self._tell(partition, doomed, found)
        return found.verdict

    def _tell(self, partition: Partition, doomed: _Doomed, found: JudgedDoom) -> None:
        """Once for each reason."""
        if found.verdict is Doom.KEEP and doomed.told != found.why:
            doomed.told = found.why
            log.warning(
                "a partition has no state in the metadata store any more: it is not served, and "
                "its files are kept",
                partition=folder_name(partition),
                directory=str(self._directory.path),
                why=found.why,
            )
        elif found.verdict is Doom.WAIT and doomed.told != _WAITS:
            doomed.told = _WAITS
            log.info(
                "a partition's topic was deleted: its files go after a while",
                partition=folder_name(partition),
                kept_ms=self._grace_ms,
            )

    async def _answer(self, partition: Partition, topic_id: str) -> StoreAnswer | None:
        if self._witness is None:
            return None
        try:
            return await self._witness.ask(partition, topic_id)
        except MetadataError:
            return None


def _now_s() -> float:
    """A clock that does not go back."""
    return asyncio.get_running_loop().time()
