"""A log that is compacted, cut, copied and opened again at random has what a table of its keys
has."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from magnetar.log.partition import compaction
from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.compacting import LogCompactor
from magnetar.log.partition.compaction import records_of
from magnetar.log.partition.limits import Cleanup, Kept, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from magnetar.wire.kafka.batches import TRANSACTIONAL
from tests.unit.log.partition.kit import NOW_MS, SMALL, batch, marker, opened

TINY = replace(SMALL, segments=SegmentLimits(segment_bytes_max=500, index_interval_bytes=150))
KEPT = Kept(cleanup=Cleanup.COMPACT, tombstones_kept_ms=1000)
KEYS = [b"a", b"b", b"c", b"k" * 40]

Row = tuple[int, bytes | None, bytes | None]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()),
                                           min_size=1, max_size=4)),
        st.tuples(st.just("part"), st.integers(0, 1), st.sampled_from(KEYS)),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("seal")),
        st.tuples(st.just("compact"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([10, 1500])),
        st.tuples(st.just("copy")),
    ),
    min_size=5,
    max_size=60,
)  # fmt: skip


class ModelledLog:
    """``last``: what a reader of what is committed must find; None: the key is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, _ = opened(folder, TINY)
        self.now_ms = NOW_MS
        self.last: dict[bytes, bytes | None] = {}
        self.rows: dict[int, Row] = {}
        self.parts: dict[int, list[Row]] = {}
        self.sequences = [0, 0]
        self.aborted: set[int] = set()
        self.count = 0

    def value(self, gone: bool) -> bytes | None:
        self.count += 1
        return None if gone else b"%d" % self.count + bytes(30)

    def put(self, keys: list[tuple[bytes, bool]]) -> None:
        values = [self.value(gone) for _, gone in keys]
        data = batch(values, keys=[key for key, _ in keys], time_ms=self.now_ms)
        first = self.log.append_as_leader(data, 0, self.now_ms).first_offset
        for at, ((key, _), value) in enumerate(zip(keys, values, strict=True)):
            self.rows[first + at] = first + at, key, value
            self.last[key] = value

    def part(self, producer: int, key: bytes) -> None:
        value = self.value(gone=self.count % 5 == 0)
        sent = (producer, 0, self.sequences[producer])
        data = batch([value], keys=[key], producer=sent, attributes=TRANSACTIONAL,
                     time_ms=self.now_ms)  # fmt: skip
        first = self.log.append_as_leader(data, 0, self.now_ms).first_offset
        self.sequences[producer] += 1
        self.rows[first] = first, key, value
        self.parts.setdefault(producer, []).append(self.rows[first])

    def end(self, producer: int, commits: bool) -> None:
        self.log.append_as_leader(marker(producer, 0, commits=commits), 0, self.now_ms)
        parts = self.parts.pop(producer, [])
        if not commits:
            self.aborted.update(offset for offset, _, _ in parts)
        visible = self.visible()
        for offset, key, _ in parts:
            assert key is not None
            held = [each for each in visible if each[1] == key]
            if commits and (not held or held[-1][0] <= offset):
                self.last[key] = self.rows[offset][2]

    def visible(self) -> list[Row]:
        """What a reader of all that is committed gets."""
        waiting = {offset for parts in self.parts.values() for offset, _, _ in parts}
        hidden = waiting | self.aborted
        return [each for each in records(self.log) if each[0] not in hidden]

    def compact(self, give_up_after: int, keys_max: int) -> None:
        """``give_up_after`` replacements the pass ends; 0: not before its end."""
        compactor = LogCompactor(self.log, keys_max * compaction.KEY_COST_BYTES)
        end = self.log.log_end
        found = compactor.look(KEPT, committed_end=end, now_ms=self.now_ms)
        pass_ = compactor.begin(KEPT, found.end_offset, self.now_ms)
        steps, done = pass_.steps(), 0
        for ready in steps:
            if ready is not None:
                assert pass_.put(ready)
                done += 1
                if done == give_up_after:
                    steps.close()
                    return
        pass_.end()

    def open(self, clean: bool) -> None:
        known = self.sequences_known()
        end, compacted_end = self.log.log_end, self.log.compacted_end
        if clean:
            self.log.close()
        else:
            self.log.abandon()
        self.log, told = opened(self.folder, TINY, clean=clean)
        self.log.compacted_end = compacted_end
        assert (self.log.log_end, told.cuts) == (end, [])
        assert known.items() <= self.sequences_known().items()

    def sequences_known(self) -> dict[int, tuple[int, int]]:
        """(last sequence, its offset) of each producer."""
        states = self.log.producers.producers.items()
        return {each: state.batches[-1][:2] for each, state in states if state.batches}

    def copy(self) -> None:
        """A follower gets all of it, and ends where it does."""
        folder = self.folder.with_name("copy-0")
        shutil.rmtree(folder, ignore_errors=True)
        copied, _ = opened(folder, TINY)
        while (found := self.log.range_from(copied.log_end, self.log.log_end, 400)) is not None:
            assert copied.append_as_follower(found.read(), self.now_ms) is not None
        assert copied.log_end == self.log.log_end
        assert records(copied) == records(self.log)
        copied.abandon()

    def check(self) -> None:
        found = records(self.log)
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert all(self.rows[each[0]] == each for each in found)
        seen: dict[bytes, bytes | None] = {}
        for _, key, value in self.visible():
            assert key is not None
            seen[key] = value
        gone = {key for key, value in self.last.items() if value is None}
        assert {key: seen[key] for key in seen if seen[key] is not None} == {
            key: value for key, value in self.last.items() if key not in gone
        }


def records(log: LocalLog) -> list[Row]:
    found: list[Row] = []
    for segment in log.segments:
        for position, header in segment.headers():
            data = segment.file.pread(header.byte_count, position)
            if not header.control:
                found += [
                    (header.base_offset + each.offset_delta, each.key, each.value)
                    for each in records_of(data, read_header(data))
                ]
    return found


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
@given(steps=STEPS)
def test_a_log_has_what_a_table_has(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(compaction, "KEYS_LEAST", 1)
        model = ModelledLog(Path(folder) / "t-0")
        for name, *arguments in [
            *steps,
            ("seal",),
            ("compact", 0, 100),
            ("copy",),
            ("open", False),
        ]:
            if name == "wait":
                model.now_ms += arguments[0]  # type: ignore[operator]
            elif name == "seal":
                if model.log.segments[-1].byte_count:
                    model.log.roll(model.log.log_end, model.now_ms)
            else:
                getattr(model, str(name))(*arguments)
            model.check()
        model.log.abandon()
