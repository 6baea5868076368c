"""A directory of partitions: which there are, and what is known of all of them together.

Owns the four checkpoints of offsets and the marker of an orderly end. Blocking: a job of a lane.

Rules:

* Recovery points are written after the sync that they tell of, log starts when records are deleted;
  high watermarks as they come, since each is only a lower bound of what is committed.
* The marker ``.kafka_cleanshutdown`` is written last, after every partition was closed in order,
  and removed first of all at the next start: whoever finds it has nothing to recover.
* A directory is of one cluster, whose id it keeps (``cluster``): it is not opened for another one,
  as its metadata store knows nothing of what is here.
* A partition's directory says which topic's it is before anything is in it, and is never opened for
  another topic (``doom`` says what becomes of it then).
* A recovery point on the disk is lowered before a log is cut below it, so that a log that ends
  before it was damaged.
* A removal is announced first (``removing``), durably: what is half removed is never opened. What
  checkpoints say of it goes next, and then its files: so a partition that they name and that has no
  directory has been lost, and is not made anew by whoever is counted on for what it held.
* Checkpoints name partitions, not topics. So before a partition's directory is made they say
  nothing of it any more, durably: after a crash the begin and the committed end of the log that was
  there before would be taken for the new one's, and what is acknowledged there be hidden.
* ``lineage`` is a number that stays as long as this directory holds all that it ever counted as
  stored. It is drawn anew when the directory is made, and at a start after which something may be
  missing (no orderly end, and a sync policy that lets acknowledged bytes be lost). In-sync replicas
  are named with it, so that one whose disk has forgotten is not elected by mistake.
* Which policy that was the directory says (``unsynced``), and not today's settings: whoever sets
  each-batch after a loss of power must not have what was lost by it counted on.

``lineage``, ``broker``, ``cluster``: version ``0``, then the number or the id; ``unsynced``:
version ``0``, there while syncs are not waited for. The other files:
``checkpoint_files``.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.env.files.disk import Disk
from magnetar.log.partition.checkpoint_files import (
    COMPACTED_ENDS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Partition,
    decode_offsets,
    decode_topic_id,
    encode_offsets,
    encode_topic_id,
    exists,
    read_file,
    replace_file,
)
from magnetar.log.partition.doom import HeldFiles
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.recovery import Recovered, open_log
from magnetar.log.partition.segment import LOG
from magnetar.model.errors import LogDamagedError, MetadataFormatError, OtherClusterError

CLEAN_END: Final = ".kafka_cleanshutdown"
LINEAGE: Final = "lineage"
UNSYNCED: Final = "unsynced"
BROKER: Final = "broker"
CLUSTER: Final = "cluster"
REMOVING: Final = "removing"
BROKER_MAX: Final = 1 << 31
NO_BROKER: Final = -1
_FOLDER: Final = re.compile(r"(.+)-(\d+)")


def folder_name(partition: Partition) -> str:
    topic, number = partition
    return f"{topic}-{number}"


class LogDirectory:
    """Of one process, from ``open`` to ``close``."""

    def __init__(self, disk: Disk, path: Path, policy: PartitionPolicy) -> None:
        """Use ``open``."""
        self.path = path
        self.policy = policy
        self.logs: dict[Partition, LocalLog] = {}
        self.high_watermarks: dict[Partition, int] = {}
        self.recovered: dict[Partition, Recovered] = {}
        self.lineage = 0
        self.broker = 0
        """The number of the broker whose replicas these are: it goes with the directory."""
        self.clean = False
        """Whether it was closed in order the last time."""
        self.cluster = ""
        """The id of the cluster whose partitions these are; empty: unknown."""
        self.complete = False
        """Whether no log here can lack what it counted as stored, if no file was damaged."""
        self._lock = threading.Lock()
        """Checkpoints are written by the directory's lane, and before a cut by the log's."""
        self._broken: set[Partition] = set()
        """Whose files were left as after a crash, and not opened since."""
        self._disk = disk
        self._recovery_points: dict[Partition, int] = {}
        self._log_starts: dict[Partition, int] = {}
        self._compacted_ends: dict[Partition, int] = {}
        self._written: dict[str, frozenset[Partition]] = {}
        """Which partitions each checkpoint has an offset of, as it is on the disk."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        policy: PartitionPolicy,
        draw: Callable[[], int],
        broker: int = NO_BROKER,
        cluster: str = "",
    ) -> LogDirectory:
        """``draw`` gives a number that no other directory has. ``broker``: the number that a new
        directory gets, of the broker whose disk was replaced, say; else one is drawn. ``cluster``:
        the id of the metadata store's cluster. Raises ``OtherClusterError``, ``OSError``."""
        disk.make_dir(path)
        found = cls(disk, path, policy)
        found._join(cluster)  # first: nothing is changed in another cluster's directory
        found._begin(draw, broker)
        return found

    def _join(self, cluster: str) -> None:
        data = read_file(self._disk, self.path / CLUSTER) or b""
        words = data.decode("utf-8", "replace").split()
        known = words[1] if len(words) == 2 else ""
        if known and known != cluster:
            raise OtherClusterError(
                f"the partitions in {self.path} are of cluster {known} (file {CLUSTER}), and the "
                f"metadata store is of cluster {cluster or '(none)'}: it was emptied, or is "
                "another one. Restore the store, or give this broker another partition.directory"
            )
        self.cluster = cluster
        if cluster and not known:
            replace_file(self._disk, self.path / CLUSTER, f"0\n{cluster}\n".encode())

    def _begin(self, draw: Callable[[], int], number: int) -> None:
        self.clean = exists(self._disk, self.path / CLEAN_END)
        self._recovery_points = self._offsets(RECOVERY_POINTS)
        self._log_starts = self._offsets(LOG_STARTS)
        self._compacted_ends = self._offsets(COMPACTED_ENDS)
        self.high_watermarks = self._offsets(HIGH_WATERMARKS)
        lineage = self._read_number(LINEAGE)
        durable, unsynced = self.policy.sync.durable, exists(self._disk, self.path / UNSYNCED)
        if lineage is None or not (self.clean or (durable and not unsynced)):
            lineage = draw()
            # What was committed may not be what is here at those offsets any more: an end of the
            # log that was cut and not synced can be back.
            self.high_watermarks = {}
            replace_file(self._disk, self.path / LINEAGE, f"0\n{lineage}\n".encode())
        self.lineage = lineage
        self.complete = self.clean or (durable and not unsynced)
        if unsynced and durable:  # whatever is lost by it is lost with the lineage
            self._disk.remove(self.path / UNSYNCED)
            self._disk.sync_dir(self.path)
        elif not (unsynced or durable):
            replace_file(self._disk, self.path / UNSYNCED, b"0\n")
        broker = self._read_number(BROKER)
        if broker is None:
            # Drawn: as random as the lineage is, when the directory is new.
            broker = lineage % BROKER_MAX if number == NO_BROKER else number
            replace_file(self._disk, self.path / BROKER, f"0\n{broker}\n".encode())
        self.broker = broker
        # After the lineage: a crash between the two leaves a start that nobody has counted on.
        if self.clean:
            self._disk.remove(self.path / CLEAN_END)
            self._disk.sync_dir(self.path)

    def _read_number(self, name: str) -> int | None:
        words = (read_file(self._disk, self.path / name) or b"").split()
        return int(words[1]) if len(words) == 2 and words[1].isdigit() else None

    def _offsets(self, name: str) -> dict[Partition, int]:
        path = self.path / name
        data = read_file(self._disk, path)
        if data is None:
            return {}
        try:
            found = decode_offsets(data, path)
        except MetadataFormatError:  # each is a bound that may be too low: 0 is one as well
            return {}
        self._written[name] = frozenset(found)
        return found

    def partitions(self) -> list[Partition]:
        """Whose directories there are."""
        found = []
        for name in self._disk.list(self.path):
            if (match := _FOLDER.fullmatch(name)) and not name.endswith((".tmp", "-delete")):
                found.append((match[1], int(match[2])))
        return sorted(found)

    def held(self, partition: Partition) -> HeldFiles | None:
        """What there is of it; None: nothing. Raises ``OSError``."""
        folder = self.path / folder_name(partition)
        if not exists(self._disk, folder):
            return None
        names = self._disk.list(folder)
        logs = [folder / name for name in names if LOG in name]  # also ``.log.swap``, ...
        return HeldFiles(
            self._topic_of(folder) if PARTITION_METADATA in names else "",
            any(self._disk.size(each) for each in logs),
            REMOVING in names,
        )

    def _topic_of(self, folder: Path) -> str:
        path = folder / PARTITION_METADATA
        try:
            return decode_topic_id(read_file(self._disk, path) or b"", path).hex
        except MetadataFormatError:  # then it names none
            return ""

    def open_log(
        self, partition: Partition, now_ms: int, topic_id: str = "", *, counted_on: bool = True
    ) -> LocalLog:
        """The partition's log, made if it is not there, for the topic with that id. Unless others
        have what it held (``counted_on``) it is not made anew where it has been. Raises
        ``OtherClusterError``: the files are of another topic; else as ``recovery.open_log``."""
        folder = self.path / folder_name(partition)
        held = self.held(partition)
        if held is not None and (held.removing or (topic_id and held.topic_id != topic_id)):
            other = held.topic_id or "none that is named"
            raise OtherClusterError(f"{folder} holds files of the topic {other}, not of {topic_id}")
        if held is None:
            if counted_on:
                self._check_gone(partition, folder)
            self._forget(partition)
            self._disk.make_dir(folder)
            if topic_id:  # before there is anything in it
                whose = encode_topic_id(uuid.UUID(hex=topic_id))
                replace_file(self._disk, folder / PARTITION_METADATA, whose)
        opened, found = open_log(
            self._disk,
            folder,
            self.policy,
            now_ms=now_ms,
            recovery_point=self._recovery_points.get(partition, 0) if held is not None else 0,
            log_start=self._log_starts.get(partition, 0),
            clean=self.clean and held is not None and partition not in self._broken,
            complete=self._is_complete(partition),
        )
        opened.before_cut = partial(self._lower, partition)
        opened.compacted_end = min(self._compacted_ends.get(partition, 0), opened.log_end)
        self._broken.discard(partition)
        self.logs[partition] = opened
        self.recovered[partition] = found
        return opened

    def _check_gone(self, partition: Partition, folder: Path) -> None:
        """There is no such folder, and none has been. (Nothing is known any more of one whose files
        were deleted here, nor of one in which nothing was stored.) Raises ``LogDamagedError``."""
        point = self._recovery_points.get(partition, 0)
        if self.complete and partition not in self._broken and point > 0:
            raise LogDamagedError(
                f"{folder} is gone, and held all up to offset {point} ({RECOVERY_POINTS}): restore "
                "it from a copy; or, to go on without its records, stop the broker and write 0 "
                "there"
            )

    def _is_complete(self, partition: Partition) -> bool:
        """Whether its log must have all from the start that is known of it on."""
        known = LOG_STARTS in self._written  # else it is damaged, or the directory is new
        return self.complete and known and partition not in self._broken

    def closed(self, partition: Partition, *, in_order: bool) -> None:
        """Its log is closed, by itself; what is known of it stays."""
        source = self.logs.pop(partition, None)
        if source is not None and in_order:
            self._recovery_points[partition] = source.synced_end
            self._log_starts[partition] = source.log_start
            self._compacted_ends[partition] = source.compacted_end
        elif source is not None:
            self._broken.add(partition)

    def delete_log(self, partition: Partition) -> None:
        """The partition's directory goes, and what is known of it. Raises ``OSError``."""
        self.logs.pop(partition, None)
        self._broken.discard(partition)
        folder = self.path / folder_name(partition)
        there = exists(self._disk, folder)
        if there:
            replace_file(self._disk, folder / REMOVING, b"0\n")
        # Before the folder goes: one that is known and not there has been lost.
        self._forget(partition)
        if there:
            for name in self._disk.list(folder):
                if name != REMOVING:
                    self._disk.remove(folder / name)
            self._disk.remove(folder / REMOVING)
            self._disk.remove(folder)
        self.recovered.pop(partition, None)  # last: what is there was opened, or is not clean

    def forget_lost(self, partition: Partition) -> None:
        """Its topic is deleted: if its folder is gone, nothing of it is known any more. Raises
        ``OSError``."""
        if partition in self._recovery_points and not exists(
            self._disk, self.path / folder_name(partition)
        ):
            self._forget(partition)
            self.recovered.pop(partition, None)

    def _forget(self, partition: Partition) -> None:
        """What is known of a log that was there before; it has gone. Raises ``OSError``."""
        with self._lock:
            for name, known in self._known().items():
                known.pop(partition, None)
                if partition in self._written.get(name, ()):
                    self._write(name, known)

    def _known(self) -> dict[str, dict[Partition, int]]:
        """By the name of the checkpoint that has it."""
        return {
            RECOVERY_POINTS: self._recovery_points,
            LOG_STARTS: self._log_starts,
            COMPACTED_ENDS: self._compacted_ends,
            HIGH_WATERMARKS: self.high_watermarks,
        }

    def checkpoint(self) -> None:
        """What is known of all open logs, durably. Raises ``OSError``."""
        with self._lock:
            self._checkpoint()

    def _lower(self, partition: Partition, offset: int) -> None:
        """Its log is about to be cut at ``offset`` or after it. Raises ``OSError``."""
        with self._lock:
            if self._recovery_points.get(partition, 0) > offset:
                self._recovery_points[partition] = offset
                self._write(RECOVERY_POINTS, self._recovery_points)

    def _checkpoint(self) -> None:
        points = {each: source.synced_end for each, source in self.logs.items()}
        starts = {each: source.log_start for each, source in self.logs.items()}
        self._recovery_points.update(points)
        self._log_starts.update(starts)
        ends = {each: source.compacted_end for each, source in self.logs.items()}
        self._compacted_ends.update(ends)
        for name, known in self._known().items():
            if name != COMPACTED_ENDS or name in self._written or any(known.values()):
                self._write(name, known)

    def _write(self, name: str, offsets: Mapping[Partition, int]) -> None:
        if name in (LOG_STARTS, COMPACTED_ENDS):
            offsets = {each: at for each, at in offsets.items() if at}
        replace_file(self._disk, self.path / name, encode_offsets(offsets))
        self._written[name] = frozenset(offsets)

    def _any_unrecovered(self) -> bool:
        """The process before ended by a crash, and nobody has opened some of its logs since."""
        return not self.clean and any(each not in self.recovered for each in self.partitions())

    def close(self) -> None:
        """In order. Raises ``OSError``: then the next start recovers."""
        for source in self.logs.values():
            source.close()
        self.checkpoint()
        if self._broken or self._any_unrecovered():
            return  # the next start has to look at them: it recovers all
        # Last: it says that all of the above is true.
        replace_file(self._disk, self.path / CLEAN_END, b'{"version":0,"brokerEpoch":-1}')
