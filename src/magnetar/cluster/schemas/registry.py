"""The schemas of a cluster's topics: found, registered, checked, deleted.

Each version's definition is a value in a ledger of its own, written before the topic's record
(``record``) names it; the record is one node of the metadata store, changed by compare-and-set.

Rules:

* A schema that the topic has, by ``rules.identity``, is that version and no new one, however often
  and from however many brokers at a time it comes.
* A version's number is given once and stands for one definition for ever, so definitions are kept
  in memory by ledger, bounded in bytes. Records are kept as long as the store watches them
  (``watched_nodes``): who connects with a schema that is known costs no read of anything.
* What a schema is, and that it reads a version, never changes either: each is found out once and
  kept, so that a thousand clients that come back at a time cost a thousand hashes.
* What a record names exists: a ledger is written before, and deleted after, its version stands
  there. A process that dies between, and a topic that is deleted while its record cannot be read,
  leave small ledgers that nothing names (``magnetar-schema`` in its metadata says whose).

Why: docs/adr/0078-schema-registry.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from urllib.parse import unquote

import structlog

from magnetar.cluster.schemas import rules
from magnetar.cluster.schemas.kept import KeptDefinitions, KnownAnswers
from magnetar.cluster.schemas.policies import SchemaPolicies
from magnetar.cluster.schemas.record import (
    NO_RECORD,
    SCHEMAS,
    SchemaRecord,
    StoredVersion,
    decode_record,
    decode_schema,
    encode_record,
    encode_schema,
    record_path,
)
from magnetar.cluster.stored.counters import RACES_MAX
from magnetar.cluster.stored.watched_nodes import WatchedNodes
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.emptied_nodes import delete_emptied
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    IncompatibleSchemaError,
    MagnetarError,
    NodeExistsError,
    NoNodeError,
    SchemaNotFoundError,
)
from magnetar.model.schema import RegisteredSchema, SchemaStrategy, TopicSchema

log = structlog.get_logger(__name__)


class ValueStore(Protocol):
    """Where definitions are kept: values that never change, each with a ledger's id."""

    async def put(self, value: bytes, about: Mapping[str, bytes]) -> int: ...

    async def get(self, ledger_id: int) -> bytes: ...

    async def delete(self, ledger_id: int) -> None: ...


