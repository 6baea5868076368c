"""``magnetar namespaces policies`` and ``magnetar topics policies``: look at, set and remove what
is said of how topics are kept and served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import click

from magnetar.cli.backlog_quotas import (
    QUOTA,
    quota_bodies,
    quota_options,
    remove_quotas,
    send_quotas,
    show_quotas,
)
from magnetar.cli.limit_options import (
    LIMIT_PARTS,
    MAX_MESSAGE,
    MAX_TOPICS,
    OTHER_AT_TOPICS,
    limit_bodies,
    limit_options,
)
from magnetar.cli.limits import NO_LIMIT
from magnetar.cli.limits import as_size as _size
from magnetar.cli.limits import as_time as _time
from magnetar.cli.options import with_options
from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.permissions import of_namespaces
from magnetar.cli.rate_options import RATE_PARTS, TO_EACH, rate_bodies, rate_options
from magnetar.cli.read_rules import rule_text, rules_body
from magnetar.cli.rest import (
    RestClient,
    namespace_path,
    subscription_segment,
    tenant_path,
    topic_path,
    url_option,
)
from magnetar.model.errors import ConfigError, RestError

F = TypeVar("F", bound=Callable[..., Any])
Kept: TypeAlias = Callable[[], Mapping[str, int] | None]

READ_ONLY: Final = "readOnlyBrokers"
THRESHOLD: Final = "compactionThreshold"
DEDUPLICATION: Final = "deduplication"
NEW_TOPICS: Final = "autoTopicCreation"
NEW_SUBSCRIPTIONS: Final = "autoSubscriptionCreation"
OF_TOPICS: Final = {DEDUPLICATION: "deduplicationEnabled", **OTHER_AT_TOPICS}
"""Parts that have another name in a topic's paths."""
PARTS_OF_PATHS: Final = frozenset({"subscription", "permissions", "messageid"})
"""Subscriptions that are called so: Pulsar's path of their rate has another meaning, and ours,
which has but one, is asked for (brokers of earlier releases have it not)."""
PARTS: Final = (
    "retention",
    "messageTTL",
    "persistence",
    "subscriptionExpirationTime",
    THRESHOLD,
    "delayedDelivery",
    DEDUPLICATION,
    READ_ONLY,
    "engine",
    NEW_TOPICS,
    NEW_SUBSCRIPTIONS,
    *RATE_PARTS,
    *LIMIT_PARTS,
    MAX_TOPICS,
    QUOTA,
)
NAMESPACE_PARTS: Final = ("subscriptionExpirationTime", NEW_TOPICS, MAX_TOPICS)
TOPIC_PARTS: Final = (*(part for part in PARTS if part not in NAMESPACE_PARTS), MAX_MESSAGE)


_new_subscriptions = click.option(
    "--new-subscriptions/--no-new-subscriptions",
    default=None,
    help="Whether a subscription that is not there is made by its first consumer.",
)


def _options(command: F) -> F:
    """Of ``set``, at both levels."""
    command = with_options(
        command,
        (
            click.option(
                "--retention-time",
                metavar="TIME",
                help="Keep what every subscription has acknowledged for so long: 7d, 12h, "
                "forever; 0: not at all.",
            ),
            click.option(
                "--retention-size",
                metavar="SIZE",
                help="... up to so much of a topic: 10GiB, unlimited; 0: nothing.",
            ),
            click.option(
                "--message-ttl",
                metavar="TIME",
                help="What a subscription has not acknowledged in that time expires for it: 1d, "
                "never.",
            ),
            click.option(
                "--compaction-threshold",
                metavar="SIZE",
                help="Compact a topic by key when so much has come since: 100MiB; 0: never by "
                "itself.",
            ),
            click.option("--ensemble", type=int, help="Bookies of a new ledger."),
            click.option("--write-quorum", type=int, help="Copies of an entry."),
            click.option("--ack-quorum", type=int, help="Copies awaited before confirming."),
            click.option(
                "--delayed/--no-delayed",
                default=None,
                help="Whether messages may be for later; else they are delivered at once.",
            ),
            click.option(
                "--delay-tick",
                metavar="TIME",
                help="With --delayed: how late they may be.  [default: 1s]",
            ),
            click.option(
                "--delay-max",
                metavar="TIME",
                help="With --delayed: the longest delay; 0: any.  [default: 0]",
            ),
            click.option(
                "--deduplication/--no-deduplication",
                default=None,
                help="Whether what a producer sends again, by its name and sequence ids, is not "
                "stored again.",
            ),
            click.option(
                "--read-from",
                metavar="RULE",
                multiple=True,
                help="Which subscriptions read-only brokers serve: words out of "
                "subscription=PATTERN (* and ?), type=TYPE, property=NAME=VALUE (of the consumer), "
                "and to=any, to=zone:NAME, to=brokers:ID,ID or to=owner. Several: the first that "
                "fits counts. They take the place of those that were set before.",
            ),
            click.option(
                "--engine",
                type=click.Choice(("ledger", "partition")),
                help="What keeps topics that are made from now on.",
            ),
        ),
    )
    return rate_options(limit_options(command))


