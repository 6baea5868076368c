"""Bodies of requests, read for what they ask. What is not served is refused by name: an operator
who sets a policy must hear that nothing keeps it.

Clients send whole policy objects in which most fields say nothing (null, empty, false, -1, the
enumerations' "undefined"); those ask for nothing and pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request

from magnetar.cluster.bundles import (
    BUNDLES_DEFAULT,
    even_boundaries,
    layout_of,
    policy_of,
)
from magnetar.cluster.bundles import POLICY as BUNDLES
from magnetar.cluster.policies.policies import BY_CLUSTER, NAMES, decode_strategy, encode_value
from magnetar.cluster.schemas.policies import AUTO_UPDATE
from magnetar.cluster.security.permissions import (
    ADMIN_ROLES,
    AUTH_POLICIES,
    decode_auth_policies,
    decode_roles,
)
from magnetar.model.errors import BrokerError, BrokerMetadataError, InvalidPolicyError
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.model.json_bounded import TooDeepError, load_bounded
from magnetar.model.schema import SchemaStrategy

LEVELS_MAX: Final = 64
"""Of a body: what policies, permissions and schemas have is under ten."""
DIGITS: Final = re.compile(r"[0-9]{1,9}")
SAYS_NOTHING: Final = (None, False, 0, -1, "", "None", "UNDEFINED", "Undefined")
ASKS_FOR_WHAT_IS_DONE: Final[Mapping[str, object]] = {
    "schema_auto_update_compatibility_strategy": "Full",  # what clients write for "not set"
}


RETENTION: Final = NAMES["retention"][0]


class BadBodyError(BrokerError):
    """The body is not what the request needs."""


class NotServedError(BrokerError):
    """The body asks for what is not served."""


async def read_json(request: Request) -> object:
    """The body; None if it is empty. Any content type will do: clients have several of their
    own for JSON. Raises ``BadBodyError``, also for what could be stored and not be shown again:
    numbers that are none (NaN), and halves of UTF-16's pairs."""
    body = await request.body()
    if not body.strip():
        return None
    try:
        said: object = load_bounded(body, LEVELS_MAX, parse_float=_finite, parse_constant=_finite)
        json.dumps(said, ensure_ascii=False).encode()
        return said
    except UnicodeEncodeError as error:
        lone = ord(error.object[error.start])
        raise BadBodyError(f"body: a text has \\u{lone:04x}, which is no character") from error
    except TooDeepError as error:
        raise BadBodyError(f"body: JSON that is {error}") from None
    except ValueError as error:
        raise BadBodyError(f"body: not JSON: {error}") from error


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number[:40]} is no number that can be kept")
    return found


def partition_count(body: object) -> int:
    """``4``, ``"4"`` or ``{"partitions": 4}``: some clients send one, some the other, and Pulsar's
    brokers read a number out of a text. The bounds are the service's.
    Raises ``BadBodyError``, and ``NotServedError`` for properties."""
    if isinstance(body, dict):
        rest = {key: value for key, value in body.items() if key != "partitions"}
        refuse_what_is_not_served("partitioned topic", rest)
        body = body.get("partitions")
    if isinstance(body, str) and DIGITS.fullmatch(body):
        body = int(body)
    if not isinstance(body, int) or isinstance(body, bool) or body < 1:
        raise BadBodyError(
            f"body: {json.dumps(body)[:100]} is not a number of partitions; send a whole number of "
            'at least 1, or {"partitions": number}'
        )
    return body


def subscription_start(body: object) -> Position:
    """Where a new subscription begins: a message id, of which the first and the last are served.
    Raises ``BadBodyError``, ``NotServedError``."""
    if body is None:
        return LATEST
    about = _object("message id", body)
    named = about.get("ledgerId"), about.get("entryId")
    if named in (EARLIEST, LATEST):
        return EARLIEST if named == EARLIEST else LATEST
    raise NotServedError(
        f"body: message id {json.dumps(body)[:100]} is not served here; send that of earliest "
        "(ledgerId and entryId -1), of latest (both 9223372036854775807), or nothing"
    )


def moved_to(body: object) -> tuple[Position, bool]:
    """Where a subscription is moved: a message id, and whether what comes next is behind it. Of a
    message within a batch the whole batch comes again: a place is that of an entry. Raises
    ``BadBodyError``."""
    about = _object("message id", body)
    ledger_id, entry_id = about.get("ledgerId"), about.get("entryId")
    for each in (ledger_id, entry_id):
        if not isinstance(each, int) or isinstance(each, bool) or not -1 <= each < 2**63:
            raise BadBodyError(
                f"body: {json.dumps(body)[:100]} is no message id; send ledgerId and entryId"
            )
    assert isinstance(ledger_id, int)
    assert isinstance(entry_id, int)
    index = about.get("batchIndex")
    within = isinstance(index, int) and index >= 0
    after = bool(about.get("excluded") or about.get("isExcluded")) and not within
    return Position(ledger_id, entry_id), after


def flag(body: object) -> bool:
    """Raises ``BadBodyError``."""
    if not isinstance(body, bool):
        raise BadBodyError(f"body: {json.dumps(body)[:100]} is neither true nor false")
    return body


