"""Backlog quotas: how far a topic's subscriptions may be behind, in bytes and in time, and what is
done when one is further. Pure.

The names of fields and kinds are Pulsar's. Of the two limits that each has, one counts by its kind:
of ``destination_storage`` the bytes, of ``message_age`` the seconds. A topic's word counts before
its namespace's, kind by kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from magnetar.cluster.policies.policy_values import (
    BYTES_MAX,
    NUMBER_MAX,
    Layered,
    as_number,
    as_object,
    no_more,
)
from magnetar.model.errors import InvalidPolicyError

NONE: Final = -1
INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


class QuotaAction(StrEnum):
    """What is done for a topic whose backlog is past its quota, by Pulsar's names."""

    HOLD = "producer_request_hold"
    """Producers are refused, and wait with what they have pending."""
    EXCEPTION = "producer_exception"
    """Producers are refused, and fail it."""
    EVICTION = "consumer_backlog_eviction"
    """The slowest subscriptions go on without what is too much."""


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """``limit_bytes``: less than 0 is none; ``limit_s``: 0 is none, too."""

    limit_bytes: int = NONE
    limit_s: int = NONE
    action: QuotaAction = QuotaAction.HOLD

    @classmethod
    def decode(cls, value: object) -> BacklogQuota:
        """Of Pulsar's object. Clients of before there was a limit in time say ``limit`` for
        ``limitSize``, and newer ones both; numbers may be texts."""
        said = as_object("backlog quota", value)
        former = _number("limit", said.pop("limit", None), BYTES_MAX)
        size = _number("limitSize", said.pop("limitSize", None), BYTES_MAX)
        time = _number("limitTime", said.pop("limitTime", None), NUMBER_MAX)
        action = said.pop("policy", None)
        no_more("backlog quota", said)
        if not isinstance(action, str) or action not in tuple(QuotaAction):
            raise InvalidPolicyError(
                f"policy: {str(action)[:80]!r} cannot be used; accepted: {', '.join(QuotaAction)}"
            )
        if size is None:
            size = former
        return cls(
            NONE if size is None else size, NONE if time is None else time, QuotaAction(action)
        )

    def encode(self) -> dict[str, object]:
        return {
            "limit": self.limit_bytes,
            "limitSize": self.limit_bytes,
            "limitTime": self.limit_s,
            "policy": str(self.action),
        }


def _number(name: str, value: object, most: int) -> int | None:
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    return None if value is None else as_number(name, value, NONE, most)


UNLIMITED: Final = BacklogQuota()
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"destination_storage": "storage", "message_age": "age"}
)
"""Pulsar's name of a kind of quota -> the field of ``BacklogQuotas``."""


@dataclass(frozen=True, slots=True)
class BacklogQuotas(Layered):
    """One of each kind; None: it is not said here."""

    storage: BacklogQuota | None = None
    age: BacklogQuota | None = None

    def with_kind(self, kind: str, quota: BacklogQuota | None) -> BacklogQuotas | None:
        """With that one in the place of what was said of its kind; None: nothing is left.
        ``kind`` is one of ``KINDS``."""
        changed = replace(self, **{KINDS[kind]: quota})
        return changed if changed != NOTHING else None

    @property
    def limit_bytes(self) -> int:
        """Less than 0: none."""
        return NONE if self.storage is None else self.storage.limit_bytes

    @property
    def limit_s(self) -> int:
        """0 and less: none."""
        return NONE if self.age is None else self.age.limit_s

    @property
    def limited(self) -> bool:
        return self.limit_bytes >= 0 or self.limit_s > 0

    @property
    def evicts_bytes(self) -> bool:
        evicts = self.storage is not None and self.storage.action is QuotaAction.EVICTION
        return evicts and self.limit_bytes >= 0

    @property
    def evicts_by_age(self) -> bool:
        evicts = self.age is not None and self.age.action is QuotaAction.EVICTION
        return evicts and self.limit_s > 0

    @classmethod
    def decode(cls, value: object) -> BacklogQuotas:
        said = as_object("backlog quotas", value)
        found = {
            field: BacklogQuota.decode(quota)
            for kind, field in KINDS.items()
            if (quota := said.pop(kind, None)) is not None
        }
        no_more("backlog quotas", said)
        return cls(**found)

    def encode(self) -> dict[str, object]:
        return {
            kind: quota.encode()
            for kind, field in KINDS.items()
            if (quota := getattr(self, field)) is not None
        }


NOTHING: Final = BacklogQuotas()
NO_QUOTAS: Final = BacklogQuotas(UNLIMITED, UNLIMITED)


def check_retention(quota: BacklogQuota | None, minutes: int, megabytes: int, what: str) -> None:
    """Raises ``InvalidPolicyError`` where retention has a limit (``minutes``, ``megabytes``: more
    than 0) that the quota reaches: as Pulsar's brokers refuse it. ``what``: what to change."""
    if quota is None:
        return
    if megabytes > 0 and megabytes << 20 <= quota.limit_bytes:
        raise InvalidPolicyError(
            f"a backlog quota of {quota.limit_bytes} bytes needs a retention of more than that, "
            f"and retention is limited to {megabytes} MB: {what}"
        )
    if minutes > 0 and minutes * 60 <= quota.limit_s:
        raise InvalidPolicyError(
            f"a backlog quota of {quota.limit_s} s needs a retention of more than that, and "
            f"retention is limited to {minutes} minutes: {what}"
        )
