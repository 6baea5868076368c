"""A directory of partitions: its checkpoints, its end, and what its disk remembers."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from magnetar.env.files.disk import RealDisk
from magnetar.log.partition.checkpoint_files import (
    decode_offsets,
    decode_topic_id,
    encode_offsets,
)
from magnetar.log.partition.doom import HeldFiles
from magnetar.log.partition.limits import SyncPolicy
from magnetar.log.partition.log_directory import CLEAN_END, LogDirectory
from magnetar.model.errors import MetadataFormatError, OtherClusterError
from tests.unit.log.partition.kit import NOW_MS, SMALL, filled

ONE, TWO = ("topic-1", 0), ("b", 12)
TOPIC_ID = uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210")


def numbers() -> Iterator[int]:
    return count(100)


def opened(
    path: Path, lineages: Iterator[int], sync: SyncPolicy = SyncPolicy.EACH_BATCH
) -> LogDirectory:
    return LogDirectory.open(RealDisk(), path, replace(SMALL, sync=sync), lambda: next(lineages))


def test_what_was_closed_in_order_has_nothing_to_recover(tmp_path: Path) -> None:
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    assert (directory.partitions(), directory.clean) == ([], False)
    for partition in (ONE, TWO):
        filled(directory.open_log(partition, NOW_MS, TOPIC_ID.hex), 40)
    directory.logs[TWO].delete_records(30)
    directory.high_watermarks[ONE] = 17
    directory.close()
    metadata = (tmp_path / "b-12" / "partition.metadata").read_bytes()
    assert metadata == b"version: 0\ntopic_id: ASNFZ4mrze_-3LqYdlQyEA"
    assert decode_topic_id(metadata, tmp_path) == TOPIC_ID
    with pytest.raises(MetadataFormatError, match="names no topic id"):
        decode_topic_id(b"\xff" + metadata, tmp_path)

    again = opened(tmp_path, lineages)
    assert again.clean
    assert not (tmp_path / CLEAN_END).exists(), "it counts for one start"
    assert again.partitions() == [TWO, ONE]
    assert again.high_watermarks[ONE] == 17
    for partition in (ONE, TWO):
        log = again.open_log(partition, NOW_MS)
        assert log.log_end == directory.logs[partition].log_end
        assert log.log_start == (30 if partition == TWO else 0)
        assert again.recovered[partition].segments_read == 0


@pytest.mark.parametrize("started_anew", [False, True])
def test_checkpoints_say_nothing_of_the_next_log_of_a_name(
    tmp_path: Path, started_anew: bool
) -> None:
    """What is deleted, and made again, begins where it begins: also after a crash, which leaves the
    checkpoints as they were."""
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    filled(directory.open_log(ONE, NOW_MS, TOPIC_ID.hex), 40)
    filled(directory.open_log(TWO, NOW_MS, TOPIC_ID.hex), 40)
    for partition in (ONE, TWO):
        directory.logs[partition].delete_records(30)
        directory.high_watermarks[partition] = 40
    directory.checkpoint()
    directory.logs[ONE].abandon()
    directory.delete_log(ONE)
    assert ONE not in directory.recovered, "what is gone is not held in memory"
    if started_anew:
        directory.logs[TWO].abandon()
        directory = opened(tmp_path, lineages)
        directory.open_log(TWO, NOW_MS)
    made = directory.open_log(ONE, NOW_MS, uuid.UUID(int=7).hex)
    assert (made.log_start, made.log_end) == (0, 0)
    assert ONE not in directory.high_watermarks
    filled(made, 35)
    made.sync()
    for each in directory.logs.values():
        each.abandon()
    again = opened(tmp_path, lineages)
    found = again.open_log(ONE, NOW_MS)
    assert (found.log_start, found.log_end) == (0, made.log_end)
    assert again.recovered[ONE].segments_read == len(found.segments), "nothing of it is believed"
    assert ONE not in again.high_watermarks
    assert again.open_log(TWO, NOW_MS).log_start == 30
    assert again.high_watermarks[TWO] == 40


def test_checkpoints_say_nothing_of_what_is_made_where_a_folder_was_lost(tmp_path: Path) -> None:
    """Others have what it held. A crash comes before the next checkpoint."""
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    filled(directory.open_log(ONE, NOW_MS), 40)
    directory.logs[ONE].delete_records(30)
    directory.high_watermarks[ONE] = 40
    directory.checkpoint()
    directory.logs[ONE].abandon()
    shutil.rmtree(tmp_path / "topic-1-0")
    directory = opened(tmp_path, lineages)
    made = directory.open_log(ONE, NOW_MS, counted_on=False)
    assert (made.log_start, made.log_end) == (0, 0)
    filled(made, 5)
    made.abandon()
    again = opened(tmp_path, lineages)
    found = again.open_log(ONE, NOW_MS)
    assert (found.log_start, found.log_end) == (0, made.log_end)
    assert ONE not in again.high_watermarks


def test_a_log_that_has_failed_is_looked_through_when_it_is_opened_again(tmp_path: Path) -> None:
    """By the same process, whatever the directory was at its start."""
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    filled(directory.open_log(ONE, NOW_MS), 5)
    directory.close()
    directory = opened(tmp_path, lineages)
    assert directory.clean
    log = directory.open_log(ONE, NOW_MS)
    first = filled(log, 2)
    log.abandon()
    directory.closed(ONE, in_order=False)
    path = log.segments[-1].path(".log")
    path.write_bytes(path.read_bytes()[:-5])
    assert directory.open_log(ONE, NOW_MS).log_end == first[-1]
    assert directory.recovered[ONE].cuts


def test_a_crash_is_recovered_from_the_recovery_point(tmp_path: Path) -> None:
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    log = directory.open_log(ONE, NOW_MS)
    filled(log, 60)
    directory.checkpoint()
    filled(log, 3)
    log.abandon()
    again = opened(tmp_path, lineages)
    assert not again.clean
    found = again.open_log(ONE, NOW_MS)
    assert found.log_end == log.log_end
    assert again.recovered[ONE].segments_read <= 2 < len(found.segments)


@pytest.mark.parametrize("sync", SyncPolicy)
def test_the_lineage_says_whether_something_may_be_missing(
    tmp_path: Path, sync: SyncPolicy
) -> None:
    lineages = numbers()
    directory = opened(tmp_path, lineages, sync)
    directory.open_log(ONE, NOW_MS)
    assert directory.lineage == 100
    directory.high_watermarks[ONE] = 5
    directory.close()
    assert opened(tmp_path, lineages, sync).lineage == 100, "an orderly end loses nothing"
    again = opened(tmp_path, lineages, sync)
    after_crash = again.lineage
    assert after_crash == (100 if sync.durable else 101)
    assert again.high_watermarks == ({ONE: 5} if sync.durable else {}), "of another disk's log"
    assert opened(tmp_path / "new", lineages, sync).lineage > after_crash


def test_checkpoints_are_kafkas_text(tmp_path: Path) -> None:
    text = encode_offsets({ONE: 5, TWO: 1 << 40})
    assert text == b"0\n2\nb 12 1099511627776\ntopic-1 0 5\n"
    assert decode_offsets(text, tmp_path) == {ONE: 5, TWO: 1 << 40}
    for bad in (b"", b"1\n0\n", b"0\n2\na 1 1\n", b"0\n1\na b c\n", b"0\nx\n"):
        with pytest.raises(MetadataFormatError, match=str(tmp_path)):
            decode_offsets(bad, tmp_path)


def test_files_are_opened_for_their_own_topic_only(tmp_path: Path) -> None:
    directory = opened(tmp_path, numbers())
    assert directory.held(ONE) is None
    filled(directory.open_log(ONE, NOW_MS, TOPIC_ID.hex), 10)
    assert directory.held(ONE) == HeldFiles(TOPIC_ID.hex, has_records=True)
    directory.close()
    again = opened(tmp_path, numbers())
    with pytest.raises(OtherClusterError, match=TOPIC_ID.hex):
        again.open_log(ONE, NOW_MS, uuid.UUID(int=5).hex)
    again.delete_log(ONE)
    assert again.open_log(ONE, NOW_MS, uuid.UUID(int=5).hex).log_end == 0
    assert again.held(ONE) == HeldFiles(uuid.UUID(int=5).hex)


def test_what_is_half_removed_is_never_opened(tmp_path: Path) -> None:
    class Failing(RealDisk):
        def remove(self, path: Path) -> None:
            if path.name == "partition.metadata":
                raise OSError(5, "the disk fails")
            super().remove(path)

    directory = LogDirectory.open(Failing(), tmp_path, SMALL, lambda: 7)
    filled(directory.open_log(ONE, NOW_MS, TOPIC_ID.hex), 10)
    with pytest.raises(OSError, match="fails"):
        directory.delete_log(ONE)
    again = opened(tmp_path, numbers())
    held = again.held(ONE)
    assert held is not None
    assert held.removing
    with pytest.raises(OtherClusterError):
        again.open_log(ONE, NOW_MS, TOPIC_ID.hex)
    again.delete_log(ONE)
    assert again.held(ONE) is None


def test_a_directory_is_of_one_cluster(tmp_path: Path) -> None:
    lineages = numbers()

    def of(cluster: str) -> LogDirectory:
        return LogDirectory.open(
            RealDisk(), tmp_path, SMALL, lambda: next(lineages), cluster=cluster
        )

    assert of("").cluster == "", "of before clusters had ids"
    of("one").close()
    for other in ("two", ""):
        with pytest.raises(OtherClusterError, match="are of cluster one"):
            of(other)
    assert of("one").clean, "nothing was changed meanwhile"


def test_one_log_that_was_left_as_by_a_crash_has_all_recovered(tmp_path: Path) -> None:
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    for partition in (ONE, TWO):
        filled(directory.open_log(partition, NOW_MS), 5)
    directory.logs[ONE].abandon()
    directory.closed(ONE, in_order=False)
    directory.close()
    again = opened(tmp_path, lineages)
    assert not again.clean
    again.open_log(ONE, NOW_MS)
    again.open_log(TWO, NOW_MS)
    again.close()
    assert opened(tmp_path, lineages).clean, "it was opened, and closed in order"


def test_each_batch_after_a_loss_of_power_does_not_bring_back_what_it_took(tmp_path: Path) -> None:
    """As whoever is warned of it does."""
    lineages = numbers()
    opened(tmp_path, lineages, SyncPolicy.INTERVAL).close()
    before = opened(tmp_path, lineages, SyncPolicy.INTERVAL)
    after = opened(tmp_path, lineages)  # it was not closed
    assert after.lineage != before.lineage
    assert opened(tmp_path, lineages).lineage == after.lineage, "it has waited for syncs since"
    in_order = opened(tmp_path, lineages, SyncPolicy.OPERATING_SYSTEM)
    assert in_order.lineage != opened(tmp_path, lineages, SyncPolicy.OPERATING_SYSTEM).lineage


def test_logs_that_nobody_has_opened_since_a_crash_are_not_closed_in_order(tmp_path: Path) -> None:
    """A broker that cannot reach the metadata store ends in order, and has opened none."""
    lineages = numbers()
    directory = opened(tmp_path, lineages)
    log = directory.open_log(ONE, NOW_MS)
    first = filled(log, 5)
    filled(directory.open_log(TWO, NOW_MS), 5)
    for each in directory.logs.values():
        each.abandon()
    path = log.segments[-1].path(".log")
    path.write_bytes(path.read_bytes()[:-5])
    between = opened(tmp_path, lineages)
    between.open_log(TWO, NOW_MS)
    between.close()
    again = opened(tmp_path, lineages)
    assert not again.clean
    assert again.open_log(ONE, NOW_MS).log_end == first[-1], "what was cut off is found"
    again.open_log(TWO, NOW_MS)
    again.close()
    assert opened(tmp_path, lineages).clean
