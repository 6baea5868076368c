"""``magnetar produce``: publish messages, given, read from a file, or made up at a rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import click

from magnetar.cli.messages import client, service_url_option
from magnetar.cli.times import Amount
from magnetar.model.errors import BrokerError

if TYPE_CHECKING:
    import pulsar

PENDING_MAX = 5_000
PACE_S = 0.01
LINGER_MS = 5
ADVICE = {"MessageTooBig": "; brokers take no larger one than broker.message_bytes_max says"}
"""By the client library's name of what it refuses itself."""


@dataclass(frozen=True)
class Made:
    """Messages to make up: how many, how large, how fast (0: as fast as they go)."""

    count: int
    size_bytes: int
    rate: float

    def __iter__(self) -> Iterator[bytes]:
        start = time.monotonic()
        for sent in range(self.count):
            if self.rate > 0:
                ahead_s = sent / self.rate - (time.monotonic() - start)
                if ahead_s > PACE_S:
                    time.sleep(ahead_s)
            number = b"%d " % sent
            yield (number + b"." * max(0, self.size_bytes - len(number)))[: self.size_bytes]


class Receipts:
    """Counts the broker's answers, which come on the client's own thread."""

    def __init__(self, show_ids: bool) -> None:
        self._changed = threading.Condition()
        self._show_ids = show_ids
        self.unprinted: OSError | None = None
        """The ids have nowhere to go (any more): the reader of our output has ended, say."""
        self.confirmed = 0
        self.failed = 0
        self.first_failure = ""

    def receive(self, result: object, message_id: object) -> None:
        import pulsar

        with self._changed:
            if result == pulsar.Result.Ok:
                self.confirmed += 1
                self._show(message_id)
            else:
                self.failed += 1
                self.first_failure = self.first_failure or str(result).removeprefix("Result.")
            self._changed.notify()

    def _show(self, message_id: object) -> None:
        """Nothing is raised: the client's thread would pass it over, and who waits wait on."""
        if not self._show_ids or self.unprinted is not None:
            return
        try:
            click.echo(str(message_id))
        except OSError as error:
            self.unprinted = error

    def refusal(self, said: str) -> str:
        """Why messages were refused; ``said``: what the broker gave as its reason."""
        why = f"{self.first_failure}{': ' if said else ''}{said}"
        advice = ADVICE.get(self.first_failure, "")
        return f"{self.failed:,} messages were refused: {why}{advice}"

    def wait_for(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.confirmed + self.failed >= count)


@click.command()
@click.argument("topic")
@click.option("-m", "--message", "texts", multiple=True, help="A message; may be repeated.")
@click.option(
    "--file", type=click.File("rb"), help="Publish each line of a file; - is standard input."
)
@click.option("--count", type=click.IntRange(1), help="Make up this many messages.")
@click.option(
    "--size", type=click.IntRange(0), default=1024, show_default=True, help="Their size, bytes."
)
@click.option(
    "--rate",
    type=Amount(),
    default=0.0,
    help="Messages a second; 0 is as fast as they go.",
)
@click.option("--key", help="The messages' key.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--batch/--no-batch", default=True, show_default=True, help="Send in batches.")
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zlib", "zstd", "snappy"]),
    default="none",
    show_default=True,
)
@click.option("--print-ids", is_flag=True, help="Print the id of each message.")
@service_url_option
def produce(
    topic: str,
    texts: tuple[str, ...],
    file: BinaryIO | None,
    count: int | None,
    size: int,
    rate: float,
    key: str | None,
    pairs: tuple[str, ...],
    batch: bool,
    compression: str,
    print_ids: bool,
    service_url: str,
) -> None:
    """Publish messages to TOPIC and wait until they are stored.

    \b
    Examples:
      magnetar produce flights -m "AA 42 departed" -m "AA 42 landed"
      tail -f /var/log/syslog | magnetar produce logs --file -
      magnetar produce load --count 100000 --size 1024 --rate 5000
      magnetar produce flights -m late --key AA --property gate=B12
    """
    messages = _source(texts, file, count, size, rate)
    options: dict[str, object] = {"partition_key": key, "properties": _properties(pairs)}
    receipts = Receipts(print_ids)
    start = time.monotonic()
    with client(service_url, topic) as (connection, said):
        producer = _producer(connection, topic, batch, compression)
        try:
            # Batches leave by themselves. A flush would wait in the client, which hears no Ctrl-C.
            receipts.wait_for(_send_all(producer, messages, count, options, receipts))
            if receipts.unprinted is not None:
                raise receipts.unprinted
        finally:
            _report(topic, receipts, time.monotonic() - start)
        if receipts.failed:
            raise BrokerError(receipts.refusal(said()))


def _source(
    texts: Sequence[str], file: BinaryIO | None, count: int | None, size: int, rate: float
) -> Iterator[bytes]:
    given = [bool(texts), file is not None, count is not None]
    if sum(given) != 1:
        raise click.UsageError(
            "say what to publish, in one way: -m TEXT (repeatable), --file PATH, or --count N"
        )
    if file is not None:
        return (line.rstrip(b"\r\n") for line in file)
    return iter(Made(count, size, rate)) if count is not None else (t.encode() for t in texts)


def _properties(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.UsageError(f"--property {pair!r}: give it as NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def _producer(
    connection: pulsar.Client, topic: str, batch: bool, compression: str
) -> pulsar.Producer:
    import pulsar

    kinds = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}
    return connection.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=PENDING_MAX,
        batching_enabled=batch,
        batching_max_publish_delay_ms=LINGER_MS,
        compression_type=getattr(pulsar.CompressionType, kinds[compression]),
    )


def _send_all(
    producer: pulsar.Producer,
    messages: Iterator[bytes],
    count: int | None,
    options: dict[str, object],
    receipts: Receipts,
) -> int:
    """Send; returns how many. A bar shows progress when the number is known."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = track(
        messages,
        description="publishing",
        total=count,
        console=console,
        transient=True,
        disable=count is None or not console.is_terminal,
    )
    sent = 0
    for message in shown:
        producer.send_async(message, receipts.receive, **options)
        sent += 1
        if receipts.unprinted is not None:
            break
    return sent


def _report(topic: str, receipts: Receipts, seconds: float) -> None:
    rate = receipts.confirmed / seconds if seconds > 0 else 0
    summary = f"published {receipts.confirmed:,} to {topic} in {seconds:.2f} s ({rate:,.0f}/s)"
    click.echo(summary, err=True)
