"""``magnetar schemas``: look at, upload, test and delete the schemas of topics."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.rest import RestClient, schema_path, url_option
from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaType

TYPES = [kind.name for kind in SchemaType if kind.name not in ("NONE", "AUTO_CONSUME")]

type_option = click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES, case_sensitive=False),
    default="AVRO",
    show_default=True,
    help="What the definition is.",
)
file_option = click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The definition; types like STRING and INT64 have none.",
)
property_option = click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Repeatable."
)


@click.group()
def schemas() -> None:
    """Look at, upload, test and delete the schemas of topics.

    The partitions of a topic share one schema. Producers and consumers register theirs when they
    connect; what may follow what is the namespace's strategy (FULL, if nobody says otherwise).

    \b
    Examples:
      magnetar schemas get flights
      magnetar schemas list flights
      magnetar schemas test flights --file flight.avsc
      magnetar schemas upload flights --type AVRO --file flight.avsc
      magnetar schemas delete flights
    """


@schemas.command()
@click.argument("topic")
@click.option("--version", type=click.IntRange(0), help="Not the newest, but this one.")
@url_option
@json_option
def get(topic: str, version: int | None, url: str, as_json: bool) -> None:
    """Show the definition of TOPIC's schema."""
    path = f"{schema_path(topic)}/schema" + ("" if version is None else f"/{version}")
    found = RestClient(url).get(path)
    if as_json:
        print_json(found)
        return
    click.echo(f"version {found['version']}, {found['type']}, since {_time(found)}", err=True)
    for name, value in sorted(found["properties"].items()):
        click.echo(f"{name}={value}", err=True)
    click.echo(_pretty(found["data"]))


@schemas.command("list")
@click.argument("topic")
@url_option
@json_option
def list_versions(topic: str, url: str, as_json: bool) -> None:
    """List the versions of TOPIC's schema."""
    found = RestClient(url).get(f"{schema_path(topic)}/schemas")["getSchemaResponses"]
    if as_json:
        print_json(found)
        return
    rows = [(each["version"], each["type"], _time(each), len(each["data"])) for each in found]
    print_table(("version#", "type", "since", "characters#"), rows)


@schemas.command()
@click.argument("topic")
@type_option
@file_option
@property_option
@url_option
def upload(topic: str, kind: str, file: Path | None, properties: tuple[str, ...], url: str) -> None:
    """Give TOPIC a schema, if it may follow those that it has."""
    body = _body(kind, file, properties)
    found = RestClient(url).post(f"{schema_path(topic)}/schema", body)
    click.echo(f"the schema of {topic} has version {found['version']['version']}")


@schemas.command()
@click.argument("topic")
@type_option
@file_option
@property_option
@url_option
@click.pass_context
def test(
    context: click.Context,
    topic: str,
    kind: str,
    file: Path | None,
    properties: tuple[str, ...],
    url: str,
) -> None:
    """Say whether a schema could be uploaded to TOPIC; the exit code is 1 if not."""
    body = _body(kind, file, properties)
    found = RestClient(url).post(f"{schema_path(topic)}/compatibility", body)
    strategy = found["schemaCompatibilityStrategy"]
    if found["compatibility"]:
        click.echo(f"compatible ({strategy})")
    else:
        click.echo(found["reason"])
        context.exit(1)


@schemas.command()
@click.argument("topic")
@url_option
def delete(topic: str, url: str) -> None:
    """Delete every version of TOPIC's schema. Messages written with it can then be read by those
    who have the schema themselves."""
    RestClient(url).delete(f"{schema_path(topic)}/schema")
    click.echo(f"deleted the schema of {topic}")


def _body(kind: str, file: Path | None, properties: tuple[str, ...]) -> dict[str, Any]:
    pairs = {}
    for pair in properties:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--property {pair!r} cannot be used; accepted: NAME=VALUE")
        pairs[name] = value
    return {"type": kind, "schema": _definition(file), "properties": pairs}


def _definition(file: Path | None) -> str:
    try:
        return "" if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--file {file} cannot be read: {error}; accepted: text in UTF-8"
        ) from error


def _time(found: dict[str, Any]) -> str:
    return datetime.fromtimestamp(found["timestamp"] / 1000, UTC).isoformat(" ", "seconds")[:19]


def _pretty(data: str) -> str:
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except ValueError:
        return data
