"""What is kept of entries that were given up: with the metadata of the ledger that was closed
without them, as one custom value, so that it is there for as long as the ledger is.

The value is JSON: ``{"first": 9, "last": 11, "unreadable": [4], "lost": ["b1"], "atMs": ..., "why":
"..."}``. Entries ``first`` to ``last`` were known to be behind the end; ``last`` is ``first`` - 1
where none was known. ``unreadable``: entries before the end without a sound copy, which stay in the
ledger. ``lost``: bookies that were said to be lost; what only they had nobody knows. Of a
cursor's ledger that was closed before, ``unreadable`` is all that was given up. ``"gone":
true``, and not there else: its metadata were gone, and all that was in it is given up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerMetadata

GIVEN_UP_KEY: Final = "magnetar-given-up"
UNREADABLE_MAX: Final = 1000
WHY_CHARACTERS_MAX: Final = 1000
SHOWN_MAX: Final = 10


class GivenUp(NamedTuple):
    first: EntryId
    last: EntryId
    unreadable: Sequence[EntryId]
    lost: Sequence[BookieId]
    at_ms: int
    why: str
    gone: bool = False

    @property
    def text(self) -> str:
        """For people."""
        if self.gone:
            return "all that was in it was given up"
        count = self.last - self.first + 1
        parts = [_ids(self.first, self.last)] if count > 0 else []
        if self.lost:
            parts.append(f"whatever {', '.join(self.lost)} had behind entry {self.first - 1}")
        if self.unreadable and not parts:
            return f"what nobody can read was given up: {_listed(self.unreadable)}"
        what = " and ".join(parts) or "what nobody has told"
        were = "were" if count > 1 or len(parts) > 1 else "was"
        inside = ""
        if self.unreadable:
            inside = f"; before that nobody can read {_listed(self.unreadable)}"
        return f"{what} {were} given up{inside}"


def _ids(first: EntryId, last: EntryId) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _listed(entry_ids: Sequence[EntryId]) -> str:
    more = ", ..." if len(entry_ids) > SHOWN_MAX else ""
    return ", ".join(map(str, entry_ids[:SHOWN_MAX])) + more


def encode_given_up(found: GivenUp) -> bytes:
    said: dict[str, Any] = {
        "first": found.first,
        "last": found.last,
        "unreadable": list(found.unreadable[:UNREADABLE_MAX]),
        "lost": list(found.lost),
        "atMs": found.at_ms,
        "why": found.why[:WHY_CHARACTERS_MAX],
    }
    if found.gone:
        said["gone"] = True
    return json.dumps(said).encode()


def given_up_of(metadata: LedgerMetadata) -> GivenUp | None:
    """None: nothing of the ledger was given up."""
    value = dict(metadata.custom).get(GIVEN_UP_KEY)
    if value is None:
        return None
    end = metadata.last_entry_id + 1
    try:
        said = json.loads(value)
        return GivenUp(
            int(said["first"]),
            int(said["last"]),
            [int(each) for each in said["unreadable"]],
            [BookieId(str(each)) for each in said["lost"]],
            int(said["atMs"]),
            str(said["why"]),
            said.get("gone") is True,
        )
    except (ValueError, KeyError, TypeError):  # of another release: that it was is known
        return GivenUp(end, end - 1, (), (), 0, value.decode("utf-8", "backslashreplace"))
