"""Users' SCRAM credentials, described and changed: DescribeUserScramCredentials,
AlterUserScramCredentials.

Those that are made here are in the metadata store (``cluster.security.stored_users``), and log in
at all brokers of the cluster that are set to take them (``security.stored_users``). Clients send
a salted password, which is enough to log in with; what is kept of it is not.

Rules:

* ``security.users_file`` counts first: a user that it has is described, and not changed here.
* Super-users are none of these: whoever could write into the metadata store, or made users while
  nobody was asked who he is, would be one.
* Where brokers ask who clients are, and take no such users, none are made.
* Of one user all is changed that a request says, or nothing.

Why: docs/adr/0154-roles-and-what-proves-them.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.cluster.security.stored_users import Kinds
from magnetar.cluster.security.users import (
    HASHES,
    ITERATIONS_LEAST,
    ScramCredentials,
    Users,
    check_user_name,
    credentials_of,
)
from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.scram_messages import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialDeletion,
    CredentialInfo,
    CredentialUpsertion,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

MECHANISMS: Final[Mapping[int, str]] = MappingProxyType({1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"})
ITERATIONS_MOST: Final = 16_384
"""As Kafka's brokers allow: each login costs its client that much."""
SALT_BYTES_MAX: Final = 256
CHANGES_MAX: Final = 1000
"""Of one request."""


class CredentialRefusedError(MagnetarError):
    """``code``: what the client is told beside the text."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


async def describe_users(
    session: KafkaSession, head: RequestHead, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    asked = Counter(each.name for each in request.users or [])
    answer = DescribeUserScramCredentialsResponse()
    try:
        users: Users = {**await session.services.control.users.all(), **_of_file(session.services)}
    except MagnetarError as error:
        answer.error_code, answer.error_message = error_code(error), str(error)
        return answer
    for name in asked or sorted(users):
        said = DescribedUser(name)
        answer.results.append(said)
        if asked[name] > 1:
            said.error_code = ErrorCode.DUPLICATE_RESOURCE
            said.error_message = f"user {name[:80]} is asked for twice"
        elif name not in users:
            said.error_code = ErrorCode.RESOURCE_NOT_FOUND
            said.error_message = f"user {name[:80]} has no credentials for SCRAM"
        else:
            kinds = users[name]
            said.credentials = [
                CredentialInfo(number, kinds[mechanism].iterations)
                for number, mechanism in MECHANISMS.items()
                if mechanism in kinds
            ]
    return answer


def _of_file(services: KafkaServices) -> Users:
    return {} if services.access is None else services.access.authenticator.file_users


async def alter_users(
    session: KafkaSession, head: RequestHead, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    answer = AlterUserScramCredentialsResponse()
    services, several = session.services, len(request.deletions) + len(request.upsertions)
    for name in request.names():
        said = AlteredUser(name)
        answer.results.append(said)
        try:
            if several > CHANGES_MAX:
                why = f"{several} changes in one request; {CHANGES_MAX} at most"
                raise CredentialRefusedError(ErrorCode.INVALID_REQUEST, why)
            await _alter(
                services,
                name,
                [each for each in request.deletions if each.name == name],
                [each for each in request.upsertions if each.name == name],
            )
        except CredentialRefusedError as error:
            said.error_code, said.error_message = error.code, str(error)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def _alter(
    services: KafkaServices,
    name: str,
    deletions: list[CredentialDeletion],
    upsertions: list[CredentialUpsertion],
) -> None:
    """Raises ``CredentialRefusedError``, and as ``StoredUsers.change``."""
    times = Counter(each.mechanism for each in deletions)
    times.update(each.mechanism for each in upsertions)
    if max(times.values()) > 1:
        why = f"user {name[:80]}: one mechanism is changed twice in one request"
        raise CredentialRefusedError(ErrorCode.DUPLICATE_RESOURCE, why)
    _check_may_have(services, name)
    gone = [_mechanism(each.mechanism) for each in deletions]
    made = {each.mechanism: each for each in map(_credentials, upsertions)}

    def changed(kinds: Kinds) -> Kinds:
        for mechanism in gone:
            if mechanism not in kinds:
                why = f"user {name[:80]} has no credentials for {mechanism} in the metadata store"
                raise CredentialRefusedError(ErrorCode.RESOURCE_NOT_FOUND, why)
        kept = {kind: each for kind, each in kinds.items() if kind not in gone}
        return {**kept, **made}

    await services.control.users.change(name, changed)


def _check_may_have(services: KafkaServices, name: str) -> None:
    """Whether a user of that name can be one of the store's. Raises ``CredentialRefusedError``."""
    try:
        check_user_name(name)
    except ConfigError as error:
        raise CredentialRefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    if services.access is None:
        return
    known = services.access.authenticator
    if not known.stored_users:
        raise CredentialRefusedError(
            ErrorCode.SECURITY_DISABLED,
            "security.stored_users is off: users of the metadata store would not log in. Turn it "
            "on, or use `magnetar users` and security.users_file",
        )
    if name in known.file_users:
        why = f"user {name} is in security.users_file, which counts; change it there"
    elif name in known.super_users:
        why = (
            f"{name} is a super-user: those show a certificate or a token, or are in "
            "security.users_file"
        )
    else:
        return
    raise CredentialRefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)


def _mechanism(number: int) -> str:
    """Raises ``CredentialRefusedError``."""
    found = MECHANISMS.get(number)
    if found is None:
        raise CredentialRefusedError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {number} of SCRAM; accepted: 1 (SHA-256), 2 (SHA-512)",
        )
    return found


def _credentials(asked: CredentialUpsertion) -> ScramCredentials:
    """Raises ``CredentialRefusedError``."""
    mechanism = _mechanism(asked.mechanism)
    size = 32 if HASHES[mechanism] == "sha256" else 64
    if not ITERATIONS_LEAST <= asked.iterations <= ITERATIONS_MOST:
        why = f"{asked.iterations} iterations; accepted: {ITERATIONS_LEAST} to {ITERATIONS_MOST}"
    elif not 0 < len(asked.salt) <= SALT_BYTES_MAX:
        why = f"a salt of {len(asked.salt)} bytes; accepted: 1 to {SALT_BYTES_MAX}"
    elif len(asked.salted_password) != size:
        why = f"a salted password of {len(asked.salted_password)} bytes; {mechanism} has {size}"
    else:
        salted, salt = bytes(asked.salted_password), bytes(asked.salt)
        return credentials_of(mechanism, salted, salt, asked.iterations)
    raise CredentialRefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)
