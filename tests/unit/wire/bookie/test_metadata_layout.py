"""Where ledgers lie, and the LAYOUT node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.model.errors import MetadataFormatError
from magnetar.wire.bookie.metadata_layout import (
    SHORT_ID_END,
    LedgerLayout,
    decode_layout,
    encode_layout,
    ledger_id_of,
    ledger_path,
)


@pytest.mark.parametrize(
    ("layout", "ledger_id", "path"),
    [
        (LedgerLayout.HIERARCHICAL, 0, "/00/0000/L0000"),
        (LedgerLayout.HIERARCHICAL, 1652, "/00/0000/L1652"),
        (LedgerLayout.HIERARCHICAL, SHORT_ID_END - 1, "/21/4748/L3646"),
        (LedgerLayout.HIERARCHICAL, SHORT_ID_END, "/000/0000/0021/4748/L3647"),
        (LedgerLayout.HIERARCHICAL, 2**63 - 1, "/922/3372/0368/5477/L5807"),
        (LedgerLayout.LEGACY_HIERARCHICAL, 9_999_999_999, "/99/9999/L9999"),
        (LedgerLayout.LONG_HIERARCHICAL, 5, "/000/0000/0000/0000/L0005"),
        (LedgerLayout.FLAT, 42, "/L0000000042"),
    ],
)
def test_paths(layout: LedgerLayout, ledger_id: int, path: str) -> None:
    assert ledger_path(layout, ledger_id) == path
    assert ledger_id_of(layout, path) == ledger_id


@given(st.sampled_from(LedgerLayout), st.integers(0, 2**63 - 1))
def test_paths_round_trip(layout: LedgerLayout, ledger_id: int) -> None:
    ledger_id %= layout.id_end
    assert ledger_id_of(layout, ledger_path(layout, ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "/LAYOUT",
        "/cookies/b:3181",
        "/available/readonly",
        "/idgen/ID-0000000001",
        "/00/0000",
        "/00/0000/1652",
        "/00/0000/L165",
        "/00/0000/L١٢٣٤",  # digits, but not ASCII
        "/00/0000/L0000/L0000",
        "/0/00000/L0000",
        "/000/0000/0000/0000/L0005",  # an id that the short form holds
        "",
    ],
)
def test_what_is_no_ledger(path: str) -> None:
    assert ledger_id_of(LedgerLayout.HIERARCHICAL, path) is None


def test_layout_node() -> None:
    assert (
        encode_layout(LedgerLayout.HIERARCHICAL)
        == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    )
    for layout in LedgerLayout:
        assert decode_layout(encode_layout(layout)) is layout


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"3\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:2",
        b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1",
        b"2\ncom.example.LedgerManagerFactory:1",
        b"\xff\xfe\n\xff",
    ],
)
def test_unknown_layouts_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"laid out|LAYOUT"):
        decode_layout(data)