class Schemas:
    """See the module's text. A topic's name may be that of any of its partitions."""

    def __init__(
        self,
        metadata: MetadataStore,
        values: ValueStore,
        policies: SchemaPolicies,
        now_ms: Callable[[], int],
    ) -> None:
        self.policies = policies
        self._metadata = metadata
        self._values = values
        self._now_ms = now_ms
        self._records = WatchedNodes(metadata, decode_record)
        self._kept = KeptDefinitions()
        self._identities: KnownAnswers[bytes, str] = KnownAnswers()
        self._readers: KnownAnswers[tuple[str, int, SchemaStrategy], bool] = KnownAnswers()
        self._turns: dict[str, _Turn] = {}

    def close(self) -> None:
        self._records.close()

    # -- asking -------------------------------------------------------------------------------

    async def has_schema(self, name: TopicName) -> bool:
        return bool((await self._record(name)).versions)

    async def find(self, name: TopicName, schema: TopicSchema) -> int | None:
        """The version that this schema has on the topic. Raises ``InvalidSchemaError``."""
        found = (await self._record(name)).find(self._identity(schema))
        return None if found is None else found.version

    async def latest(self, name: TopicName) -> RegisteredSchema | None:
        record = await self._record(name)
        return await self._definition(record.versions[-1]) if record.versions else None

    async def at(self, name: TopicName, version: int) -> RegisteredSchema | None:
        """None for a version that is not there (any more)."""
        record = await self._record(name)
        if version >= record.next_version:
            # Another broker may have registered it just now, and a message came faster than the
            # store told of it.
            self._records.forget(record_path(name))
            record = await self._record(name)
        found = record.at(version)
        return None if found is None else await self._definition(found)

    async def versions(self, name: TopicName) -> list[RegisteredSchema]:
        """From the oldest on."""
        return [await self._definition(each) for each in (await self._record(name)).versions]

    async def _record(self, name: TopicName) -> SchemaRecord:
        return await self._records.get(record_path(name))

    async def _definition(self, stored: StoredVersion) -> RegisteredSchema:
        found = self._kept.get(stored.ledger_id)
        if found is None:
            payload = await self._values.get(stored.ledger_id)
            found = decode_schema(stored.version, payload)
            self._kept.put(stored.ledger_id, found)
        return found

    # -- producers and consumers --------------------------------------------------------------

    async def bring(self, name: TopicName, schema: TopicSchema) -> int:
        """A client that writes brings ``schema``: its version, registered if the topic takes it.
        Raises ``InvalidSchemaError``, ``IncompatibleSchemaError``."""
        found = await self.find(name, schema)
        if found is not None:
            return found
        policy = await self.policies.effective(name)
        if not policy.auto_update:
            raise IncompatibleSchemaError(
                f"topic {name.partitioned} has no such schema, and its namespace takes none from "
                "producers and consumers (isAllowAutoUpdateSchema is false): upload it first "
                "(`magnetar schemas upload`)"
            )
        return await self.register(name, schema)

    async def check_without(self, name: TopicName) -> None:
        """A producer comes without a schema. Raises ``IncompatibleSchemaError`` where they must
        have one."""
        policy = await self.policies.effective(name)
        if policy.validation_enforced and await self.has_schema(name):
            raise IncompatibleSchemaError(
                f"topic {name.partitioned} has a schema, and producers without one are refused "
                "(schemaValidationEnforced, of it or its namespace): give the producer one"
            )

    async def check_reader(self, name: TopicName, schema: TopicSchema) -> None:
        """A consumer reads with ``schema``. Raises ``InvalidSchemaError``,
        ``IncompatibleSchemaError``, and ``SchemaNotFoundError`` when there is none."""
        identity = self._identity(schema)
        record = await self._record(name)
        if not record.versions:
            raise SchemaNotFoundError(f"topic {name.partitioned} has no schema")
        strategy = (await self.policies.effective(name)).strategy
        everything = rules.reader_needs_all(strategy)
        known = record.find(identity)
        if known is not None and strategy is SchemaStrategy.ALWAYS_INCOMPATIBLE:
            return
        for stored in record.versions if everything else record.versions[-1:]:
            question = identity, stored.ledger_id, strategy
            if stored is not known and self._readers.get(question) is None:
                rules.check_reader(schema, await self._definition(stored), strategy)
                self._readers.put(question, True)
                await _give_way()

    async def check_next(self, name: TopicName, schema: TopicSchema) -> SchemaStrategy:
        """Whether ``schema`` could be registered; the strategy by which. Raises
        ``InvalidSchemaError``, ``IncompatibleSchemaError``."""
        record = await self._record(name)
        if record.find(self._identity(schema)) is None:
            await self._check_next(name, schema, record)
        return (await self.policies.effective(name)).strategy

    async def _check_next(self, name: TopicName, schema: TopicSchema, record: SchemaRecord) -> None:
        record.check_room(name)
        strategy = (await self.policies.effective(name)).strategy
        everything = rules.needs_all(strategy)
        for stored in reversed(record.versions if everything else record.versions[-1:]):
            rules.check_next(schema, await self._definition(stored), strategy)
            await _give_way()

    def _identity(self, schema: TopicSchema) -> str:
        """Raises ``InvalidSchemaError``."""
        brought = rules.fingerprint(schema)
        found = self._identities.get(brought)
        if found is None:
            rules.check(schema)
            found = rules.identity(schema)
            self._identities.put(brought, found)
        return found

    # -- changing -----------------------------------------------------------------------------

    async def register(self, name: TopicName, schema: TopicSchema) -> int:
        """The version of ``schema``, a new one if the topic has it not and its strategy allows.
        Raises ``InvalidSchemaError``, ``IncompatibleSchemaError``."""
        path, identity = record_path(name), self._identity(schema)
        ledger_id: int | None = None
        unknown = False
        try:
            async with self._turn(path):  # those who come at once with one schema make one ledger
                for _ in range(RACES_MAX):
                    record, node_version = await self._read(path)
                    found = record.find(identity)
                    if found is not None:
                        return found.version
                    await self._check_next(name, schema, record)
                    if ledger_id is None:
                        ledger_id = await self._store(name, schema)
                    new = record.with_version(ledger_id, identity)
                    unknown = True  # until the store has answered it may have happened
                    if await self._write(path, new, node_version):
                        ledger_id = None
                        log.info(
                            "schema registered",
                            topic=str(name.partitioned),
                            type=schema.kind.name,
                            version=record.next_version,
                        )
                        return record.next_version
                    unknown = False
        finally:
            if ledger_id is not None and not unknown:
                await self._delete_values([ledger_id])
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    async def _store(self, name: TopicName, schema: TopicSchema) -> int:
        about = {"magnetar-schema": str(name.partitioned).encode()}
        return await self._values.put(encode_schema(schema, self._now_ms()), about)

    async def delete(self, name: TopicName) -> int:
        """Forget every version; the number that the deletion takes. Raises
        ``SchemaNotFoundError`` when there is none."""
        path = record_path(name)
        async with self._turn(path):
            for _ in range(RACES_MAX):
                record, node_version = await self._read(path)
                if not record.versions:
                    raise SchemaNotFoundError(f"topic {name.partitioned} has no schema")
                emptied = record.emptied()
                if await self._write(path, emptied, node_version):
                    # After the record: it must never name a ledger that is not there.
                    await self._delete_values(emptied.deleting)
                    return record.next_version
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    async def forget_topic(self, name: TopicName) -> None:
        """The topic was deleted, with all its partitions; no error when it had no schema. A record
        that cannot be read goes as well: ledgers that it named are left behind."""
        path = record_path(name)
        try:
            await self._read(path)
        except BrokerMetadataError as error:
            log.warning("schemas are forgotten, their ledgers stay", error=str(error))
        else:
            await self._delete_all(name)
        try:
            await self._metadata.delete(path)
        except NoNodeError:
            return
        finally:
            self._records.forget(path)

    async def _delete_all(self, name: TopicName) -> None:
        with suppress(SchemaNotFoundError):  # the record may be there all the same
            await self.delete(name)
        record, _ = await self._read(record_path(name))
        for ledger_id in record.deleting:
            await self._values.delete(ledger_id)  # what fails is asked for again with the topic

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics: so are schemas of topics that never were."""
        try:
            names = await self._metadata.children(f"{SCHEMAS}/{namespace}")
        except NoNodeError:
            return
        for name in names:
            await self.forget_topic(parse_topic(f"{namespace}/{unquote(name)}"))
        await delete_emptied(self._metadata, f"{SCHEMAS}/{namespace}", SCHEMAS)

    async def _delete_values(self, ledger_ids: Sequence[int]) -> None:
        """What fails stays named in the record, and goes with the topic."""
        for ledger_id in ledger_ids:
            try:
                await self._values.delete(ledger_id)
            except MagnetarError as error:
                log.warning("schema's ledger not deleted", ledger=ledger_id, error=str(error))

    async def _read(self, path: str) -> tuple[SchemaRecord, int]:
        """From the store, not from memory: the version to compare with is read here. -1: there is
        no node."""
        try:
            node = await self._metadata.get(path)
        except NoNodeError:
            return NO_RECORD, -1
        return decode_record(path, node.value), node.version

    async def _write(self, path: str, record: SchemaRecord, node_version: int) -> bool:
        """False when somebody else was first."""
        try:
            if node_version < 0:
                await self._metadata.create(path, encode_record(record))
            else:
                await self._metadata.put(path, encode_record(record), node_version)
        except (NodeExistsError, BadVersionError, NoNodeError):
            return False
        finally:
            self._records.forget(path)  # one that failed may have happened
        return True

    @asynccontextmanager
    async def _turn(self, path: str) -> AsyncIterator[None]:
        """One change of a record at a time; other brokers are met by compare-and-set."""
        turn = self._turns.setdefault(path, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[path]


async def _give_way() -> None:
    """A comparison may take long; others have their turn between two of them."""
    await asyncio.sleep(0)


class _Turn:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
