"""Names of hosts, as far as they can be told without asking: whether one can be such a name at all.

What cannot be one ends in an error of a codec's, in whichever thread looks it up first.

Pure.
"""

from __future__ import annotations

from typing import Final

NO_PART_OF_ONE: Final = frozenset("/@?#\\")
"""Of an address that was given for a name, or of a URL around it."""


def is_host_name(name: str) -> bool:
    """Also addresses, with brackets and without."""
    if not name or any(each.isspace() or each in NO_PART_OF_ONE for each in name):
        return False
    try:
        name.encode("idna")
    except UnicodeError:  # an empty label (two dots), or one that is too long
        return False
    return True
