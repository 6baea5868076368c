"""The parts below the bookie: marks, entry logs, location index, caches, ledger records."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.ledgers.ledger_state import inspect_entries
from magnetar.bookie.storage import location_index
from magnetar.bookie.storage.entry_log import EntryLogReader, EntryLogWriter
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    decode_footer,
    encode_record_headers,
    log_ids,
    log_path,
)
from magnetar.bookie.storage.entry_runs import RecordRun
from magnetar.bookie.storage.location_index import LocationIndex, UsageChange
from magnetar.bookie.storage.marks import MarkFile, Marks, decode_marks, encode_marks
from magnetar.bookie.storage.read_cache import ReadCache
from magnetar.bookie.storage.write_cache import WriteCache, WriteHalf
from magnetar.env.files.disk import RealDisk
from magnetar.model.errors import BadRequestError, BookieIOError, ConfigError
from tests.unit.bookie.storage_kit import WatchedDisk, entry, flip_bit

POSITIONS = (JournalPosition(3, 512), JournalPosition(9, 4096))

# -- what a newer version wrote ---------------------------------------------------------------


def test_a_newer_mark_is_refused_and_stays(tmp_path: Path) -> None:
    """Taken for damaged it was replaced, and the bookie denied nothing any more."""
    body = bytearray(encode_marks(Marks(0, 1, POSITIONS))[:-4])
    body[7] = 3  # the version
    data = bytes(body) + b"more" + struct.pack(">I", crc32c(bytes(body) + b"more"))
    (tmp_path / "lastmark").write_bytes(data)
    with pytest.raises(ConfigError, match=r"lastmark .*format is 3.* or a newer one"):
        MarkFile(RealDisk(), tmp_path).load(0, 1, 2)
    assert (tmp_path / "lastmark").read_bytes() == data


def test_a_newer_location_index_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "index"
    LocationIndex(path).close()
    with_one_more = {name: Options(raw_mode=True) for name in (*Rdict.list_cf(str(path)), "later")}
    raw = Options(raw_mode=True)
    raw.create_missing_column_families(True)
    Rdict(str(path), raw, column_families=with_one_more).close()
    with pytest.raises(BookieIOError, match=r"families not opened: later \(A newer version .*use"):
        LocationIndex(path)


# -- marks ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=4
    ),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_marks_round_trip(pairs: list[tuple[int, int]], limbo: bool, epoch: int) -> None:
    positions = tuple(JournalPosition(*pair) for pair in pairs)
    marks = Marks(1, 3, positions, limbo, epoch, index_sequence=2 * epoch)
    assert decode_marks(encode_marks(marks)) == marks


def test_a_mark_of_format_1_is_read() -> None:
    body = encode_marks(Marks(0, 1, POSITIONS, True, 7))[:-12]
    body = body[:4] + b"\0\0\0\x01" + body[8:]
    found = decode_marks(body + struct.pack(">I", crc32c(body)))
    assert found == Marks(0, 1, POSITIONS, True, 7)


@given(st.binary(max_size=100))
def test_garbage_is_no_mark(data: bytes) -> None:
    assert decode_marks(data) is None


def test_a_flipped_bit_in_a_mark_is_seen() -> None:
    data = encode_marks(Marks(0, 1, POSITIONS))
    for offset in range(len(data)):
        broken = bytearray(data)
        broken[offset] ^= 2
        assert decode_marks(bytes(broken)) is None


def test_a_mark_never_moves_back() -> None:
    marks = Marks(0, 1, POSITIONS)
    moved = marks.moved((JournalPosition(2, 9999), JournalPosition(10, 512)))
    assert moved.positions == (JournalPosition(3, 512), JournalPosition(10, 512))
    assert marks.in_limbo().moved(POSITIONS).limbo
    assert marks.in_limbo().repaired().in_limbo().epoch == 2
    marks = Marks(0, 1, POSITIONS, index_sequence=9)
    assert marks.moved(POSITIONS).index_sequence == 9, "a flush without a change has synced nothing"
    assert marks.moved(POSITIONS, 12).index_sequence == 12


def test_the_mark_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    disk = WatchedDisk()
    file = MarkFile(disk, tmp_path)
    first = file.load(0, 1, 2)
    assert first.positions == (JournalPosition(0, 0),) * 2
    file.store(first.moved(POSITIONS))

    def fail(operation: str, name: str) -> None:
        raise OSError(errno.EIO, "no")

    disk.fail = fail
    with pytest.raises(OSError, match="no"):
        file.store(first.moved((JournalPosition(20, 512),) * 2))
    disk.fail = lambda operation, name: None
    assert file.load(0, 1, 2).positions == POSITIONS
    with pytest.raises(ConfigError):
        file.load(1, 2, 2)
    flip_bit(file.path, 20)
    assert file.load(0, 1, 2).positions == (JournalPosition(0, 0),) * 2
    assert not file.whole


# -- entry logs -------------------------------------------------------------------------------


def rows_of(ledger_id: int, ids: range, size: int = 100) -> list[tuple[int, int, bytes]]:
    return [(ledger_id, i, entry(ledger_id, i, size=size)) for i in ids]


def test_entries_are_read_with_those_that_follow(tmp_path: Path) -> None:
    writer = EntryLogWriter(RealDisk(), tmp_path, 1 << 30)
    rows = writer.append(rows_of(1, range(5)) + rows_of(2, range(3)))
    rows += writer.append(rows_of(1, range(5, 9)))
    writer.sync()
    places = {(ledger_id, i): (log_id, offset) for ledger_id, i, log_id, offset in rows}
    reader = EntryLogReader(RealDisk(), tmp_path)
    found = reader.read(*places[1, 2], 1, 2, 100, 1 << 20)
    assert found == [entry(1, i, size=100) for i in (2, 3, 4)]  # then ledger 2 begins
    assert reader.read(*places[1, 5], 1, 5, 2, 1 << 20) == [entry(1, i, size=100) for i in (5, 6)]
    two, one = [entry(2, i, size=100) for i in (0, 1)], [entry(2, 0, size=100)]
    assert reader.read(*places[2, 0], 2, 0, 100, 300) == two
    assert reader.read(*places[2, 0], 2, 0, 100, 1) == one
    with pytest.raises(BookieIOError, match="damaged"):
        reader.read(*places[1, 2], 1, 3, 100, 1 << 20)  # another entry lies there
    reader.close()


def test_little_of_what_was_read_is_kept_with_few_entries(tmp_path: Path) -> None:
    """What waits to be sent, and the cache, count what entries have, not what was read."""
    writer = EntryLogWriter(RealDisk(), tmp_path, 1 << 30)
    rows = writer.append(rows_of(1, range(2)) + rows_of(2, range(500), size=1000))
    writer.sync()
    reader = EntryLogReader(RealDisk(), tmp_path)
    found = reader.read(rows[0][2], rows[0][3], 1, 0, 100, 1 << 20)
    assert len(found) == 2
    assert len(found._data) < 1000
    reader.close()


def test_logs_roll_and_a_closed_one_tells_its_ledgers(tmp_path: Path) -> None:
    disk = RealDisk()
    writer = EntryLogWriter(disk, tmp_path, 2000)
    rows = [
        row
        for start in range(0, 60, 5)
        for row in writer.append(rows_of(7, range(start, start + 5)))
    ]
    writer.finish()
    assert len(log_ids(disk.list(tmp_path))) > 2
    reader = EntryLogReader(disk, tmp_path)
    for ledger_id, entry_id, log_id, offset in rows:
        (data,) = reader.read(log_id, offset, ledger_id, entry_id, 1, 4096)
        assert data == entry(7, entry_id, size=100)
    total = 0
    for log_id in log_ids(disk.list(tmp_path)):
        data = log_path(tmp_path, log_id).read_bytes()
        footer = decode_footer(log_id, data, 0)
        assert footer is not None
        ledgers = footer.ledgers
        assert set(ledgers) == {7}
        total += ledgers[7][0]
        assert decode_footer(log_id + 1, data, 0) is None
        assert decode_footer(log_id, data[:-1], 0) is None
    assert total == 60
    again = EntryLogWriter(disk, tmp_path, 2000)  # never appends to what it finds
    assert again.append(rows_of(7, range(1)))[0][2] > max(row[2] for row in rows)
    again.finish()


def test_any_flipped_bit_of_a_record_is_seen(tmp_path: Path) -> None:
    writer = EntryLogWriter(RealDisk(), tmp_path, 1 << 30)
    (_, _, log_id, offset), *_ = writer.append(rows_of(1, range(2), size=40))
    writer.finish()
    path = log_path(tmp_path, log_id)
    good = path.read_bytes()
    for at in range(offset, offset + RECORD_HEADER_BYTES + 76):
        flip_bit(path, at)
        reader = EntryLogReader(RealDisk(), tmp_path)
        with pytest.raises(BookieIOError, match=f"offset {offset}"):
            reader.read(log_id, offset, 1, 0, 10, 4096)
        reader.close()
        flip_bit(path, at)
    assert path.read_bytes() == good
    flip_bit(path, HEADER_BYTES // 8)  # a header that is damaged takes no entry with it
    reader = EntryLogReader(RealDisk(), tmp_path)
    assert len(reader.read(log_id, offset, 1, 0, 10, 4096)) == 2
    reader.close()
    other = path.rename(log_path(tmp_path, log_id + 1))  # and another log's records are no records
    with pytest.raises(BookieIOError, match=f"{other.name} at offset {offset}"):
        EntryLogReader(RealDisk(), tmp_path).read(log_id + 1, offset, 1, 0, 10, 4096)


# -- location index ---------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["CURRENT", "MANIFEST-*"])
def test_an_index_that_is_damaged_says_what_to_do(tmp_path: Path, file: str) -> None:
    LocationIndex(tmp_path / "index").close()
    for path in (tmp_path / "index").glob(file):
        path.write_bytes(b"")
    with pytest.raises(BookieIOError, match=f"Restore all of {tmp_path} from a copy"):
        LocationIndex(tmp_path / "index")


def test_what_an_index_says_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not start ends with one; RocksDB's own may be several."""

    def refuse(*_: object, **__: object) -> None:
        raise Exception("Corruption: of 1.sst\n The file may be corrupted.\n")

    monkeypatch.setattr(location_index, "Rdict", refuse)
    with pytest.raises(BookieIOError) as told:
        LocationIndex(tmp_path / "index")
    assert "may be corrupted. (Restore" in str(told.value)
    assert "\n" not in str(told.value)


