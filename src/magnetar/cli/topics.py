"""``magnetar topics``: list, look at, create and delete topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import click

from magnetar.cli.output import binary, json_option, print_json, print_table
from magnetar.cli.permissions import of_topics
from magnetar.cli.policies import topic_policies
from magnetar.cli.rest import (
    RestClient,
    namespace_path,
    subscription_segment,
    topic_path,
    url_option,
)
from magnetar.cli.times import ACCEPTED_UNITS, milliseconds
from magnetar.model.errors import ConfigError
from magnetar.model.ids import EARLIEST, LATEST

AGE_MS_MAX = (2**31 - 1) * 1000
"""More than 68 years; REST takes the seconds as Pulsar's, a Java int."""


@click.group()
def topics() -> None:
    """List, inspect, create and delete topics.

    \b
    Examples:
      magnetar topics list
      magnetar topics stats flights
      magnetar topics create-partitioned flights 8
      magnetar topics policies set flights --retention-time 30d
      magnetar topics expire flights --older-than 1h
      magnetar topics seek flights --subscription billing --to 1h
      magnetar topics terminate flights
      magnetar topics delete flights
    """


topics.add_command(topic_policies)
topics.add_command(of_topics)


@topics.command("list")
@click.argument("namespace", default="public/default")
@url_option
@json_option
def list_topics(namespace: str, url: str, as_json: bool) -> None:
    """List the topics of NAMESPACE (TENANT/NAMESPACE), each partition by itself."""
    names = RestClient(url).get(namespace_path(namespace, "/admin/v2/persistent"))
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


@topics.command()
@click.argument("topic")
@url_option
@json_option
def stats(topic: str, url: str, as_json: bool) -> None:
    """Show what TOPIC holds, and who is connected to it.

    A partitioned topic is shown partition by partition.
    """
    rest, path = RestClient(url), topic_path(topic)
    partitions = rest.get(f"{path}/partitions")["partitions"]
    paths = [f"{path}-partition-{n}" for n in range(partitions)] or [path]
    # The table does not say how old the oldest message is, which has an entry of each read.
    query = {"getEarliestTimeInBacklog": "true"} if as_json else {}
    found = {_name(each): rest.get(f"{each}/stats", **query) for each in paths}
    if as_json:
        print_json(found if partitions else found[_name(path)])
        return
    _print_stats(found)


def _name(path: str) -> str:
    return unquote(path.rsplit("/", 1)[1])


def _print_stats(found: Mapping[str, Mapping[str, Any]]) -> None:
    columns: tuple[str, ...] = (
        "topic",
        "messages in#",
        "messages out#",
        "in/s#",
        "out/s#",
        "since",
        "ever in#",
        "stored entries#",
        "stored",
        "producers#",
        "subscriptions#",
    )
    print_table(columns, [_topic_row(name, each) for name, each in found.items()])
    rows = [
        _subscription_row(name, subscription, about)
        for name, each in found.items()
        for subscription, about in sorted(each["subscriptions"].items())
    ]
    if rows:
        columns = (
            "topic",
            "subscription",
            "type",
            "backlog#",
            "unacked#",
            "consumers#",
            "acked to",
        )
        print_table(columns, rows)
    keeps = next(iter(found.values()))["retention"]["kept"]
    click.echo(
        "In and out count since the topic was loaded here, ever in since it was made; stored is "
        f"what is there now.\nBacklogs are in messages; retention keeps {keeps}."
    )
    for problem in sorted({each["storageProblem"] for each in found.values()} - {""}):
        click.echo(f"Nothing can be stored now: {problem}")
    for name, each in found.items():
        if each.get("quotaExceeded"):
            click.echo(f"{name} refuses producers: {each['quotaExceeded']}")
    terminated = [name for name, each in found.items() if each.get("terminated")]
    if terminated:
        click.echo(f"Terminated, so that nothing more is published: {', '.join(terminated)}")


def _topic_row(name: str, each: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        name,
        each["msgInCounter"],
        each["msgOutCounter"],
        round(each["msgRateIn"]),
        round(each["msgRateOut"]),
        each["loadedAt"][:19].replace("T", " "),
        each["totalMessages"],
        each["storedEntries"],
        binary(each["storageSize"]),
        len(each["publishers"]),
        len(each["subscriptions"]),
    )


def _subscription_row(
    topic: str, subscription: str, about: Mapping[str, Any]
) -> tuple[object, ...]:
    return (
        topic,
        subscription,
        about["type"],
        about["msgBacklog"],
        about["unackedMessages"],
        len(about["consumers"]),
        about["markDeletePosition"],
    )


engine_option = click.option(
    "--engine",
    type=click.Choice(("ledger", "partition")),
    help="What keeps it, for good; else as policies and broker.engine say.",
)


@topics.command()
@click.argument("topic")
@engine_option
@url_option
def create(topic: str, engine: str | None, url: str) -> None:
    """Create TOPIC, without partitions."""
    RestClient(url).put(topic_path(topic), **({"engine": engine} if engine else {}))
    click.echo(f"created {topic}")


@topics.command("create-partitioned")
@click.argument("topic")
@click.argument("partitions", type=click.IntRange(1, 10_000))
@engine_option
@url_option
def create_partitioned(topic: str, partitions: int, engine: str | None, url: str) -> None:
    """Create TOPIC with PARTITIONS partitions."""
    query = {"engine": engine} if engine else {}
    RestClient(url).put(f"{topic_path(topic)}/partitions", partitions, **query)
    click.echo(f"created {topic} with {partitions} partitions")


