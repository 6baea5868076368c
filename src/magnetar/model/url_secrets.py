"""Passwords that stand in URLs: what is stored where others read it, and what is said, goes without
them."""

from __future__ import annotations

import re
from typing import Final

SECRET_WORDS: Final = ("secret", "token", "password", "credential", "access-key")
"""Words in the names of properties that are not for others to see."""

_OF_A_USER: Final = re.compile(
    r'(://[^/?#\s:@"]*):'
    r"(?!\d+/)"  # a port, behind which a path has an @
    r'[^@\s"]+@(?:[^/@\s"]*@)*'
)
_OF_A_QUERY: Final = re.compile(
    rf'([?&;][^=&?\s"]*(?:{"|".join(SECRET_WORDS)})[^=&\s"]*)=[^&\s"]*', re.IGNORECASE
)


def without_passwords(text: str) -> str:
    """The text with each URL in it as ``scheme://user@host``, and without what a URL's query calls
    a password, a token and the like."""
    return _OF_A_QUERY.sub(r"\1=", _OF_A_USER.sub(r"\1@", text))