def test_the_index_keeps_locations_and_ledgers(tmp_path: Path) -> None:
    index = LocationIndex(tmp_path / "index")
    index.put_locations([(ledger, i, 5, 100 * i) for ledger in (1, 2, 256) for i in range(30)])
    one, two, far = (bytes((1, flags, 7)) for flags in (0, 1, 0))
    index.put_ledgers([(2, two), (1, one), (2**62, far)])
    index.sync()
    index.close()
    index = LocationIndex(tmp_path / "index")
    assert index.location(2, 7) == (5, 700)
    assert index.location(2, 30) is None
    assert index.entry_ids(2) == list(range(30))
    assert list(index.ledgers()) == [(1, one), (2, two), (2**62, far)]
    assert list(index.ledgers(2, 2**62)) == [(2, two)]
    assert list(index.located(2)) == [2, 256]
    assert list(index.located(0, 2)) == [1]
    index.change_usage(UsageChange(no_locations=[2]))
    assert index.entry_ids(2) == []
    assert index.entry_ids(1) == index.entry_ids(256) == list(range(30))
    assert index.ledger(2) == two
    with pytest.raises(BookieIOError, match="index"):
        LocationIndex(tmp_path / "index")  # held by the one above
    index.close()


# -- caches -----------------------------------------------------------------------------------


