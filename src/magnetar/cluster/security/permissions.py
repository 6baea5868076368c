"""What roles may do: by settings, tenants and namespaces, as Pulsar keeps it. Pure.

| who | may |
|---|---|
| super-users (``security.super_users``) | everything |
| a tenant's ``adminRoles`` | everything with the tenant's namespaces and their topics |
| a role with ``produce`` for a namespace | look its topics up, produce to them |
| a role with ``consume`` for it | look its topics up, subscribe to and read them |

A namespace's node has, as Pulsar's, ``auth_policies``: ``{"namespace_auth": {ROLE: [ACTION, ...]},
"destination_auth": {TOPIC: {ROLE: [ACTION, ...]}}}``; the second is for one topic (a partitioned
one with all its partitions). A tenant's node has ``adminRoles``. What roles may do with functions
and the like is kept, and without effect.

Why: docs/adr/0155-permissions-are-asked-when-something-is-opened.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from magnetar.cluster.policies.policy_values import as_list, as_object, as_text
from magnetar.cluster.security.principals import ROLE_CHARACTERS_MAX
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import InvalidPolicyError

AUTH_POLICIES: Final = "auth_policies"
OF_NAMESPACE: Final = "namespace_auth"
OF_TOPICS: Final = "destination_auth"
ADMIN_ROLES: Final = "adminRoles"
ROLES_MAX: Final = 10_000


class Action(StrEnum):
    """What a client wants to do with a topic or namespace."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LOOKUP = "lookup"
    """Whoever may produce or consume may."""
    ADMIN = "administer"
    """Super-users and the tenant's admins."""


GRANTED: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""What can be granted, by Pulsar's names; the first two count."""

ENOUGH: Final[Mapping[Action, frozenset[str]]] = {
    Action.PRODUCE: frozenset({"produce"}),
    Action.CONSUME: frozenset({"consume"}),
    Action.LOOKUP: frozenset({"produce", "consume"}),
    Action.ADMIN: frozenset(),
}


def permitted(
    role: str,
    action: Action,
    policies: Mapping[str, Any],
    admins: Collection[str] = (),
    topic: str = "",
) -> bool:
    """By a namespace's ``policies`` (its node's object) and its tenant's ``admins``. ``topic``: the
    full name, of a partition that of the whole; empty: for the namespace."""
    if role in admins:
        return True
    said = _object(policies.get(AUTH_POLICIES))
    enough = ENOUGH[action]
    if enough & _actions(_object(said.get(OF_NAMESPACE)), role):
        return True
    if not topic:
        return False
    return bool(enough & _actions(_object(_object(said.get(OF_TOPICS)).get(topic)), role))


def _object(value: object) -> Mapping[str, Any]:
    """Of a node that others may have written: what is no object permits nothing."""
    return value if isinstance(value, dict) else {}


def _actions(granted: Mapping[str, Any], role: str) -> frozenset[str]:
    found = granted.get(role)
    return frozenset(str(each) for each in found) if isinstance(found, list) else frozenset()


# -- what is said, and changed -------------------------------------------------------------------


def decode_actions(value: object) -> list[str]:
    """Of a request's body. Raises ``InvalidPolicyError``."""
    found = as_list("permissions", value, len(GRANTED))
    wrong = [each for each in found if each not in GRANTED]
    if wrong or not found:
        raise InvalidPolicyError(
            f"permissions: {str(found)[:80]} cannot be used; accepted: a list of "
            f"{', '.join(GRANTED)}"
        )
    return sorted(set(found))


def decode_roles(value: object) -> list[str]:
    """Of a tenant's body. Raises ``InvalidPolicyError``."""
    found = as_list(ADMIN_ROLES, value, ROLES_MAX)
    return sorted({as_text("role", each, ROLE_CHARACTERS_MAX) for each in found})


def admin_roles(about: Mapping[str, Any]) -> list[str]:
    """Of a tenant's object."""
    found = about.get(ADMIN_ROLES)
    return [str(role) for role in found] if isinstance(found, list) else []


def decode_auth_policies(value: object) -> dict[str, object]:
    """Of a namespace's body. Raises ``InvalidPolicyError``, and as ``parse_topic``."""
    said = as_object(AUTH_POLICIES, value)
    made: dict[str, object] = {OF_NAMESPACE: _decode_granted(said.get(OF_NAMESPACE) or {})}
    topics = as_object(OF_TOPICS, said.get(OF_TOPICS) or {})
    if topics:
        made[OF_TOPICS] = {
            str(parse_topic(name).partitioned): _decode_granted(each)
            for name, each in topics.items()
        }
    return made


def _decode_granted(value: object) -> dict[str, list[str]]:
    return {
        as_text("role", role, ROLE_CHARACTERS_MAX): decode_actions(actions)
        for role, actions in as_object("permissions", value).items()
    }


def all_granted(policies: Mapping[str, Any]) -> dict[str, object]:
    """Of a namespace and of its topics, with every field that Pulsar's clients know."""
    said = _object(policies.get(AUTH_POLICIES))
    return {
        OF_NAMESPACE: _object(said.get(OF_NAMESPACE)),
        OF_TOPICS: _object(said.get(OF_TOPICS)),
        "subscription_auth_roles": {},
    }


def granted(policies: Mapping[str, Any], topic: str = "") -> dict[str, list[str]]:
    """Role -> actions, of a namespace, or of one topic by what is said for it alone."""
    said = _object(policies.get(AUTH_POLICIES))
    table = _object(said.get(OF_NAMESPACE))
    if topic:
        table = _object(_object(said.get(OF_TOPICS)).get(topic))
    return {role: sorted(_actions(table, role)) for role in table}


def with_grant(
    policies: Mapping[str, Any], role: str, actions: list[str] | None, topic: str = ""
) -> dict[str, object]:
    """The namespace's policies with ``role`` having ``actions`` and no others; None: nothing.
    Raises ``InvalidPolicyError``."""
    as_text("role", role, ROLE_CHARACTERS_MAX)
    table: dict[str, object] = dict(granted(policies, topic))
    table.pop(role, None)
    if actions is not None:
        table[role] = actions
    if len(table) > ROLES_MAX:
        raise InvalidPolicyError(f"permissions: there are {ROLES_MAX} roles already")
    said = dict(_object(policies.get(AUTH_POLICIES)))
    if not topic:
        said[OF_NAMESPACE] = table
    else:
        topics = dict(_object(said.get(OF_TOPICS)))
        topics.pop(topic, None)
        said[OF_TOPICS] = {**topics, topic: table} if table else topics
    return {**policies, AUTH_POLICIES: said}
