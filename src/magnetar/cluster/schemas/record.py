"""What the metadata store says of a topic's schemas: which versions there are, and the ledger that
holds each. Frozen; a change makes a new one, which is written by compare-and-set.

Node ``/schemas/<tenant>/<namespace>/<local>`` (docs/formats/schemas.md), JSON. Version numbers are
never given twice while the record is there: a deletion takes one, so that what was written before
it is not read with a schema that came after.

Also the bytes that a version's ledger holds: one line of JSON, then the definition as it came.

Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import BrokerMetadataError, IncompatibleSchemaError
from magnetar.model.schema import RegisteredSchema, SchemaType, TopicSchema

SCHEMAS: Final = "/schemas"
FORMAT: Final = 1
VERSIONS_MAX: Final = 500
"""Of one topic, since its last deletion. A record of so many has some 100 kB."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    version: int
    ledger_id: int
    identity: str
    """``rules.identity``, by which a schema that comes again is found."""


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    versions: tuple[StoredVersion, ...] = ()
    """From the oldest on."""
    next_version: int = 0
    deleting: tuple[int, ...] = ()
    """Ledgers of versions that were deleted, and may still exist."""

    def find(self, identity: str) -> StoredVersion | None:
        """The version that has this schema. The newest, should there be several."""
        found = (each for each in reversed(self.versions) if each.identity == identity)
        return next(found, None)

    def at(self, version: int) -> StoredVersion | None:
        return next((each for each in self.versions if each.version == version), None)

    def check_room(self, name: TopicName) -> None:
        """Raises ``IncompatibleSchemaError`` when the topic has as many versions as it may."""
        if len(self.versions) >= VERSIONS_MAX:
            raise IncompatibleSchemaError(
                f"topic {name} has {len(self.versions)} versions of its schema, as many as are "
                "kept: something makes a new one each time. Delete its schemas, or use one"
            )

    def with_version(self, ledger_id: int, identity: str) -> SchemaRecord:
        new = StoredVersion(self.next_version, ledger_id, identity)
        return replace(self, versions=(*self.versions, new), next_version=self.next_version + 1)

    def emptied(self) -> SchemaRecord:
        """Every version deleted; the deletion takes a number itself."""
        gone = tuple(each.ledger_id for each in self.versions)
        return SchemaRecord((), self.next_version + 1, (*self.deleting, *gone))


NO_RECORD: Final = SchemaRecord()


def record_path(name: TopicName) -> str:
    """Of the topic that ``name`` is, or is a partition of."""
    base = name.partitioned
    return f"{SCHEMAS}/{base.namespace}/{base.encoded_local}"


def encode_record(record: SchemaRecord) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(record)}, separators=(",", ":")).encode()


def decode_record(path: str, value: bytes | None) -> SchemaRecord:
    """``NO_RECORD`` for a node that does not exist. Raises ``BrokerMetadataError``."""
    if value is None:
        return NO_RECORD
    try:
        node: dict[str, Any] = json.loads(value)
        if node["format"] != FORMAT:
            raise BrokerMetadataError(
                f"{path} is of format {node['format']!r}; this release reads {FORMAT}"
            )
        return SchemaRecord(
            tuple(
                StoredVersion(int(each["version"]), int(each["ledger_id"]), str(each["identity"]))
                for each in node["versions"]
            ),
            int(node["next_version"]),
            tuple(map(int, node["deleting"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerMetadataError(f"{path} holds {value[:40]!r}, no record of schemas") from error


def encode_schema(schema: TopicSchema, created_ms: int) -> bytes:
    head = {
        "format": FORMAT,
        "type": schema.kind.name,
        "created_ms": created_ms,
        "properties": dict(schema.properties),
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + schema.data


def decode_schema(version: int, payload: bytes) -> RegisteredSchema:
    """Raises ``BrokerMetadataError``."""
    head, _, data = payload.partition(b"\n")
    try:
        node = json.loads(head)
        schema = TopicSchema(SchemaType[node["type"]], data, dict(node["properties"]))
        return RegisteredSchema(version, schema, int(node["created_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BrokerMetadataError(f"a ledger holds {head[:40]!r}, no schema") from error
