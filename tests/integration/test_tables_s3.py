"""A topic's table on object storage: an S3 server, and nothing else known of it than its address.

`make tables` installs the server (``tests.s3_server``), which no other test needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars
import pulsar
import pyarrow.parquet
import pytest

from magnetar.pipeline.jobs.table import catalog_of
from magnetar.pipeline.tables.taking import Taking, TakingOptions
from magnetar.pipeline.tables.topic_table import TopicTable
from tests.integration.test_tables import full, ledgers, publish, received, told, wait_until
from tests.s3_server import REGION, SERVER, S3Server
from tests.standalone import Standalone

pytestmark = pytest.mark.slow
BUCKET, TOPIC = "tables", "stored"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    if not SERVER:
        pytest.skip("make tables installs an S3 server")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with S3Server(BUCKET, tmp_path / "s3.log") as running:
        yield running


def test_ledgers_go_to_object_storage_and_come_back(server: S3Server, tmp_path: Path) -> None:
    catalog = catalog_of(
        f"s3://{BUCKET}/warehouse",
        f"sqlite:///{tmp_path}/catalog.db",
        [f"s3.endpoint=http://{server.endpoint}", f"s3.region={REGION}"],
    )
    small = ("--set", "ledger.ledger_entries_max=40", "--set", "ledger.tabled_ledger_ms_least=0")
    with Standalone(tmp_path / "data", *small) as platform:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(platform.service_url, logger=logger)
        publish(client, TOPIC, 0, 500, batching_enabled=True, batching_max_messages=3)
        before = received(client, TOPIC, 500)
        with closing(Taking(TakingOptions(platform.service_url, catalog, kept_ms=1))) as job:
            (done,) = job.take([full(TOPIC)])
        assert done.errors == []
        wait_until(lambda: any(each["offloaded"] for each in ledgers(platform, TOPIC)))
        after = received(client, TOPIC, 500)
        assert [told(message) for message in after] == [told(message) for message in before]
        client.close()
    table = TopicTable(catalog.place(full(TOPIC)), full(TOPIC))
    assert table.look()
    assert polars.from_arrow(table.main.scan().to_arrow()).height == done.rows
    paths = [task.file.file_path.removeprefix("s3://") for task in table.main.scan().plan_files()]
    counted = [pyarrow.parquet.read_metadata(path, filesystem=server.files()) for path in paths]
    assert sum(each.num_rows for each in counted) == done.rows
