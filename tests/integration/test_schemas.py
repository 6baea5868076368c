"""Schemas of a real platform: kept over kills, in ledgers, and by hand."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from tests.integration.test_standalone import connected, magnetar
from tests.standalone import Standalone


class Flight(Record):
    carrier = String()
    number = Integer()


class LaterFlight(Record):
    carrier = String()
    number = Integer()
    gate = String(default="", required_default=True)


class OtherFlight(Record):
    carrier = Integer()


def held_by_schemas(platform: Standalone) -> list[str]:
    """Whose schemas lie in ledgers."""
    found = httpx.get(f"{platform.http_url}/magnetar/v1/ledgers?limit=100", timeout=60).json()
    return [
        each["custom"]["magnetar-schema"] for each in found if "magnetar-schema" in each["custom"]
    ]


@pytest.mark.parametrize("bookies", ["1", "3"])
def test_a_kill_takes_nothing_of_them(tmp_path: Path, bookies: str) -> None:
    platform = Standalone(tmp_path / "data", "--bookies", bookies)
    platform.start()
    client = connected(platform)
    client.create_producer("t", schema=AvroSchema(Flight)).send(Flight(carrier="AA", number=1))
    later = client.create_producer("t", schema=AvroSchema(LaterFlight))
    later.send(LaterFlight(carrier="BB", number=2, gate="A1"))
    platform.kill()
    client.close()
    with platform:
        client = connected(platform)
        reader = client.create_reader(
            "t", pulsar.MessageId.earliest, schema=AvroSchema(LaterFlight)
        )
        found = [reader.read_next(60_000) for _ in range(2)]
        assert [each.schema_version().encode("latin-1")[-1] for each in found] == [0, 1]
        assert [each.value().gate for each in found] == ["", "A1"], "the default, and what was sent"
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer("t", schema=AvroSchema(OtherFlight))
        client.create_producer("t", schema=AvroSchema(Flight)).send(Flight(carrier="CC", number=3))
        assert reader.read_next(60_000).value().number == 3
        assert held_by_schemas(platform) == ["persistent://public/default/t"] * 2
        client.close()


def test_schemas_by_hand(tmp_path: Path) -> None:
    def file(name: str, *kinds: str) -> str:
        fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
        path = tmp_path / name
        path.write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
        return str(path)

    first, wrong = file("first", "int"), file("wrong", "string")
    with Standalone(tmp_path / "data") as platform:

        def schemas(*arguments: str) -> tuple[int, str]:
            done = magnetar("schemas", *arguments, platform=platform)
            return done.returncode, done.stdout + done.stderr

        assert schemas("get", "t") == (
            1,
            "magnetar: topic persistent://public/default/t has no schema\n",
        )
        assert schemas("upload", "t", "--file", first, "--property", "owner=me") == (
            0,
            "the schema of t has version 0\n",
        )
        code, said = schemas("get", "t")
        assert code == 0
        assert "version 0, AVRO, since 20" in said
        assert "owner=me" in said
        assert '"name": "f0"' in said
        assert schemas("test", "t", "--file", first) == (0, "compatible (FULL)\n")
        code, said = schemas("test", "t", "--file", wrong)
        assert (code, "R.f0: int cannot be read as string" in said) == (1, True)
        code, said = schemas("upload", "t", "--file", wrong)
        assert (code, "R.f0" in said) == (1, True)
        code, said = schemas("list", "t", "--json")
        assert [each["version"] for each in json.loads(said)] == [0]
        assert held_by_schemas(platform) == ["persistent://public/default/t"]
        assert schemas("delete", "t") == (0, "deleted the schema of t\n")
        assert held_by_schemas(platform) == []
        assert schemas("upload", "t", "--type", "string") == (0, "the schema of t has version 2\n")
        assert magnetar("topics", "delete", "t", platform=platform).returncode == 1, "not a topic"