def check_topic(body: object) -> None:
    """Of a topic that is created: properties, which are not served."""
    refuse_what_is_not_served("properties of topics", _object("topic", body))


def tenant_about(body: object, cluster: str) -> Mapping[str, object]:
    """Its admins, as its node says them; there is one cluster. They count where clients must show
    who they are."""
    about = dict(_object("tenant", body))
    roles = _names("tenant: adminRoles", about.pop(ADMIN_ROLES, None))
    clusters = _names("tenant: allowedClusters", about.pop("allowedClusters", None))
    _check_clusters("tenant: allowedClusters", clusters, cluster)
    refuse_what_is_not_served("tenant", about)
    return {ADMIN_ROLES: decode_roles(roles)}


def namespace_policies(body: object, cluster: str) -> Mapping[str, object]:
    """Policies, of which those of schemas and of ``cluster.policies`` are served, and how the
    namespace is cut into bundles."""
    about = dict(_object("namespace", body))
    for field in ("replication_clusters", "clusterThatCanDeleteNamespace", "allowed_clusters"):
        what, named = f"namespace: {field}", about.pop(field, None)
        if field == "clusterThatCanDeleteNamespace":
            named = [named] if named else None
        _check_clusters(what, _names(what, named), cluster)
    bundles = about.pop("bundles", None)
    policies: dict[str, object] = {}
    if bundles:
        policies[BUNDLES] = policy_of(_boundaries(bundles))
    auto_update = about.pop(AUTO_UPDATE, None)
    if auto_update is not None and not flag(auto_update):
        policies[AUTO_UPDATE] = False  # true is the usual value, and what clients say for "not set"
    permissions = about.pop(AUTH_POLICIES, None)
    if permissions:
        policies[AUTH_POLICIES] = decode_auth_policies(permissions)
    for name in BY_CLUSTER:
        about[name] = _of_cluster(f"namespace: {name}", about.get(name), cluster)
    for name, decode in NAMES.values():
        value = about.pop(name, None)
        # A retention of nothing is a word, too.
        if (value and name == RETENTION) or not _says_nothing(name, value):
            policies[name] = encode_value(decode(value))
    refuse_what_is_not_served("namespace", about)
    return policies


def _of_cluster(what: str, value: object, cluster: str) -> object:
    """What a body says for each cluster. Raises as ``_check_clusters``, ``BadBodyError``."""
    said = _object(what, value)
    _check_clusters(what, list(said), cluster)
    return said.get(cluster)


def _boundaries(bundles: object) -> tuple[int, ...]:
    """Of ``{"boundaries": [...], "numBundles": n}``, one of which is enough. Raises
    ``BadBodyError``."""
    said = _object("bundles", bundles)
    if said.get("numBundles") == 0 and not said.get("boundaries"):
        return even_boundaries(BUNDLES_DEFAULT)  # what clients write for "as the broker likes"
    try:
        return layout_of("that is created", {BUNDLES: said}).boundaries
    except BrokerMetadataError as error:
        raise BadBodyError(f"body: {error}") from error


def schema_strategy(body: object) -> SchemaStrategy | None:
    """Of a body that is a strategy's name; None for UNDEFINED. Raises ``BadBodyError``."""
    try:
        return None if body is None else decode_strategy(body)
    except InvalidPolicyError as error:
        raise BadBodyError(f"body: {error}") from error


def _object(what: str, body: object) -> Mapping[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise BadBodyError(f"body: a JSON object about the {what} is expected, or nothing")
    return body


def _names(what: str, value: object) -> list[object]:
    """A field that lists names; none if it says nothing. Raises ``BadBodyError``."""
    if not value:
        return []
    if not isinstance(value, list):
        raise BadBodyError(f"body: {what} is a list of names, not {json.dumps(value)[:100]}")
    return value


def check_clusters(body: object, cluster: str) -> None:
    """Of a namespace. Raises ``BadBodyError``, ``NotServedError`` for any but ``cluster``."""
    what = "namespace: replication"
    clusters = _names(what, body)
    if not clusters:
        raise BadBodyError(f"body: {what} names no cluster; this one is {cluster!r}")
    _check_clusters(what, clusters, cluster)


def _check_clusters(what: str, clusters: list[object], cluster: str) -> None:
    if any(each != cluster for each in clusters):
        raise NotServedError(
            f"{what} {json.dumps(clusters)[:200]} are not served: this is cluster {cluster!r}, and "
            "it knows no other"
        )


def refuse_what_is_not_served(what: str, about: Mapping[str, object]) -> None:
    """Raise ``NotServedError`` if a field of ``about`` asks for anything."""
    asked = sorted(key for key, value in about.items() if not _says_nothing(key, value))
    if asked:
        raise NotServedError(
            f"{what}: {', '.join(asked)[:500]} not served; leave that out. docs/rest.md lists what "
            "is served"
        )


def _says_nothing(key: str, value: object) -> bool:
    if isinstance(value, dict):
        return all(_says_nothing(inner, each) for inner, each in value.items())
    if isinstance(value, list):
        return not value
    # Compared with their types: True is not 1 here.
    default = ASKS_FOR_WHAT_IS_DONE.get(key)
    return any(type(value) is type(each) and value == each for each in (*SAYS_NOTHING, default))
