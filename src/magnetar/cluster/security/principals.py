"""Principals: what a client is to this platform once it has shown who it is. Pure.

Why: docs/adr/0154-roles-and-what-proves-them.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.cluster.policies.policy_values import printable
from magnetar.model.errors import AuthenticationError

ROLE_CHARACTERS_MAX: Final = 256
REFUSED: Final = "authentication failed: the credentials are not accepted"
"""What a client is told of every fault: which part was wrong helps those who guess. Why is said to
the log of the one who refuses (``AuthenticationError.why``)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A role. ``expires_s``: seconds since 1970 after which what it was shown by counts no more;
    None: as long as the connection lasts."""

    role: str
    expires_s: float | None = None

    def expired(self, now_s: float) -> bool:
        return self.expires_s is not None and now_s >= self.expires_s


def principal(role: object, expires_s: float | None = None) -> Principal:
    """Of a name that came from outside. Raises ``AuthenticationError``."""
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_CHARACTERS_MAX or not printable(role):
        raise refusal("the role is no name that a role can have")
    return Principal(role, expires_s)


def refusal(why: str) -> AuthenticationError:
    return AuthenticationError(REFUSED, why)


def role_names(text: str) -> frozenset[str]:
    """Of a setting that lists roles, separated by commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))
