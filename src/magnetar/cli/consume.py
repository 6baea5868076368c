"""``magnetar consume``: receive messages of a subscription, print and acknowledge them."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from typing import TYPE_CHECKING

import click

from magnetar.cli.messages import client, service_url_option
from magnetar.cli.times import Amount

if TYPE_CHECKING:
    import pulsar

RECEIVE_SLICE_MS = 200
"""How long one wait for a message lasts, so that Ctrl-C and --timeout are heard."""

JSON_HELP = "A JSON object a message, with its id; what is no text is in data_base64, too."
TYPES = ("exclusive", "shared", "failover", "key-shared")


@click.command()
@click.argument("topic")
@click.option("--subscription", "-s", required=True, help="Name; created when there is none.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many; default: go on.")
@click.option("--type", "kind", type=click.Choice(TYPES), default="exclusive", show_default=True)
@click.option(
    "--from",
    "start",
    type=click.Choice(["latest", "earliest"]),
    default="latest",
    show_default=True,
    help="Where a new subscription starts.",
)
@click.option(
    "--timeout",
    type=Amount(),
    help="Stop when nothing came for this many seconds.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON object a message, with its id; bytes that are no text in data_base64, too.",
)
@click.option("--quiet", "-q", is_flag=True, help="Count only.")
@service_url_option
def consume(
    topic: str,
    subscription: str,
    count: int | None,
    kind: str,
    start: str,
    timeout: float | None,
    as_json: bool,
    quiet: bool,
    service_url: str,
) -> None:
    """Receive messages of TOPIC, print them, and acknowledge them.

    A subscription remembers what was acknowledged: run it again and it goes on where it was.

    \b
    Examples:
      magnetar consume flights --subscription me --from earliest --count 10
      magnetar consume flights --subscription workers --type shared
      magnetar consume flights --subscription me --json | jq .properties
    """
    received, begin = 0, time.monotonic()
    with client(service_url, topic) as (connection, _):
        consumer = _subscribe(connection, topic, subscription, kind, start)
        try:
            while count is None or received < count:
                message = _next(consumer, timeout)
                if message is None:
                    break
                if not quiet:
                    click.echo(_line(message, as_json))
                consumer.acknowledge(message)
                received += 1
        except KeyboardInterrupt:
            pass  # the way to end an endless consume
        finally:
            consumer.close()  # sends the acknowledgements that wait
    seconds = time.monotonic() - begin
    click.echo(f"consumed {received:,} from {topic} in {seconds:.2f} s", err=True)
    if count is not None and received < count:
        raise click.exceptions.Exit(1)


def _subscribe(
    connection: pulsar.Client, topic: str, subscription: str, kind: str, start: str
) -> pulsar.Consumer:
    import pulsar

    kinds = {
        "exclusive": pulsar.ConsumerType.Exclusive,
        "shared": pulsar.ConsumerType.Shared,
        "failover": pulsar.ConsumerType.Failover,
        "key-shared": pulsar.ConsumerType.KeyShared,
    }
    position = pulsar.InitialPosition.Earliest if start == "earliest" else None
    return connection.subscribe(
        topic,
        subscription,
        consumer_type=kinds[kind],
        initial_position=position or pulsar.InitialPosition.Latest,
        batch_index_ack_enabled=True,  # a message is acknowledged by itself, batched or not
    )


def _next(consumer: pulsar.Consumer, timeout_s: float | None) -> pulsar.Message | None:
    import pulsar

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while deadline is None or time.monotonic() < deadline:
        try:
            return consumer.receive(timeout_millis=RECEIVE_SLICE_MS)
        except pulsar.Timeout:
            continue
    return None


def _line(message: pulsar.Message, as_json: bool) -> str:
    body: bytes = message.data()
    text = body.decode("utf-8", "backslashreplace")
    if not as_json:
        return text
    found = {
        "id": str(message.message_id()),
        "topic": message.topic_name(),
        "key": message.partition_key(),
        "publish_time_ms": message.publish_timestamp(),
        "event_time_ms": message.event_timestamp(),
        "redeliveries": message.redelivery_count(),
        "properties": message.properties(),
        "data": text,
    }
    if text.encode() != body:  # escapes cannot be told from a text that has them
        found["data_base64"] = b64encode(body).decode()
    return json.dumps(found, ensure_ascii=False)