@click.group()
def namespaces() -> None:
    """List, create and delete namespaces, and say how their topics are kept and served.

    \b
    Examples:
      magnetar namespaces list public
      magnetar namespaces create acme/prod --with-tenant
      magnetar namespaces delete acme/prod
      magnetar namespaces policies get public/default
      magnetar namespaces policies set public/default --retention-time 7d
      magnetar namespaces policies set public/default --message-ttl 3d --delayed
      magnetar namespaces policies set public/default --new-topics 8
      magnetar namespaces policies set public/default --publish-rate 1000,10MiB
      magnetar namespaces policies set public/default --backlog-size 10GiB --backlog-policy hold
      magnetar namespaces policies set public/default --read-from 'subscription=report-* to=any'
      magnetar namespaces policies remove public/default retention
      magnetar namespaces split-bundle public/default --bundle 0x40000000_0x80000000
    """


namespaces.add_command(of_namespaces)


@namespaces.command("list")
@click.argument("tenant", default="public")
@url_option
@json_option
def list_namespaces(tenant: str, url: str, as_json: bool) -> None:
    """List the namespaces of TENANT."""
    names = RestClient(url).get(tenant_path(tenant))
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


@namespaces.command("create")
@click.argument("namespace")
@click.option("--bundles", type=click.IntRange(1, 1 << 16), help="Parts that brokers own: 4.")
@click.option("--with-tenant", is_flag=True, help="Make its tenant, too, if there is none.")
@url_option
def create_namespace(namespace: str, bundles: int | None, with_tenant: bool, url: str) -> None:
    """Create NAMESPACE (TENANT/NAMESPACE); its tenant must exist."""
    rest, path = RestClient(url), namespace_path(namespace)
    tenant = namespace.partition("/")[0]
    if with_tenant and tenant not in rest.get("/admin/v2/tenants"):
        rest.put(tenant_path(tenant, "/admin/v2/tenants"))
        click.echo(f"created tenant {tenant}")
    rest.put(path, {} if bundles is None else {"bundles": {"numBundles": bundles}})
    click.echo(f"created {namespace}")


@namespaces.command("delete")
@click.argument("namespace")
@click.option("--force", is_flag=True, help="With its topics, and send away who is connected.")
@click.option("--with-tenant", is_flag=True, help="Delete its tenant, too, if it has no other.")
@url_option
def delete_namespace(namespace: str, force: bool, with_tenant: bool, url: str) -> None:
    """Delete NAMESPACE (TENANT/NAMESPACE), with all that is said of it. Refused while it has
    topics, unless it is forced."""
    rest, tenant = RestClient(url), namespace.partition("/")[0]
    rest.delete(namespace_path(namespace), force=str(force).lower())
    click.echo(f"deleted {namespace}")
    if with_tenant and not rest.get(tenant_path(tenant)):
        rest.delete(tenant_path(tenant, "/admin/v2/tenants"))
        click.echo(f"deleted {tenant}")