def test_both_halves_of_the_write_cache_are_read(tmp_path: Path) -> None:
    cache = WriteCache(1000)
    cache.active.put(1, [3, 1], [b"three", b"one"], 8)
    half = cache.swap()
    cache.active.put(1, [1], [b"newer"], 5)
    cache.active.put_one(0, 9, b"nine")
    assert [cache.get(1, i) for i in (1, 2, 3)] == [b"newer", None, b"three"]
    assert [cache.run(1, i, 5) for i in (1, 2, 3)] == [[b"newer"], [], [b"three"]]
    assert cache.entry_ids(1) == {1, 3}
    assert [*half.sorted_columns(9)] == [([(1, 2)], [1, 3], [b"one", b"three"])]
    cache.flushed()
    assert cache.get(1, 3) is None
    cache.drop_ledger(1)
    assert cache.get(1, 1) is None
    cache.drop_ledger(0)
    assert cache.byte_count == 0
    assert not cache.full
    cache.active.put(5, [0], [b"x" * 2000], 2000)
    assert cache.full


def test_small_entries_count_with_what_they_cost_beside_their_bytes() -> None:
    """However they come: a cache of empty ones would take many times what was set."""
    count = 1000
    some, singly, replayed = WriteHalf(), WriteHalf(), WriteHalf()
    some.put(1, range(count), [b"x"] * count, count)
    for entry_id in range(count):
        singly.put(1, [entry_id], [b"x"], 1)
        replayed.put_one(1, entry_id, b"x")
    assert some.byte_count == singly.byte_count == replayed.byte_count >= 100 * count


