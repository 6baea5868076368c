"""SCRAM credentials through Kafka's requests: who may change whose, and who logs in by them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from magnetar.protocols.kafka.handlers.scram_users import CHANGES_MAX
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.scram_messages import (
    AlterUserScramCredentialsRequest,
    CredentialDeletion,
    CredentialUpsertion,
    DescribeUserScramCredentialsRequest,
    UserName,
)
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run
from tests.unit.protocols.kafka.secured import ROOT, SecuredWorld, run_secured

LEAST = 4096
SHA_256, SHA_512 = 1, 2


def upsertion(name: str = "carol", kind: int = SHA_256, **fields: Any) -> CredentialUpsertion:
    hash_name = "sha256" if kind == SHA_256 else "sha512"
    salted = hashlib.pbkdf2_hmac(hash_name, b"hers", b"salt", LEAST)
    said = {"iterations": LEAST, "salt": b"salt", "salted_password": salted, **fields}
    return CredentialUpsertion(name, kind, **said)


async def altered(peer: KafkaPeer, *changes: CredentialDeletion | CredentialUpsertion) -> Any:
    """User -> ``(error, text)``."""
    asked = AlterUserScramCredentialsRequest(
        [each for each in changes if isinstance(each, CredentialDeletion)],
        [each for each in changes if isinstance(each, CredentialUpsertion)],
    )
    answer = await peer.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, asked)
    return {each.name: (each.error_code, each.error_message) for each in answer.results}


async def described(peer: KafkaPeer, *names: str) -> dict[str, Any]:
    """User -> mechanisms with their iterations, or an error."""
    asked = DescribeUserScramCredentialsRequest([UserName(name) for name in names] or None)
    answer = await peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, asked)
    assert answer.error_code == 0, answer.error_message
    return {
        each.name: each.error_code or {one.mechanism: one.iterations for one in each.credentials}
        for each in answer.results
    }


def test_users_are_made_changed_described_and_deleted() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await described(peer, "carol") == {"carol": ErrorCode.RESOURCE_NOT_FOUND}
        assert await altered(peer, upsertion(), upsertion("dave", SHA_512)) == {
            "carol": (0, None),
            "dave": (0, None),
        }
        assert await altered(peer, upsertion(iterations=5000), upsertion(kind=SHA_512)) == {
            "carol": (0, None)
        }
        both = {"carol": {SHA_256: 5000, SHA_512: LEAST}, "dave": {SHA_512: LEAST}}
        assert await described(peer) == both
        assert await described(peer, "dave", "x") == {
            "dave": both["dave"],
            "x": ErrorCode.RESOURCE_NOT_FOUND,
        }
        assert await altered(peer, CredentialDeletion("carol", SHA_256)) == {"carol": (0, None)}
        assert await described(peer) == {"carol": {SHA_512: LEAST}, "dave": both["dave"]}
        ((code, why),) = (await altered(peer, CredentialDeletion("carol", SHA_256))).values()
        assert (code, "SCRAM-SHA-256" in why) == (ErrorCode.RESOURCE_NOT_FOUND, True)

    run(scenario)


def test_what_cannot_be_kept_is_refused_and_changes_nothing() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for change, error in (
            (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(salt=bytes(257)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(salted_password=bytes(31)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion("a,b"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
            (upsertion(kind=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
            (CredentialDeletion("carol", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ):
            ((code, why),) = (await altered(peer, change)).values()
            assert code == error, change
            assert why
        (said,) = (await altered(peer, upsertion(), upsertion(kind=3))).values()
        assert said[0] == ErrorCode.UNSUPPORTED_SASL_MECHANISM, "all of one user, or nothing"
        (said,) = (await altered(peer, upsertion(), CredentialDeletion("carol", SHA_256))).values()
        assert said[0] == ErrorCode.DUPLICATE_RESOURCE
        many = [upsertion(f"user-{number}") for number in range(CHANGES_MAX + 1)]
        assert {code for code, _ in (await altered(peer, *many)).values()} == {
            ErrorCode.INVALID_REQUEST
        }
        assert await described(peer) == {}
        assert await described(peer, "x", "x") == {"x": ErrorCode.DUPLICATE_RESOURCE}

    run(scenario)


def test_users_are_super_users_business(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        alice, root = await world.known("alice"), await world.known(ROOT)
        await world.grant("alice", "produce", "consume")
        assert await altered(alice, upsertion()) == {
            "carol": (
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "this is for super-users (security.super_users)",
            )
        }
        asked = DescribeUserScramCredentialsRequest(None)
        answer = await alice.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, asked)
        assert (answer.error_code, answer.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        assert await altered(root, upsertion()) == {"carol": (0, None)}
        of_file = {
            "alice": {SHA_256: LEAST, SHA_512: LEAST},
            "bob": {SHA_256: LEAST, SHA_512: LEAST},
        }
        assert await described(root) == {**of_file, "carol": {SHA_256: LEAST}}
        for name in ("alice", ROOT):
            ((code, why),) = (await altered(root, upsertion(name))).values()
            assert (code, "security.users_file" in why) == (ErrorCode.UNACCEPTABLE_CREDENTIAL, True)

    run_secured(tmp_path, scenario, stored_users=True)


def test_no_user_is_made_that_could_not_log_in(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        ((code, why),) = (await altered(await world.known(ROOT), upsertion())).values()
        assert code == ErrorCode.SECURITY_DISABLED
        assert "security.stored_users is off" in why

    run_secured(tmp_path, scenario)


def test_nothing_of_a_salted_password_is_in_a_text() -> None:
    shown = repr(AlterUserScramCredentialsRequest([], [upsertion()]))
    assert "carol" in shown
    assert "salt" not in shown