@namespaces.command("split-bundle")
@click.argument("namespace")
@click.option("--bundle", required=True, metavar="RANGE", help="As 0x40000000_0x80000000.")
@click.option("--by-topics", is_flag=True, help="With as many topics in each part; else by hash.")
@click.option("--unload", is_flag=True, help="Let other brokers have the parts.")
@url_option
def split_bundle(namespace: str, bundle: str, by_topics: bool, unload: bool, url: str) -> None:
    """Cut BUNDLE of NAMESPACE in two. Its owner keeps both, and nobody is interrupted by it."""
    algorithm = "topic_count_equally_divide" if by_topics else "range_equally_divide"
    query = f"?unload={str(unload).lower()}&splitAlgorithmName={algorithm}"
    part = quote(bundle, safe="")
    RestClient(url).put(f"{namespace_path(namespace)}/{part}/split{query}")
    click.echo(
        f"split {namespace}/{bundle}; `magnetar brokers bundles {namespace}` shows the parts"
    )


@namespaces.group("policies")
def namespace_policies() -> None:
    """What NAMESPACE (TENANT/NAMESPACE) says of its topics. What it does not say is as the brokers
    are configured; what a topic says itself counts before it."""


@namespace_policies.command("get")
@click.argument("namespace")
@url_option
@json_option
def get_namespace(namespace: str, url: str, as_json: bool) -> None:
    """Show what NAMESPACE says."""
    rest, path = RestClient(url), namespace_path(namespace)
    _show({part: _said(rest, f"{path}/{part}") for part in PARTS}, as_json)


@namespace_policies.command("set")
@click.argument("namespace")
@_options
@quota_options
@_new_subscriptions
@click.option(
    "--subscription-expiration",
    metavar="TIME",
    help="Delete a subscription that had no consumer for so long: 30d, never.",
)
@click.option(
    "--new-topics",
    metavar="HOW",
    help="What is made when a topic is used that is not there: none, plain (one without "
    "partitions), or a number of partitions.",
)
@click.option(
    "--max-topics",
    type=click.IntRange(min=0),
    help="Topics of the namespace, each partition by itself. 0: any number.",
)
@url_option
def set_namespace(namespace: str, url: str, **said: Any) -> None:
    """Say something for the topics of NAMESPACE; what is not named stays as it is."""
    rest, path = RestClient(url), namespace_path(namespace)
    bodies = _bodies(said, lambda: rest.get_or_none(f"{path}/retention"))
    expiration = said["subscription_expiration"]
    if expiration is not None:
        minutes = _time("--subscription-expiration", expiration, 60_000)
        bodies["subscriptionExpirationTime"] = minutes
    if said["new_topics"] is not None:
        bodies[NEW_TOPICS] = _new_topics(said["new_topics"])
    if said["max_topics"] is not None:
        bodies[MAX_TOPICS] = said["max_topics"]

    def send(part: str) -> None:
        if part == THRESHOLD:
            rest.put(f"{path}/{part}", bodies[part])
        elif part == QUOTA:
            send_quotas(rest, path, bodies[part])
        else:
            rest.send_post(f"{path}/{part}", bodies[part])

    _each(_named(bodies), send, "set")
    click.echo(f"set for the topics of {namespace}: {', '.join(bodies)}")


@namespace_policies.command("remove")
@click.argument("namespace")
@click.argument("policies", nargs=-1, required=True, type=click.Choice(PARTS))
@url_option
def remove_namespace(namespace: str, policies: tuple[str, ...], url: str) -> None:
    """Leave POLICIES of NAMESPACE to the brokers' configuration."""
    rest, path = RestClient(url), namespace_path(namespace)
    _each(policies, lambda part: _remove(rest, f"{path}/{part}"), "removed")
    _say_removed(namespace, policies)


@click.group("policies")
def topic_policies() -> None:
    """What is said of one topic (of all partitions of a partitioned one); it counts before what its
    namespace says."""