def test_a_part_of_what_was_read_counts_with_all_that_it_keeps() -> None:
    data = b"".join([*encode_record_headers([bytes(1000)], 0), bytes(1000)]) * 50
    whole = RecordRun(data, [1008 * place for place in range(51)])
    cache = ReadCache(1 << 20)
    cache.put(1, 0, whole[:2])
    assert cache.byte_count >= len(data)


@given(st.lists(st.integers(0, 20)), st.integers(1, 9))
def test_a_half_is_sorted_in_pieces_of_whole_ledgers(owners: list[int], entries_max: int) -> None:
    half = WriteHalf()
    for i, ledger_id in enumerate(owners):
        half.put_one(ledger_id, len(owners) - i, bytes([ledger_id, i % 256]))
    pieces = list(half.sorted_columns(entries_max))
    (whole,) = half.sorted_columns(len(owners) + 1)
    for column in range(3):
        assert [each for piece in pieces for each in piece[column]] == whole[column]
    for piece in pieces[:-1]:
        assert len(piece.entries) >= entries_max
        assert len(piece.entries) - piece.spans[-1][1] < entries_max
    assert whole.entry_ids == [
        i for each in sorted(set(owners)) for i in sorted(half.ledgers[each])
    ]


@given(st.lists(st.integers(1, 50)), st.integers(1, 9), st.integers(1, 200))
def test_a_flush_writes_chunks_bounded_in_number_and_bytes(
    sizes: list[int], count_max: int, bytes_max: int
) -> None:
    half = WriteHalf()
    for i, size in enumerate(sizes):
        half.put_one(i % 3, i, bytes(size))
    (columns,) = half.sorted_columns(len(sizes) + 1)
    chunks = list(columns.chunks(count_max, bytes_max))
    rows = [row for chunk in chunks for row in zip(*chunk[1:], strict=True)]
    assert rows == [*zip(*columns[1:], strict=True)]
    owners = [
        ledger_id for chunk in chunks for ledger_id, count in chunk.spans for _ in range(count)
    ]
    assert owners == [entry_id % 3 for entry_id in columns.entry_ids]
    for chunk in chunks:
        taken = [len(entry) for entry in chunk.entries]
        assert 0 < len(taken) <= count_max
        assert sum(count for _, count in chunk.spans) == len(taken)
        assert all(count > 0 for _, count in chunk.spans)
        assert sum(taken[:-1]) < bytes_max
        if len(taken) < count_max and chunk is not chunks[-1]:
            assert sum(taken) >= bytes_max


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 400))))
def test_the_read_cache_keeps_its_bound_and_its_count(puts: list[tuple[int, int, int]]) -> None:
    cache = ReadCache(3000)
    for ledger_id, entry_id, size in puts:
        cache.put(ledger_id, entry_id, [bytes(size)] * (size % 5))
        assert cache.byte_count <= 3000
    for ledger_id in range(4):
        cache.drop_ledger(ledger_id)
    assert cache.byte_count == 0


