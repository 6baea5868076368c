"""How much a member of a consumer group (KIP-848) or share group may say of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

TEXT_CHARS_MAX: Final = 1_024
NAMES_MAX: Final = 10_000
NAMES_CHARS_MAX: Final = 500_000
"""Of a member, together: they are in its record, which is written whenever it gets something."""


def too_much(texts: Iterable[str | None], names: Sequence[str] | None) -> str:
    """What is too large, of ids and of topics that are subscribed to; empty: nothing."""
    if any(len(text or "") > TEXT_CHARS_MAX for text in texts):
        return f"an id has more than {TEXT_CHARS_MAX} characters"
    if len(names or ()) > NAMES_MAX:
        return f"SubscribedTopicNames has {len(names or ())} names: {NAMES_MAX} at most are taken"
    if sum(map(len, names or ())) > NAMES_CHARS_MAX:
        return f"SubscribedTopicNames has more than {NAMES_CHARS_MAX} characters"
    return ""
