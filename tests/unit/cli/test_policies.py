"""``magnetar namespaces`` and ``magnetar topics policies``, against REST."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from magnetar.cli.main import run
from tests.unit.cli.test_commands import Served

DEFAULT = "public/default"


@pytest.fixture(scope="module")
def platform() -> Iterator[Served]:
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def command(
    platform: Served, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def execute(*words: str) -> tuple[int, str, str]:
        status = run([*words, "--url", platform.url])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return execute


Command = Callable[..., tuple[int, str, str]]


def test_namespaces_are_listed(command: Command) -> None:
    assert command("namespaces", "list")[:2] == (0, f"{DEFAULT}\n")


def test_a_namespaces_policies_are_set_shown_and_removed(command: Command) -> None:
    status, out, _ = command(
        "namespaces", "policies", "set", DEFAULT, "--retention-time", "7d", "--message-ttl", "90s",
        "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2",
        "--subscription-expiration", "30d", "--delayed", "--delay-max", "1h",
        "--compaction-threshold", "100MiB", "--deduplication",
    )  # fmt: skip
    assert status == 0
    assert "retention, messageTTL, compactionThreshold, persistence, delayedDelivery" in out
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert found["retention"] == {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": -1}
    assert found["messageTTL"] == 90
    assert found["compactionThreshold"] == 100 << 20
    assert found["deduplication"] is True
    assert found["persistence"]["bookkeeperAckQuorum"] == 2
    assert found["subscriptionExpirationTime"] == 43_200
    assert found["delayedDelivery"] == {
        "active": True,
        "tickTime": 1000,
        "maxDeliveryDelayInMillis": 3_600_000,
    }
    shown = command("namespaces", "policies", "get", DEFAULT)[1]
    assert "retentionTimeInMinutes 10080, retentionSizeInMB -1" in shown
    names = list(found)
    assert command("namespaces", "policies", "remove", DEFAULT, *names)[0] == 0
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("none", {"allowAutoTopicCreation": False}),
        ("plain", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}),
        (
            "8",
            {
                "allowAutoTopicCreation": True,
                "topicType": "partitioned",
                "defaultNumPartitions": 8,
            },
        ),
    ],
)
def test_what_first_use_makes(command: Command, how: str, said: dict[str, object]) -> None:
    options = "--new-topics", how, "--no-new-subscriptions"
    assert command("namespaces", "policies", "set", DEFAULT, *options)[0] == 0
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert found["autoTopicCreation"] == said
    assert found["autoSubscriptionCreation"] == {"allowAutoSubscriptionCreation": False}
    parts = "autoTopicCreation", "autoSubscriptionCreation"
    assert command("namespaces", "policies", "remove", DEFAULT, *parts)[0] == 0
    status, _, said_why = command("namespaces", "policies", "set", DEFAULT, "--new-topics", "0")
    assert (status, "a number of partitions" in said_why) == (2, True)


@pytest.mark.parametrize(
    ("options", "minutes", "megabytes"),
    [
        (("--retention-time", "forever"), -1, -1),
        (("--retention-size", "10GiB"), -1, 10_240),
        (("--retention-time", "90s", "--retention-size", "1KiB"), 2, 1),
        (("--retention-time", "0"), 0, 0),
        (("--retention-time", "-1"), -1, -1),
        (("--retention-size", "0", "--retention-time", "7d"), 0, 0),
    ],
)
def test_a_topics_retention(
    command: Command, options: tuple[str, ...], minutes: int, megabytes: int
) -> None:
    assert command("topics", "policies", "set", "a", *options, "--message-ttl", "never")[0] == 0
    found = json.loads(command("topics", "policies", "get", "a", "--json")[1])
    expected = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    assert (found["retention"], found["messageTTL"]) == (expected, 0)
    assert command("topics", "policies", "remove", "a", "retention", "messageTTL")[0] == 0
    assert json.loads(command("topics", "policies", "get", "a", "--json")[1])["retention"] is None
    applied = json.loads(command("topics", "policies", "get", "a", "--applied", "--json")[1])
    assert applied["retention"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def test_a_limit_that_is_not_named_stays(command: Command) -> None:
    def kept(*options: str) -> dict[str, int]:
        assert command("topics", "policies", "set", "a", *options)[0] == 0
        found = json.loads(command("topics", "policies", "get", "a", "--json")[1])
        return dict(found["retention"])

    minutes, megabytes = "retentionTimeInMinutes", "retentionSizeInMB"
    assert kept("--retention-size", "10MiB") == {minutes: -1, megabytes: 10}
    assert kept("--retention-time", "1h") == {minutes: 60, megabytes: 10}
    assert kept("--retention-size", "unlimited") == {minutes: 60, megabytes: -1}
    assert kept("--retention-time", "0") == {minutes: 0, megabytes: 0}
    assert kept("--retention-size", "5MiB") == {minutes: -1, megabytes: 5}, "something is kept"
    assert command("topics", "policies", "remove", "a", "retention")[0] == 0


def test_a_namespace_is_made_with_its_tenant(command: Command) -> None:
    assert command("namespaces", "create", "acme/prod", "--with-tenant", "--bundles", "8")[0] == 0
    assert command("namespaces", "list", "acme")[1] == "acme/prod\n"
    assert len(json.loads(command("brokers", "bundles", "acme/prod", "--json")[1])) == 8
    assert command("namespaces", "create", "acme/test", "--with-tenant")[0] == 0
    status, out, _ = command("namespaces", "create", "half/a\0b", "--with-tenant")
    assert (status, out) == (1, "created tenant half\n")
    status, _, error = command("namespaces", "create", "acme/test")
    assert (status, "exists" in error) == (1, True)


def test_a_namespace_is_deleted_with_its_tenant(command: Command) -> None:
    for name in ("gone/a", "gone/b"):
        assert command("namespaces", "create", name, "--with-tenant")[0] == 0
    assert command("topics", "create", "gone/b/t")[0] == 0
    shown = command("namespaces", "delete", "gone/a", "--with-tenant")[1]
    assert shown.endswith("deleted gone/a\n")
    status, _, error = command("namespaces", "delete", "gone/b", "--with-tenant")
    assert (status, "has 1 topics (t)" in error) == (1, True)
    deleted = command("namespaces", "delete", "gone/b", "--force", "--with-tenant")[1]
    assert "deleted gone/b\n" in deleted
    assert deleted.endswith("deleted gone\n")
    status, _, error = command("namespaces", "list", "gone")
    assert (status, "tenant gone does not exist" in error) == (1, True)


def test_rates(command: Command) -> None:
    options = (
        "--publish-rate", "1000,10MiB", "--dispatch-rate", "100,relative",
        "--subscription-dispatch-rate", "unlimited", "--subscribe-rate", "5",
    )  # fmt: skip
    assert command("namespaces", "policies", "set", DEFAULT, *options)[0] == 0
    assert command("topics", "policies", "set", "a", "--publish-rate", "1MiB")[0] == 0
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert found["publishRate"] == {
        "publishThrottlingRateInMsg": 1000,
        "publishThrottlingRateInByte": 10 << 20,
    }
    assert found["dispatchRate"] == {
        "dispatchThrottlingRateInMsg": 100,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": True,
    }
    assert found["subscriptionDispatchRate"]["dispatchThrottlingRateInMsg"] == -1
    assert found["subscribeRate"]["subscribeThrottlingRatePerConsumer"] == 5
    found = json.loads(command("topics", "policies", "get", "a", "--applied", "--json")[1])
    assert found["publishRate"]["publishThrottlingRateInByte"] == 1 << 20
    assert found["dispatchRate"]["relativeToPublishRate"] is True
    assert command("topics", "policies", "remove", "a", "publishRate")[0] == 0
    parts = "publishRate", "dispatchRate", "subscriptionDispatchRate", "subscribeRate"
    assert command("namespaces", "policies", "remove", DEFAULT, *parts)[0] == 0


@pytest.mark.parametrize("name", ["a/b c", "subscription", "permissions", "messageid"])
def test_a_rate_of_one_subscription(command: Command, name: str) -> None:
    topic = "topics", "policies"
    mine = "--subscription", name
    each = "--subscription-dispatch-rate"
    assert command(*topic, "set", "a", each, "7")[0] == 0
    assert command(*topic, "set", "a", *mine, each, "9,relative")[0] == 0

    def rate(*options: str) -> object:
        found = json.loads(command(*topic, "get", "a", "--json", *options)[1])
        return found["subscriptionDispatchRate"]["dispatchThrottlingRateInMsg"]

    assert (rate(), rate(*mine), rate("--applied", "--subscription", "b")) == (7, 9, 7)
    status, _, error = command(*topic, "set", "a", *mine, "--publish-rate", "9")
    assert (status, "--subscription goes with" in error) == (2, True)
    status, _, error = command(*topic, "remove", "a", *mine, "publishRate")
    assert (status, "--subscription goes with" in error) == (2, True)
    assert command(*topic, "remove", "a", *mine, "subscriptionDispatchRate")[0] == 0
    assert (rate(), rate("--applied", *mine)) == (7, 7)
    assert command(*topic, "remove", "a", "subscriptionDispatchRate")[0] == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--publish-rate", "fast"),
        ("--publish-rate", "0"),
        ("--publish-rate", "10,relative"),
        ("--subscribe-rate", "1MiB"),
    ],
)
def test_rates_that_cannot_be_meant(command: Command, options: tuple[str, str]) -> None:
    status, _, error = command("namespaces", "policies", "set", DEFAULT, *options)
    assert (status, options[0] in error) == (2, True)


def test_limits(command: Command) -> None:
    set_them = "--max-producers", "3", "--max-unacked-per-consumer", "0", "--max-topics", "99"
    assert command("namespaces", "policies", "set", DEFAULT, *set_them)[0] == 0
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert found["maxProducersPerTopic"] == 3
    assert found["maxUnackedMessagesPerConsumer"] == 0
    assert found["maxTopicsPerNamespace"] == 99
    options = "--max-producers", "5", "--max-message-size", "1MiB"
    assert command("topics", "policies", "set", "a", *options)[0] == 0
    found = json.loads(command("topics", "policies", "get", "a", "--applied", "--json")[1])
    assert (found["maxProducersPerTopic"], found["maxMessageSize"]) == (5, 1 << 20)
    parts = "maxProducersPerTopic", "maxMessageSize"
    assert command("topics", "policies", "remove", "a", *parts)[0] == 0
    gone = "maxProducersPerTopic", "maxUnackedMessagesPerConsumer", "maxTopicsPerNamespace"
    assert command("namespaces", "policies", "remove", DEFAULT, *gone)[0] == 0


def test_which_subscriptions_read_only_brokers_serve(command: Command) -> None:
    rules = ("subscription=report-* property=team=red type=Shared to=zone:eu", "to=owner")
    words = [word for rule in rules for word in ("--read-from", rule)]
    assert command("topics", "policies", "set", "a", *words)[0] == 0
    found = json.loads(command("topics", "policies", "get", "a", "--json")[1])
    assert found["readOnlyBrokers"]["rules"][0] == {
        "subscription": "report-*",
        "type": "Shared",
        "properties": {"team": "red"},
        "to": "zone:eu",
    }
    shown = command("topics", "policies", "get", "a")[1]
    assert "subscription=report-* type=Shared property=team=red to=zone:eu" in shown
    assert shown.index("to=zone:eu") < shown.index("to=owner"), "in the order that counts"
    assert command("topics", "policies", "remove", "a", "readOnlyBrokers")[0] == 0
    applied = command("topics", "policies", "get", "a", "--applied")[1]
    assert re.search("readOnlyBrokers +no rules: topics' owners serve all", applied)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("topics", "policies", "set", "a", "--read-from", "subscription=s"), 2, "where to"),
        (("topics", "policies", "set", "a", "--read-from", "subscription"), 2, "FIELD=VALUE"),
        (("topics", "policies", "set", "a", "--read-from", "to=any to=any"), 2, "there twice"),
        (("topics", "policies", "set", "a", "--read-from", "sub=x to=any"), 2, "no field"),
        (("topics", "policies", "set", "a", "--read-from", "property=x to=any"), 2, "NAME=VALUE"),
        (("topics", "policies", "set", "a", "--read-from", "'to=any"), 2, "quotation"),
        (("topics", "policies", "set", "a", "--read-from", "to=moon"), 1, "zone:NAME"),
        (("namespaces", "policies", "set", DEFAULT), 2, "nothing to set"),
        (("topics", "policies", "set", "a", "--retention-time", "7 weeks"), 2, "a number with"),
        (("topics", "policies", "set", "a", "--retention-time", "7"), 2, "a number with a unit"),
        (("topics", "policies", "set", "a", "--message-ttl", "60"), 2, "a number with a unit"),
        (("topics", "policies", "set", "a", "--retention-size", "7TB"), 2, "KiB, MiB, GiB"),
        (("topics", "policies", "set", "a", "--ensemble", "3"), 2, "name all"),
        (("topics", "policies", "set", "a", "--delay-tick", "5s"), 2, "go with --delayed"),
        (("topics", "policies", "get", "unknown"), 1, "does not exist"),
        (("topics", "expire", "a", "--older-than", "soon"), 2, "90s, 12h, 7d"),
        (("topics", "expire", "a", "--older-than", "3600"), 2, "with a unit"),
        (("topics", "seek", "a", "--subscription", "s", "--to", "soon"), 2, "LEDGER:ENTRY"),
        (("topics", "seek", "a", "--subscription", "s", "--to", "3600"), 2, "with a unit"),
        (("topics", "seek", "a", "--subscription", "s", "--to", "1:-2"), 2, "LEDGER:ENTRY"),
        (("topics", "seek", "a", "--subscription", "none", "--to", "latest"), 1, "none"),
        (("topics", "expire", "a", "--older-than", "1h", "--subscription", "n o"), 1, "n o"),
    ],
)
def test_what_cannot_be_is_refused(
    command: Command, words: tuple[str, ...], status: int, says: str
) -> None:
    found, _, error = command(*words)
    assert (found, says in error) == (status, True), error


def test_what_was_set_before_a_refusal_is_said(command: Command) -> None:
    """It stayed, and the refusal looked like one of all."""
    words = ("policies", "set", "public/default", "--message-ttl", "91s")
    status, _, error = command(
        "namespaces", *words, "--ensemble", "2", "--write-quorum", "3", "--ack-quorum", "2"
    )
    assert status == 1
    assert error.rstrip().endswith("; set before that: messageTTL")
    found = json.loads(command("namespaces", "policies", "get", DEFAULT, "--json")[1])
    assert found["messageTTL"] == 91
    assert command("namespaces", "policies", "remove", DEFAULT, "messageTTL")[0] == 0


def test_a_topic_is_not_said_to_change_its_engine(command: Command) -> None:
    said = command("topics", "policies", "set", "a", "--engine", "partition")[1]
    assert "what there is of the topic stays where it is" in said
    assert command("topics", "policies", "remove", "a", "engine")[0] == 0


def test_messages_expire(command: Command) -> None:
    assert command("topics", "expire", "a", "--older-than", "1h", "--subscription", "s")[0] == 0
    stats = json.loads(command("topics", "stats", "a", "--json")[1])
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert command("topics", "expire", "a", "--older-than", "0s")[0] == 0
    status, _, error = command("topics", "expire", "a", "--older-than", "99999999d")
    assert (status, "--older-than" in error) == (2, True)


def test_a_subscription_is_moved(command: Command) -> None:
    def backlog() -> int:
        stats = json.loads(command("topics", "stats", "a", "--json")[1])
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    whole = {}
    for place in ("latest", "earliest", "0s", "90000d", "9999999:0", "0:0"):
        status, said, error = command("topics", "seek", "a", "--subscription", "s", "--to", place)
        assert (status, place in said) == (0, True), error
        whole[place] = backlog()
    assert whole["latest"] == whole["0s"] == whole["9999999:0"] == 0
    assert whole["earliest"] == whole["90000d"] == whole["0:0"] > 0
    skip = ("topics", "skip", "a", "--subscription", "s")
    command("topics", "seek", "a", "--subscription", "s", "--to", "earliest")
    assert command(*skip, "--count", "1")[1] == "skipped 1 messages of s of a\n"
    assert backlog() == whole["earliest"] - 1
    assert command(*skip, "--all")[0] == 0
    assert backlog() == 0
    assert "--count N" in command(*skip)[2]


def test_backlog_quotas(command: Command) -> None:
    kinds = "destination_storage", "message_age"

    def said(*words: str) -> dict[str, dict[str, object]]:
        found = json.loads(command(*words, "--json")[1])["backlogQuota"]
        return {} if found is None else dict(found)

    for words in (("namespaces", DEFAULT), ("topics", "a")):
        where, name = words
        assert said(where, "policies", "get", name) == {}
        options = "--backlog-size", "10GiB", "--backlog-age", "2d", "--backlog-policy", "evict"
        assert command(where, "policies", "set", name, *options)[0] == 0
        options = "--backlog-size", "unlimited", "--backlog-policy", "hold"
        assert command(where, "policies", "set", name, *options)[0] == 0
        found = said(where, "policies", "get", name)
        assert [found[kind]["policy"] for kind in kinds] == [
            "producer_request_hold",
            "consumer_backlog_eviction",
        ]
        assert (found[kinds[0]]["limitSize"], found[kinds[1]]["limitTime"]) == (-1, 172_800)
        shown = command(where, "policies", "get", name)[1]
        assert re.search("backlogQuota message_age +limit -1, .*limitTime 172800", shown)
        assert command(where, "policies", "remove", name, "backlogQuota")[0] == 0
        assert said(where, "policies", "get", name) == {}
    applied = said("topics", "policies", "get", "a", "--applied")
    assert sorted(applied) == sorted(kinds)
    for options, why in (
        (("--backlog-size", "1GiB"), "name both"),
        (("--backlog-policy", "hold"), "name both"),
        (("--backlog-size", "0", "--backlog-policy", "hold"), "say unlimited"),
        (("--backlog-age", "never", "--backlog-policy", "hold"), "say unlimited"),
    ):
        status, _, error = command("topics", "policies", "set", "a", *options)
        assert (status, why in error) == (2, True)