def test_the_read_cache_forgets_the_oldest_first() -> None:
    cache = ReadCache(3000)
    for first in (0, 2, 10, 20):
        cache.put(1, first, [b"%d" % (first + i) + bytes(100) for i in range(2)])
    assert cache.get(1, 0) is None
    assert [cache.get(1, i) for i in (3, 4, 9, 11)] == [
        b"3" + bytes(100), None, None, b"11" + bytes(100)
    ]  # fmt: skip
    assert cache.run(1, 10, 9) == [b"10" + bytes(100), b"11" + bytes(100)]
    assert cache.run(1, 11, 9) == [b"11" + bytes(100)]
    assert cache.run(2, 10, 1) == ()


def test_the_read_cache_forgets_runs_of_entries_that_were_added_again() -> None:
    cache = ReadCache(1 << 20)
    for first in (0, 5, 10, 15):
        cache.put(1, first, [b"old"] * 5)
    cache.put(2, 5, [b"old"] * 5)
    cache.drop_entries(1, [9, 10, 77])
    assert [cache.get(1, i) for i in (4, 5, 9, 10, 14, 15)] == [b"old", *[None] * 5]
    assert cache.get(2, 9) == b"old"


# -- ledger records ---------------------------------------------------------------------------


def test_a_batch_is_inspected_as_a_whole() -> None:
    ids = [4, 2, 9]
    entries = [entry(1, 4, lac=0), entry(1, 2, lac=8), entry(1, 9, lac=3)]
    assert inspect_entries(1, ids, entries, 1000) == (sum(map(len, entries)), 8, 9)
    for bad_ids, bad in (([], []), ([1], []), ([-1], [entry(1, -1)]), (ids, entries[::-1])):
        with pytest.raises(BadRequestError):
            inspect_entries(1, bad_ids, bad, 1000)
    with pytest.raises(BadRequestError, match="entry_bytes_max"):
        inspect_entries(1, [4], entries[:1], 60)


def test_damage_in_the_index_is_told_and_does_not_look_like_its_end(tmp_path: Path) -> None:
    """A list of entries that ends too early denies what is behind."""
    index = LocationIndex(tmp_path / "index")
    for start in range(0, 20_000, 500):
        index.put_locations([(7, i, 5, i) for i in range(start, start + 500)])
        index.put_ledgers([(i, bytes(100)) for i in range(start, start + 500)])
    index.sync()
    index.close()
    LocationIndex(tmp_path / "index").close()  # the tables are written
    for path in (tmp_path / "index").glob("*.sst"):
        flip_bit(path, path.stat().st_size // 2)
    index = LocationIndex(tmp_path / "index")
    assert index.location(7, 0) == (5, 0)
    with pytest.raises(BookieIOError, match="Corruption"):
        index.entry_ids(7)
    with pytest.raises(BookieIOError, match="Corruption"):
        list(index.ledgers())
    index.close()