_one_subscription = click.option(
    "--subscription",
    metavar="NAME",
    help="Say subscriptionDispatchRate of this one, and not of each.",
)


@topic_policies.command("get")
@click.argument("topic")
@click.option("--applied", is_flag=True, help="What is in force, whoever says it.")
@_one_subscription
@url_option
@json_option
def get_topic(topic: str, applied: bool, subscription: str | None, url: str, as_json: bool) -> None:
    """Show what TOPIC says."""
    rest, path = RestClient(url), topic_path(topic)
    query = {"applied": "true"} if applied else {}
    found = {
        part: _said(rest, _of_topic(path, part, subscription), **query) for part in TOPIC_PARTS
    }
    _show(found, as_json)


@topic_policies.command("set")
@click.argument("topic")
@_options
@quota_options
@_new_subscriptions
@click.option(
    "--max-message-size",
    metavar="SIZE",
    help="Of a message or batch, with what its client adds: 1MiB; 0: as the brokers bound it.",
)
@_one_subscription
@url_option
def set_topic(topic: str, subscription: str | None, url: str, **said: Any) -> None:
    """Say something for TOPIC; what is not named stays as it is."""
    rest, path = RestClient(url), topic_path(topic)
    bodies = _bodies(said, lambda: rest.get_or_none(f"{path}/retention"))
    if said["max_message_size"] is not None:
        bodies[MAX_MESSAGE] = _size("--max-message-size", said["max_message_size"], 1)
    _named(bodies)
    if subscription is not None and TO_EACH not in bodies:
        raise ConfigError("--subscription goes with --subscription-dispatch-rate; name it, too")

    def send(part: str) -> None:
        if part == "messageTTL":
            rest.send_post(_of_topic(path, part), messageTTL=bodies[part])
        elif part == QUOTA:
            send_quotas(rest, path, bodies[part])
        else:
            rest.send_post(_of_topic(path, part, subscription), bodies[part])

    _each(bodies, send, "set")
    click.echo(f"set for {topic}: {', '.join(bodies)}")
    if "engine" in bodies:
        click.echo("what there is of the topic stays where it is; partitions that are added obey")


@topic_policies.command("remove")
@click.argument("topic")
@click.argument("policies", nargs=-1, required=True, type=click.Choice(TOPIC_PARTS))
@_one_subscription
@url_option
def remove_topic(topic: str, policies: tuple[str, ...], subscription: str | None, url: str) -> None:
    """Leave POLICIES of TOPIC to its namespace."""
    if subscription is not None and TO_EACH not in policies:
        raise ConfigError(f"--subscription goes with {TO_EACH}; name it, too")
    rest, path = RestClient(url), topic_path(topic)
    _each(policies, lambda part: _remove(rest, _of_topic(path, part, subscription)), "removed")
    _say_removed(topic, policies)


def _of_topic(path: str, part: str, subscription: str | None = None) -> str:
    """``subscription``: whose rate of dispatch is meant."""
    if subscription is not None and part == TO_EACH:
        between = "/subscription" if subscription in PARTS_OF_PATHS else ""
        return f"{path}{between}/{subscription_segment(subscription)}/dispatchRate"
    return f"{path}/{OF_TOPICS.get(part, part)}"


def _said(rest: RestClient, path: str, **query: str) -> Any:
    """None: nothing is said."""
    if path.endswith(f"/{QUOTA}"):
        return show_quotas(rest, path, **query)
    return rest.get_or_none(path, **query)


def _remove(rest: RestClient, path: str) -> None:
    if path.endswith(f"/{QUOTA}"):
        remove_quotas(rest, path)
    else:
        rest.delete(path)


def _each(parts: Iterable[str], send: Callable[[str], None], done: str) -> None:
    """``send`` each. Raises ``RestError``, which says what was done before: that stays."""
    sent: list[str] = []
    for part in parts:
        try:
            send(part)
        except RestError as error:
            if not sent:
                raise
            raise RestError(f"{error}; {done} before that: {', '.join(sent)}") from error
        sent.append(part)


