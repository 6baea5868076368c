"""The options that say what a message's value is: of reads and of writes. Pure.

| ``valueFormat`` | read | write |
|---|---|---|
| ``bytes`` (a read's default) | as stored | binary or string, as it is |
| ``auto`` (a write's default) | columns if the topic has a schema, else bytes | by a schema, unless ``value`` is binary or string |
| ``schema`` | columns; without a schema refused | by the topic's schema; AVRO if it has none |
| ``avro``, ``json`` | the same, and the schema is of that type | the same, and of that type |

| ``mode`` | a value that cannot be read by the schema |
|---|---|
| ``FAILFAST`` (default) | ends the query; the error names the message |
| ``PERMISSIVE`` | is null, and its bytes are in the column ``_corrupt_record`` |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaType
from magnetar.pipeline.option_values import OptionValues

BYTES: Final = "bytes"
AUTO: Final = "auto"
SCHEMA: Final = "schema"
TYPE_OF: Final = {"avro": SchemaType.AVRO, "json": SchemaType.JSON}
FORMATS: Final = (BYTES, AUTO, SCHEMA, *TYPE_OF)

VALUE_READ_OPTIONS: Final = ("valueFormat", "mode")
VALUE_WRITE_OPTIONS: Final = ("valueFormat",)


@dataclass(frozen=True)
class ValueOptions:
    format: str = BYTES
    permissive: bool = False

    def check_type(self, kind: SchemaType, topic: str) -> None:
        """Raises ``ConfigError`` if another type of schema was asked for."""
        wanted = TYPE_OF.get(self.format, kind)
        if kind is not wanted:
            raise ConfigError(
                f"option 'valueFormat' is {self.format}, and the schema of {topic} is "
                f"{kind.name}; valueFormat=schema takes it as it is"
            )


READ_AS_BYTES: Final = ValueOptions()
WRITTEN_AS_THEY_ARE: Final = ValueOptions(AUTO)


def parse_values_read(options: OptionValues) -> ValueOptions:
    """Raises ``ConfigError``."""
    return ValueOptions(
        options.choice("valueFormat", FORMATS),
        options.choice("mode", ("failfast", "permissive")) == "permissive",
    )


def parse_values_written(options: OptionValues) -> ValueOptions:
    """Raises ``ConfigError``."""
    return ValueOptions(options.choice("valueFormat", (AUTO, BYTES, SCHEMA, *TYPE_OF)))
