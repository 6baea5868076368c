"""Where ledgers lie in the metadata store, and the LAYOUT node that says which way.

LAYOUT holds ``2\\n<factory class>:<factory version>``. Paths below the root, by factory:

* ``HierarchicalLedgerManagerFactory`` (BookKeeper's default and ours): ids below 2**31 - 1 as
  ``/NN/NNNN/LNNNN`` (ten digits), larger ones as ``/NNN/NNNN/NNNN/NNNN/LNNNN`` (nineteen);
* ``LegacyHierarchicalLedgerManagerFactory``: the first form only;
* ``LongHierarchicalLedgerManagerFactory``: the second form only;
* ``FlatLedgerManagerFactory``: ``/LNNNNNNNNNN``.

Source: BookKeeper's ``LedgerLayout``, ``StringUtils`` and the ledger managers.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from magnetar.model.errors import MetadataFormatError

LAYOUT_FORMAT_VERSION = 2
_FACTORY_VERSION = 1
_PACKAGE = "org.apache.bookkeeper.meta."

SHORT_ID_END = 2**31 - 1
"""The first id that does not lie in the short hierarchy; also where the short counter ends."""

LONG_ID_END = 2**63

Digits: TypeAlias = tuple[int, ...]
"""Digits of an id per level of its path."""

_SHORT: Digits = (2, 4, 4)
_LONG: Digits = (3, 4, 4, 4, 4)
_FLAT: Digits = (10,)


class LedgerLayout(Enum):
    """Values are the factories' class names without their package."""

    HIERARCHICAL = "HierarchicalLedgerManagerFactory"
    LEGACY_HIERARCHICAL = "LegacyHierarchicalLedgerManagerFactory"
    LONG_HIERARCHICAL = "LongHierarchicalLedgerManagerFactory"
    FLAT = "FlatLedgerManagerFactory"

    @property
    def trees(self) -> tuple[Digits, ...]:
        """The path forms in use; every id in one is smaller than every id in the next."""
        return _TREES[self]

    @property
    def id_end(self) -> int:
        """The first id that the layout has no path for."""
        return LONG_ID_END if _LONG in self.trees else 10**10


_TREES: dict[LedgerLayout, tuple[Digits, ...]] = {
    LedgerLayout.HIERARCHICAL: (_SHORT, _LONG),
    LedgerLayout.LEGACY_HIERARCHICAL: (_SHORT,),
    LedgerLayout.LONG_HIERARCHICAL: (_LONG,),
    LedgerLayout.FLAT: (_FLAT,),
}


def id_ranges(layout: LedgerLayout) -> list[tuple[Digits, int, int]]:
    """(digits per level, first id, id behind the last) of the trees in use, ascending."""
    found, first = [], 0
    for digits in layout.trees:
        end = SHORT_ID_END if digits is _SHORT and _LONG in layout.trees else 10 ** sum(digits)
        found.append((digits, first, min(end, layout.id_end)))
        first = found[-1][2]
    return found


def encode_layout(layout: LedgerLayout) -> bytes:
    """The bytes of the LAYOUT node."""
    return f"{LAYOUT_FORMAT_VERSION}\n{_PACKAGE}{layout.value}:{_FACTORY_VERSION}".encode()


def decode_layout(data: bytes) -> LedgerLayout:
    """Raises ``MetadataFormatError`` for a layout that we cannot read ledgers in."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines[0] not in ("1", "2") or len(lines) < 2:
        raise MetadataFormatError(
            f"the LAYOUT of the ledgers is {data[:120]!r}, expected '2' and a line with the "
            f"ledger manager; is this another system's root?"
        )
    factory, _, version = lines[1].strip().partition(":")
    for layout in LedgerLayout:
        if factory == _PACKAGE + layout.value and version == str(_FACTORY_VERSION):
            return layout
    known = ", ".join(layout.value for layout in LedgerLayout)
    raise MetadataFormatError(
        f"the ledgers are laid out by {lines[1].strip()!r}, which is not known here; known are "
        f"{known} (version {_FACTORY_VERSION}). Use another ledgers root, or the tools of the "
        f"system that made it"
    )


def ledger_path(layout: LedgerLayout, ledger_id: int) -> str:
    """The path of a ledger's node below the root, with a leading ``/``."""
    assert 0 <= ledger_id < layout.id_end, f"ledger id {ledger_id} has no place in {layout}"
    digits = layout.trees[0]
    if layout is LedgerLayout.HIERARCHICAL and ledger_id >= SHORT_ID_END:
        digits = _LONG
    text = f"{ledger_id:0{sum(digits)}d}"
    path, start = "", 0
    for size in digits[:-1]:
        path += "/" + text[start : start + size]
        start += size
    return f"{path}/L{text[start:]}"


def ledger_id_of(layout: LedgerLayout, path: str) -> int | None:
    """The ledger of a node below the root; None if the path is no ledger's."""
    parts = path.removeprefix("/").split("/")
    for digits in layout.trees:
        names = [level_digits(name, digits, depth) for depth, name in enumerate(parts)]
        if len(parts) == len(digits) and None not in names:
            ledger_id = int("".join(name for name in names if name is not None))
            if (
                ledger_id < layout.id_end
                and ledger_path(layout, ledger_id) == f"/{path.strip('/')}"
            ):
                return ledger_id
    return None


def level_digits(name: str, digits: Digits, depth: int) -> str | None:
    """The digits that the node ``name`` at ``depth`` adds to an id, None if the node is none of
    the tree's (cookies, counters, ...)."""
    if depth >= len(digits):
        return None
    if depth == len(digits) - 1:
        if not name.startswith("L"):
            return None
        name = name[1:]
    right = len(name) == digits[depth] and name.isascii() and name.isdigit()
    return name if right else None
