"""``magnetar standalone`` on a small disk: it fits itself to the disk, and when the disk is full it
says so to everybody: at the start, in health, in the topic's statistics, to the official client.

Needs the right to mount; skipped without it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.small_disk import fill_up, free_bytes, small_disk
from tests.standalone import Standalone

SMALL_BYTES = 120 << 20
PAYLOAD = bytes(100_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, "tmpfs", SMALL_BYTES) as mounted_at:
        yield mounted_at


def health(platform: Standalone) -> str:
    """The whole answer, whatever its status."""
    try:
        with urllib.request.urlopen(f"{platform.http_url}/health", timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def send_until_refused(producer: pulsar.Producer) -> int:
    """How many were taken before the client was told that there is no space."""
    for count in range(100_000):
        try:
            producer.send(PAYLOAD)
        except pulsar.ProducerBlockedQuotaExceededException:
            return count
    raise AssertionError("a disk without an end")


def send_again(producer: pulsar.Producer) -> None:
    """The same producer goes on by itself once there is space."""
    deadline = time.monotonic() + 120
    while True:
        try:
            producer.send(PAYLOAD)
            return
        except pulsar.ProducerBlockedQuotaExceededException:
            assert time.monotonic() < deadline
            time.sleep(0.5)


def test_a_small_disk_is_used_and_a_full_one_is_named_to_everybody(disk: Path) -> None:
    data = disk / "data"
    with Standalone(data) as platform:
        client = pulsar.Client(platform.service_url)
        try:
            producer = client.create_producer("small", send_timeout_millis=90_000)
            count = send_until_refused(producer)
            assert count * len(PAYLOAD) > SMALL_BYTES // 4
            assert 2 << 20 < free_bytes(disk) < SMALL_BYTES // 3
            for said in (health(platform), stats(platform, "small")):
                assert "nearly full" in said
                assert str(data) in said
            for topic in ("small", "another"):
                with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
                    client.create_producer(topic)
            assert client.get_topic_partitions("another") == ["persistent://public/default/another"]
            earliest = pulsar.InitialPosition.Earliest
            subscriber = client.subscribe("small", "all of it", initial_position=earliest)
            assert subscriber.receive(60_000).data() == PAYLOAD
            subscriber.close()
            subprocess.run(["mount", "-o", f"remount,size={4 * SMALL_BYTES}", disk], check=True)
            send_again(producer)
            client.create_producer("another").send(PAYLOAD)
            assert '"ok":true' in health(platform)
        finally:
            client.close()


def test_a_start_on_a_full_disk_says_so_beside_ready(disk: Path) -> None:
    data = disk / "data"
    with Standalone(data):
        pass
    filler = fill_up(disk)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (8 << 20))
    platform = Standalone(data)
    with platform:
        said = platform.ready_line + platform.rest_of_output()
        assert "warning: 0 registered bookies take new entries" in said
        assert str(data) in said


def test_a_disk_without_a_free_byte_is_started_on_to_read_and_to_delete(disk: Path) -> None:
    """A start ended with SQLite's "disk I/O error": nothing could be deleted to make room."""
    data = disk / "data"
    with Standalone(data) as platform:
        client = pulsar.Client(platform.service_url)
        producer = client.create_producer("kept")
        producer.send(b"one")
        client.create_producer("gone").send(b"two")
        client.close()
    fill_up(disk)
    assert free_bytes(disk) == 0
    with Standalone(data) as platform:
        client = pulsar.Client(platform.service_url)
        reader = client.create_reader("kept", pulsar.MessageId.earliest)
        assert reader.read_next(20_000).data() == b"one"
        client.close()
        command = [sys.executable, "-m", "magnetar", "topics", "delete", "gone", "--force", "--url"]
        subprocess.run([*command, platform.http_url], capture_output=True, text=True, check=True)
    (data / "start-reserve").unlink(missing_ok=True)
    fill_up(disk)
    command = [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(data)]
    command += ["--broker-port", "0", "--http-port", "0"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 1
    assert "0 bytes are free, and a start takes" in refused.stderr


def stats(platform: Standalone, topic: str) -> str:
    command = [sys.executable, "-m", "magnetar", "topics", "stats", topic, "--url"]
    done = subprocess.run([*command, platform.http_url], capture_output=True, text=True, check=True)
    return done.stdout
