"""Users' SCRAM credentials: DescribeUserScramCredentials, AlterUserScramCredentials.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``. What
``salted_password`` holds logs its user in: it is in no text that is logged.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import array, blob, int8, int16, int32, message, text


@message()
class UserName:
    name: str = text()


@message(flexible=0)
class DescribeUserScramCredentialsRequest:
    """None, or nobody: all."""

    users: list[UserName] | None = array(UserName, null=0)


@message()
class CredentialInfo:
    """``mechanism``: 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    mechanism: int = int8()
    iterations: int = int32()


@message()
class DescribedUser:
    name: str = text()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    credentials: list[CredentialInfo] = array(CredentialInfo)


@message(flexible=0)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    results: list[DescribedUser] = array(DescribedUser)


@message()
class CredentialDeletion:
    name: str = text()
    mechanism: int = int8()


@message()
class CredentialUpsertion:
    name: str = text()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = blob()
    salted_password: bytes = blob()

    def __repr__(self) -> str:
        return f"CredentialUpsertion({self.name!r}, {self.mechanism}, {self.iterations})"


@message(flexible=0)
class AlterUserScramCredentialsRequest:
    deletions: list[CredentialDeletion] = array(CredentialDeletion)
    upsertions: list[CredentialUpsertion] = array(CredentialUpsertion)

    def names(self) -> list[str]:
        """Of the users that are changed, each once."""
        said = [each.name for each in self.deletions]
        return list(dict.fromkeys(said + [each.name for each in self.upsertions]))


@message()
class AlteredUser:
    name: str = text()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=0)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = int32()
    results: list[AlteredUser] = array(AlteredUser)