@topics.command()
@click.argument("topic")
@click.option("--subscription", help="This one only; else all durable ones.")
@click.option("--older-than", required=True, metavar="TIME", help="For example 90s, 1h, 3d.")
@url_option
def expire(topic: str, subscription: str | None, older_than: str, url: str) -> None:
    """Take messages of TOPIC that are older than TIME for acknowledged by its subscriptions."""
    age_ms = milliseconds(older_than)
    if age_ms is None or not 0 <= age_ms <= AGE_MS_MAX:
        raise ConfigError(f"--older-than {older_than!r} cannot be used; accepted: {ACCEPTED_UNITS}")
    whose = "all_subscription"
    if subscription is not None:
        whose = f"subscription/{subscription_segment(subscription)}"
    seconds = -(-age_ms // 1000)
    RestClient(url).send_post(f"{topic_path(topic)}/{whose}/expireMessages/{seconds}")
    click.echo(f"expired what is {seconds} s old or older in {topic}")


@topics.command()
@click.argument("topic")
@click.option("--subscription", required=True, help="Its name.")
@click.option(
    "--to",
    "place",
    required=True,
    metavar="PLACE",
    help="earliest, latest, a message id (LEDGER:ENTRY), or how long ago (90s, 1h, 3d).",
)
@url_option
def seek(topic: str, subscription: str, place: str, url: str) -> None:
    """Move a subscription of TOPIC: what comes next to it is at PLACE. Its consumers are sent away
    and come back."""
    name = subscription_segment(subscription)
    path = f"{topic_path(topic)}/subscription/{name}/resetcursor"
    message_id = _place_of(place)
    if message_id is None:
        age_ms = milliseconds(place)
        if age_ms is None or age_ms < 0:
            raise ConfigError(
                f"--to {place!r} cannot be used; accepted: earliest, latest, LEDGER:ENTRY, or "
                f"how long ago: {ACCEPTED_UNITS}"
            )
        path = f"{path}/{max(0, int(time.time() * 1000) - age_ms)}"
    RestClient(url).send_post(path, message_id)
    click.echo(f"moved {subscription} of {topic} to {place}")


@topics.command()
@click.argument("topic")
@click.option("--subscription", required=True, help="Its name.")
@click.option("--count", type=click.IntRange(min=1), help="So many messages.")
@click.option("--all", "whole", is_flag=True, help="All that are there; consumers come back.")
@url_option
def skip(topic: str, subscription: str, count: int | None, whole: bool, url: str) -> None:
    """Take the next messages of a subscription of TOPIC for acknowledged."""
    if (count is None) != whole:
        raise ConfigError("how many is not said, or twice; accepted: --count N, or --all")
    name = subscription_segment(subscription)
    part = "skip_all" if count is None else f"skip/{count}"
    RestClient(url).send_post(f"{topic_path(topic)}/subscription/{name}/{part}")
    what = "all messages" if count is None else f"{count} messages"
    click.echo(f"skipped {what} of {subscription} of {topic}")


def _place_of(place: str) -> dict[str, int] | None:
    """The message id that ``place`` names; None: none."""
    ends = {"earliest": EARLIEST, "latest": LATEST}
    parts = place.split(":")
    if place in ends:
        ledger_id, entry_id = ends[place]
    elif len(parts) == 2 and all(each.isascii() and each.isdigit() for each in parts):
        ledger_id, entry_id = map(int, parts)
    else:
        return None
    return {"ledgerId": ledger_id, "entryId": entry_id}


@topics.command()
@click.argument("topic")
@url_option
def unload(topic: str, url: str) -> None:
    """Close TOPIC, or all its partitions; clients come back at once, which opens it again."""
    RestClient(url).put(f"{topic_path(topic)}/unload")
    click.echo(f"unloaded {topic}")


@topics.command()
@click.argument("topic")
@url_option
def terminate(topic: str, url: str) -> None:
    """Let nothing more be published to TOPIC, for good. What it holds stays to be read; producers
    are refused, and consumers are told when they have acknowledged all. There is no way back."""
    rest, path = RestClient(url), topic_path(topic)
    partitions = rest.get(f"{path}/partitions")["partitions"]
    part = "/terminate/partitions" if partitions else "/terminate"
    found = rest.post(f"{path}{part}", None)
    lasts = list(found.items()) if partitions else [("", found)]
    for number, last in lasts:
        what = f"partition {number} of {topic}" if partitions else topic
        click.echo(f"terminated {what}; its last message is {last['ledgerId']}:{last['entryId']}")


@topics.command()
@click.argument("topic")
@click.option("--force", is_flag=True, help="Even while producers or consumers are connected.")
@url_option
def delete(topic: str, force: bool, url: str) -> None:
    """Delete TOPIC with its partitions, subscriptions and ledgers. There is no way back."""
    rest, path = RestClient(url), topic_path(topic)
    partitioned = rest.get(f"{path}/partitions")["partitions"] > 0
    rest.delete(f"{path}/partitions" if partitioned else path, force=str(force).lower())
    click.echo(
        f"deleted {topic}; bookies give its space back within two minutes (when their disks are "
        "looked at again: bookie.collect_interval_ms and bookie.collect_grace_ms), and what shares "
        "files with other topics when these are compacted"
    )
