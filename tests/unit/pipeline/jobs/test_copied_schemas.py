"""Which version a copy carries, and what is registered for it."""

from __future__ import annotations

import pytest

from magnetar.model.errors import IncompatibleSchemaError, SchemaNotFoundError
from magnetar.model.schema import RegisteredSchema, SchemaType, TopicSchema
from magnetar.pipeline.jobs.copied_schemas import REFUSED, UNKNOWN, CopiedSchemas

HERE, THERE = "persistent://public/default/here", "persistent://public/default/there"


def schema(name: str) -> TopicSchema:
    return TopicSchema(SchemaType.AVRO, name.encode())


A, B, C = map(schema, "ABC")


class FakeRegistry:
    """Of one topic. ``refuses``: schemas that it does not take."""

    def __init__(
        self, *versions: TopicSchema | None, refuses: tuple[TopicSchema, ...] = ()
    ) -> None:
        self.versions = list(versions)
        self.brought: list[TopicSchema] = []
        self._refuses = refuses

    def latest(self, topic: str) -> RegisteredSchema | None:
        assert topic == THERE
        if not self.versions or (newest := self.versions[-1]) is None:
            return None
        return RegisteredSchema(len(self.versions) - 1, newest, 0)

    def at(self, topic: str, version: int) -> TopicSchema:
        assert topic in (HERE, THERE)
        found = self.versions[version] if version < len(self.versions) else None
        if found is None:
            raise SchemaNotFoundError(f"no version {version}")
        return found

    def bring(self, topic: str, wanted: TopicSchema) -> int:
        assert topic == THERE
        self.brought.append(wanted)
        if wanted in self.versions:
            return self.versions.index(wanted)
        if wanted in self._refuses:
            raise IncompatibleSchemaError("it does not read what is there")
        self.versions.append(wanted)
        return len(self.versions) - 1


def copied(
    here: FakeRegistry, there: FakeRegistry, *, in_order: bool = True, tells: bool = True
) -> CopiedSchemas:
    return CopiedSchemas(here, there, in_order=in_order, tells=tells)  # type: ignore[arg-type]


def test_older_versions_come_first_whoever_comes_first() -> None:
    """A task that met a newer version first had it registered first, and the older one refused."""
    there = FakeRegistry()
    found = copied(FakeRegistry(A, None, B, C), there)
    assert found.version(f"{HERE}-partition-3", THERE, 2) == 1
    assert there.versions == [A, B]
    assert [found.version(HERE, THERE, number) for number in (0, 3, 1)] == [0, 2, UNKNOWN]
    assert there.versions == [A, B, C]


def test_what_is_registered_is_not_brought_again() -> None:
    there = FakeRegistry(A, B, C)
    found = copied(FakeRegistry(A, B, C), there)
    assert [found.version(HERE, THERE, number) for number in (2, 0, 2, 1)] == [2, 0, 2, 1]
    assert not there.brought


def test_of_dead_letters_only_their_own_schema_is_brought() -> None:
    """A dead letter topic may have schemas of several topics."""
    there = FakeRegistry(C)
    assert copied(FakeRegistry(A, B), there, in_order=False).version(HERE, THERE, 1) == 1
    assert there.versions == [C, B]


def test_a_schema_that_is_refused() -> None:
    here = FakeRegistry(A, B)
    there = FakeRegistry(refuses=(A,))
    assert copied(here, there).version(HERE, THERE, 1) == 0, "no message of A was met"
    assert copied(here, there, tells=False).version(HERE, THERE, 0) == REFUSED
    with pytest.raises(IncompatibleSchemaError, match=r"version 0 .* it does not read what"):
        copied(here, there).version(HERE, THERE, 0)