def _say_removed(name: str, policies: tuple[str, ...]) -> None:
    click.echo(f"{name} says nothing any more of: {', '.join(policies)}")


# -- what is said ---------------------------------------------------------------------------------


def _bodies(said: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """By the last part of their paths. ``kept``: the retention that is said already."""
    found: dict[str, Any] = {}
    time, size = said["retention_time"], said["retention_size"]
    if time is not None or size is not None:
        found["retention"] = _retention(time, size, kept)
    if said["message_ttl"] is not None:
        found["messageTTL"] = _time("--message-ttl", said["message_ttl"], 1000)
    if said["compaction_threshold"] is not None:
        size = said["compaction_threshold"]
        found[THRESHOLD] = _size("--compaction-threshold", size, 1)
    quorums = said["ensemble"], said["write_quorum"], said["ack_quorum"]
    if any(each is not None for each in quorums):
        if None in quorums:
            raise ConfigError("--ensemble, --write-quorum and --ack-quorum go together; name all")
        names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
        found["persistence"] = dict(zip(names, quorums, strict=True))
    if said["delayed"] is not None:
        tick, longest = said["delay_tick"] or "1s", said["delay_max"] or "0"
        found["delayedDelivery"] = {
            "active": said["delayed"],
            "tickTime": _time("--delay-tick", tick, 1),
            "maxDeliveryDelayInMillis": _time("--delay-max", longest, 1),
        }
    elif said["delay_tick"] is not None or said["delay_max"] is not None:
        raise ConfigError("--delay-tick and --delay-max go with --delayed; name it, too")
    if said["deduplication"] is not None:
        found[DEDUPLICATION] = said["deduplication"]
    if said["new_subscriptions"] is not None:
        found[NEW_SUBSCRIPTIONS] = {"allowAutoSubscriptionCreation": said["new_subscriptions"]}
    quotas = quota_bodies(said["backlog_size"], said["backlog_age"], said["backlog_policy"])
    if quotas:
        found[QUOTA] = quotas
    if said["read_from"]:
        found[READ_ONLY] = rules_body(said["read_from"])
    if said["engine"] is not None:
        found["engine"] = said["engine"]
    return found | rate_bodies(said) | limit_bodies(said)


def _new_topics(how: str) -> dict[str, object]:
    if how == "none":
        return {"allowAutoTopicCreation": False}
    if how == "plain":
        return {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
    if not (how.isascii() and how.isdigit() and int(how)):
        raise ConfigError(
            f"--new-topics {how!r} cannot be used; accepted: none, plain, or a number of partitions"
        )
    return {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": int(how),
    }


def _named(bodies: dict[str, Any]) -> dict[str, Any]:
    if not bodies:
        raise ConfigError("nothing to set; name a policy, for example --retention-time 7d")
    return bodies


def _retention(time: str | None, size: str | None, kept: Kept) -> dict[str, int]:
    """A limit that is not named stays what it is; a 0 that is named keeps nothing, whatever the
    other."""
    named = {}
    if time is not None:
        named["retentionTimeInMinutes"] = _time("--retention-time", time, 60_000)
    if size is not None:
        named["retentionSizeInMB"] = _size("--retention-size", size, 1 << 20)
    if 0 in named.values():
        return {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    limits = {"retentionTimeInMinutes": NO_LIMIT, "retentionSizeInMB": NO_LIMIT}
    now = (kept() or {}) if len(named) < len(limits) else {}
    return limits | {name: limit for name, limit in now.items() if limit} | named


def _show(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = []
    for part, value in found.items():
        if part == QUOTA and value is not None:
            rows += [(f"{part} {kind}", _words(quota)) for kind, quota in value.items()]
        elif part == READ_ONLY and value is not None:
            rules = [rule_text(rule) for rule in value["rules"]]
            rows += [(f"{part} {number}", rule) for number, rule in enumerate(rules, 1)]
            if not rules:
                rows.append((part, "no rules: topics' owners serve all"))
        else:
            rows.append((part, _words(value)))
    print_table(("policy", "value"), rows)


def _words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value)
