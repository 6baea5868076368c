"""A ledger's copies as a picture: it can be read at 80 columns."""

from __future__ import annotations

import click
import pytest

from magnetar.cli.copies_picture import COLUMNS, lines
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.repair.insight.explaining import explanation
from magnetar.repair.insight.forecast import CopyLayout
from magnetar.wire.bookie.availability import condense

A, B, C, D = (BookieId(f"10.0.0.{n}:3181") for n in range(1, 5))


def picture(layout: CopyLayout, silent: dict[BookieId, str], *gone: BookieId) -> list[str]:
    return [click.unstyle(line) for line in lines(explanation(layout, silent, gone))]


def layout_of(metadata: LedgerMetadata, count: int, *lacking: tuple[BookieId, range]) -> CopyLayout:
    names = dict.fromkeys(b for one in metadata.fragments for b in one.bookies)
    gone = {(name, e) for name, ids in lacking for e in ids}
    held = {
        name: condense(
            [e for e in range(count) if name in metadata.write_set(e) and (name, e) not in gone]
        )
        for name in names
    }
    return CopyLayout(metadata, held)


def test_a_picture_as_a_whole() -> None:
    fragments = (Fragment(0, (A, B, C)), Fragment(30, (A, D, C)))
    metadata = LedgerMetadata(LedgerId(9), 3, 3, 2, DigestType.CRC32C, b"", fragments)
    layout = layout_of(metadata.with_close(59, 6000), 60, (D, range(40, 45)))
    del layout.held[B]  # type: ignore[attr-defined]
    shown = picture(layout, {B: "it is not registered"}, C)
    assert shown[:3] == ["ledger 9  CLOSED  E/Qw/Qa 3/3/2", "entries 0 to 59, 6,000 bytes", ""]
    assert shown[3].split() == ["0", "30"]
    assert shown[3].index("30") == shown[4].index("|", 20), "where its fragment begins"
    assert shown[4].startswith(A)
    assert set(shown[4].removeprefix(A).removesuffix(" all").strip()) == {"|", "#"}
    assert shown[5].startswith("10.0.0.2:3181  |???")
    assert shown[5].endswith("| no answer")
    assert set(shown[6].split("|")[1]) == {"x"}
    assert shown[7].startswith("10.0.0.4:3181  |   ")
    assert "-" in shown[7]
    assert shown[7].endswith("| lacks 5")
    assert set(shown[8].split("|")[1]) == {"2"}
    assert set(shown[9].split("|")[2]) == {"1", "2"}
    assert any("fewer copies than Qa" in line for line in shown)
    assert f"{B} does not answer: it is not registered" in shown
    assert f"{D} lacks what is for it of entries 40 to 44" in shown


@pytest.mark.parametrize("count", [1, 9, 40])
def test_any_number_of_fragments_fits(count: int) -> None:
    long = [BookieId(f"storage-{n}.rack-12.zone-b.example.org:3181") for n in range(4)]
    fragments = tuple(
        Fragment(100 * n, tuple(long[(n + i) % 4] for i in range(3))) for n in range(count)
    )
    metadata = LedgerMetadata(LedgerId(9), 3, 2, 2, DigestType.CRC32C, b"", fragments)
    shown = picture(layout_of(metadata.with_close(100 * count - 1, 1), 100 * count), {}, long[0])
    rows = [line for line in shown if line.count("|") > 1]
    assert all(len(line) <= COLUMNS for line in rows), rows
    cells = [row.split("|")[1:-1] for row in rows if row.startswith("storage-1")]
    assert sum(map(len, cells)) == count


def test_a_ledger_without_entries_has_a_picture() -> None:
    fragment = Fragment(0, (A, B, C))
    metadata = LedgerMetadata(LedgerId(9), 3, 3, 2, DigestType.CRC32C, b"", (fragment,))
    shown = picture(layout_of(metadata, 0), {}, A)
    assert "no entry" in shown
    assert any("it would be closed empty" in line for line in shown)
    assert any(line.startswith(A) and "|x" in line for line in shown)


def test_what_is_in_the_air_is_shown_apart() -> None:
    fragment = Fragment(0, (A, B, C))
    metadata = LedgerMetadata(LedgerId(9), 3, 3, 2, DigestType.CRC32C, b"", (fragment,))
    layout = layout_of(metadata, 20)
    shown = picture(CopyLayout(metadata, layout.held, {A: 9}), {})
    assert any(line.startswith(A) and "|##" in line and "oo|" in line for line in shown), shown
    assert any("it could be closed, at entry 19" in line for line in shown)
