"""With which version of its topic's schema a copy was written: bytes stay, versions do not.

A version is a number of one topic: what was written with version 3 here may be version 0 where the
copy goes. So the schema of the message is brought to that topic, as a producer with it would bring
it, and the copy carries the number that it has there. Readers of copies then read each of them by
the schema that wrote it.

A message without a version has none there either. One whose version its own topic's registry does
not know any more can be decoded by nobody, and says so (``UNKNOWN``); one whose schema the other
topic refuses would be decoded by another one, so it is not copied as if nothing were: the job ends
with the registry's reason, or has it ``REFUSED``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from magnetar.model.errors import IncompatibleSchemaError, SchemaNotFoundError
from magnetar.model.schema import TopicSchema
from magnetar.pipeline.brokers.client import CLIENTS
from magnetar.pipeline.jobs.destinations import TIMEOUT_S
from magnetar.pipeline.topic_names import full_topic, topic_of
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.worker_process import PROCESS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

KEEPS: Final = {"keepSchemaVersion": "true"}
"""The sink's option for it."""
UNKNOWN: Final = -1
REFUSED: Final = -2


class CopiedSchemas:
    """Of one task. ``in_order``: older versions of a topic are brought before a newer one, whoever
    comes first: most rules of compatibility ask of a schema what came before it. Where the topics
    that are read have schemas of several topics, as dead letters may, only those of messages are.
    ``tells``: a refusal ends the task."""

    def __init__(
        self, here: SchemaClient, there: SchemaClient, *, in_order: bool, tells: bool
    ) -> None:
        self._here = here
        self._there = there
        self._in_order = in_order
        self._tells = tells
        self._known: dict[tuple[str, str, int], int] = {}

    def version(self, topic: str, to: str, version: int) -> int:
        """Of the topic that a copy goes to; or ``UNKNOWN``, ``REFUSED``. Raises ``BrokerError``,
        ``IncompatibleSchemaError``."""
        topic, to = topic_of(full_topic(topic)), topic_of(full_topic(to))
        asked = topic, to, version
        if asked not in self._known:
            self._known[asked] = self._asked(topic, to, version)
        return self._known[asked]

    def _asked(self, topic: str, to: str, version: int) -> int:
        try:
            schema = self._here.at(topic, version)
        except SchemaNotFoundError:
            return UNKNOWN
        found = self._registered(to, version, schema)
        if found is not None:
            return found
        for older in range(version) if self._in_order else ():
            # Refused, it matters to those messages alone that were written with it.
            with suppress(SchemaNotFoundError, IncompatibleSchemaError):
                self._there.bring(to, self._here.at(topic, older))
        try:
            return self._there.bring(to, schema)
        except IncompatibleSchemaError as error:
            if not self._tells:
                return REFUSED
            raise _refusal(topic, to, version, schema, error) from error

    def _registered(self, to: str, version: int, schema: TopicSchema) -> int | None:
        """As what it is registered already, where it most likely is: as the newest version, or
        under the number that it has here. To bring one takes a producer, and every task asks."""
        latest = self._there.latest(to)
        if latest is None:
            return None
        if latest.schema == schema:
            return latest.version
        try:
            same = version < latest.version and self._there.at(to, version) == schema
        except SchemaNotFoundError:
            same = False
        return version if same else None


def _refusal(
    topic: str, to: str, version: int, schema: TopicSchema, error: IncompatibleSchemaError
) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(
        f"{topic}: messages that were written with version {version} of its schema "
        f"({schema.kind.name}) cannot be copied to {to}, which refuses it: {error}. Nothing could "
        "decode their copies: let the namespace there take it (its policies of schemas: "
        "compatibility, automatic update), or copy to another topic"
    )


def versions_there(
    here: str, there: str, *, in_order: bool = False, tells: bool = False
) -> Callable[[Column, Column, Column], Column]:
    """A function of columns: a message's topic, the topic that its copy goes to, and its version,
    -> the version there, as ``CopiedSchemas`` has it; null where there is none."""
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf

    of_task: dict[str, CopiedSchemas] = {}  # each has a copy: it is pickled with the function

    # Spark pickles this function by value, with every global that it names: so it names one, which
    # is pickled by its name.
    def found(topics: Any, to: Any, versions: Any) -> Any:
        return found_there(topics, to, versions, of_task, here, there, in_order, tells)

    # Spark tells by these what kind of function it is, and cannot look names up that it has not.
    found.__annotations__ = dict.fromkeys(("topics", "to", "versions", "return"), pa.Array)
    made: Any = arrow_udf(found, "bigint")  # type: ignore[call-overload]

    def column(topic: Column, to: Column, version: Column) -> Column:
        number: Column = made(topic, to, version)
        return f.when(version.isNotNull(), number)

    return column


def found_there(
    topics: pa.Array,
    to: pa.Array,
    versions: pa.Array,
    of_task: dict[str, CopiedSchemas],
    here: str,
    there: str,
    in_order: bool,
    tells: bool,
) -> pa.Array:
    """In the task; null without a version, or a topic to go to."""
    import pyarrow as pa

    if versions.null_count == len(versions):
        return versions
    if not of_task:
        PROCESS.prepare()
        clients = (SchemaClient(CLIENTS.get(url, TIMEOUT_S), TIMEOUT_S) for url in (here, there))
        of_task[""] = CopiedSchemas(*clients, in_order=in_order, tells=tells)
    schemas = of_task[""]
    rows = zip(topics.to_pylist(), to.to_pylist(), versions.to_pylist(), strict=True)
    found = [None if None in row else schemas.version(*row) for row in rows]
    return pa.array(found, pa.int64())
