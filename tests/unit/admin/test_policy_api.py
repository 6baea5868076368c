"""Policies over REST, as Pulsar's clients ask for and say them."""

from __future__ import annotations

import pytest

from magnetar.model.ids import EARLIEST
from magnetar.topics.opening import open_durable
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.doubles.ownership import divide
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.protocols.pulsar.harness import Peer

NAME = "persistent://public/default/t"
N = "/admin/v2/namespaces/public/default"
RETENTION = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
PERSISTENCE = {
    "bookkeeperEnsemble": 3,
    "bookkeeperWriteQuorum": 3,
    "bookkeeperAckQuorum": 2,
    "managedLedgerMaxMarkDeleteRate": 0.0,
}
DELAYED = {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 0}
READING = {
    "rules": [
        {"subscription": "r-*", "type": "Shared", "properties": {"a": "b"}, "to": "zone:eu"},
        {"to": "owner"},
    ]
}
RATE = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 100,
    "dispatchThrottlingRateInByte": 1 << 40,
    "ratePeriodInSecond": 30,
    "relativeToPublishRate": True,
}
NO_DISPATCH = {
    "dispatchThrottlingRateInMsg": -1,
    "dispatchThrottlingRateInByte": -1,
    "ratePeriodInSecond": 1,
    "relativeToPublishRate": False,
}
BODIES = [
    ("retention", RETENTION),
    ("messageTTL", 30),
    ("persistence", PERSISTENCE),
    ("delayedDelivery", DELAYED),
    ("readOnlyBrokers", READING),
    ("compactionThreshold", 100 << 30),
    ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
    ("publishRate", RATE),
    ("dispatchRate", DISPATCH),
    ("subscriptionDispatchRate", DISPATCH),
    ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 60}),
    ("maxConsumersPerSubscription", 7),
    ("maxSubscriptionsPerTopic", 8),
]
LIMITS = [
    ("maxProducersPerTopic", "maxProducers", 0),
    ("maxConsumersPerTopic", "maxConsumers", 0),
    ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 50_000),
    ("maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", 0),
]


CREATIONS = [
    {"allowAutoTopicCreation": False},
    {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
    {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    {"allowAutoTopicCreation": False, "topicType": "partitioned", "defaultNumPartitions": 3},
]


@pytest.mark.parametrize(
    ("part", "body"),
    [
        *BODIES,
        ("subscriptionExpirationTime", 90),
        ("deduplication", True),
        *((part, 9) for part, _, _ in LIMITS),
        ("maxTopicsPerNamespace", 100),
        *(("autoTopicCreation", each) for each in CREATIONS),
    ],
)
def test_a_namespaces_policy_is_set_shown_and_removed(part: str, body: object) -> None:
    async def scenario(p: Platform) -> None:
        path = f"{N}/{part}"
        assert await p.status("GET", path) == 204
        by = "PUT" if part == "compactionThreshold" else "POST"
        assert await p.status(by, path, json=body) == 204
        answer = await p.client.get(path)
        assert (answer.status_code, answer.json()) == (200, body)
        assert await p.status("DELETE", path) == 204
        assert await p.status("GET", path) == 204
        assert await p.status("DELETE", path) == 204, "no error"
        other = path.replace("default", "other")
        assert (await p.reason("GET", other))[0] == 404
        assert (await p.reason(by, other, json=body))[0] == 404

    serve(scenario)


@pytest.mark.parametrize(("part", "body"), BODIES)
def test_a_topics_policy_counts_before_its_namespaces(part: str, body: object) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        await p.client.put(f"{P}/parts/partitions", content=b"2")
        for topic in ("t", "parts"):
            path = f"{P}/{topic}/{part}"
            assert await p.status("GET", path) == 204
            configured = (await p.client.get(f"{path}?applied=true")).json()
            assert configured != body
            if part == "messageTTL":
                assert await p.status("POST", f"{path}?messageTTL=30") == 204
            else:
                assert await p.status("POST", path, json=body) == 204
            assert (await p.client.get(path)).json() == body
            assert (await p.client.get(f"{path}?applied=true")).json() == body
            assert await p.status("DELETE", path) == 204
            assert await p.status("GET", path) == 204
            by = "PUT" if part == "compactionThreshold" else "POST"
            await p.client.request(by, f"{N}/{part}", json=body)
            assert (await p.client.get(f"{path}?applied=true")).json() == body
            await p.client.delete(f"{N}/{part}")
        assert (await p.reason("GET", f"{P}/unknown/{part}"))[0] == 404
        assert (await p.reason("DELETE", f"{P}/unknown/{part}"))[0] == 404

    serve(scenario)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "allowAutoTopicCreation"),
        ({"allowAutoTopicCreation": True}, "topicType"),
        ({"allowAutoTopicCreation": True, "topicType": "odd"}, "topicType"),
        ({"allowAutoTopicCreation": True, "topicType": "partitioned"}, "defaultNumPartitions"),
        (
            {
                "allowAutoTopicCreation": True,
                "topicType": "non-partitioned",
                "defaultNumPartitions": 3,
            },
            "defaultNumPartitions",
        ),
        (
            {
                "allowAutoTopicCreation": True,
                "topicType": "partitioned",
                "defaultNumPartitions": 10_001,
            },
            "defaultNumPartitions",
        ),
    ],
)
def test_automatic_topics_that_cannot_be_meant(body: object, why: str) -> None:
    async def scenario(p: Platform) -> None:
        status, reason = await p.reason("POST", f"{N}/autoTopicCreation", json=body)
        assert (status, why in reason) == (412, True)
        assert await p.status("GET", f"{N}/autoTopicCreation") == 204

    serve(scenario)


def test_a_subscription_has_a_rate_of_its_own() -> None:
    """Of a subscription that need not be there, before what is said of each."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        await p.client.put(f"{P}/parts/partitions", content=b"2")
        for topic in ("t", "parts", "parts-partition-1"):
            path, other = (f"{P}/{topic}/{each}/dispatchRate" for each in ("a%252Fb", "other"))
            each = f"{P}/{topic}/subscriptionDispatchRate"
            assert await p.status("GET", path) == 204
            assert (await p.client.get(f"{path}?applied=true")).json() == NO_DISPATCH
            assert await p.status("POST", path, json=DISPATCH) == 204
            assert (await p.client.get(path)).json() == DISPATCH
            assert await p.status("GET", other) == 204
            assert await p.status("POST", each, json={**DISPATCH, "ratePeriodInSecond": 2}) == 204
            assert (await p.client.get(f"{path}?applied=true")).json() == DISPATCH
            shown = (await p.client.get(f"{other}?applied=true")).json()
            assert shown["ratePeriodInSecond"] == 2
            assert await p.status("DELETE", other) == 204
            assert await p.status("DELETE", path) == 204
            assert await p.status("GET", path) == 204
            assert (await p.client.get(f"{path}?applied=true")).json() == shown
            assert await p.status("DELETE", each) == 204
        for method in ("GET", "POST", "DELETE"):
            said = {"json": DISPATCH} if method == "POST" else {}
            assert (await p.reason(method, f"{P}/unknown/s/dispatchRate", **said))[0] == 404
        bad = {"dispatchThrottlingRateInMsg": -2}
        assert (await p.reason("POST", f"{P}/t/s/dispatchRate", json=bad))[0] == 412

    serve(scenario)


def test_so_many_subscriptions_have_a_rate_of_their_own() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        for number in range(256):
            path = f"{P}/t/s{number}/dispatchRate"
            assert await p.status("POST", path, json=DISPATCH) == 204
        status, reason = await p.reason("POST", f"{P}/t/more/dispatchRate", json=DISPATCH)
        assert (status, "256 may" in reason) == (412, True)
        assert await p.status("POST", f"{P}/t/s9/dispatchRate", json=NO_DISPATCH) == 204

    serve(scenario)


def test_a_subscription_that_is_called_dispatch_rate() -> None:
    """Its path begins as that of the rate of one that is called subscription."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        path = f"{P}/t/subscription/dispatchRate"
        assert await p.status("PUT", path) == 204
        assert (await p.client.get(f"{P}/t/subscriptions")).json() == ["dispatchRate"]
        assert await p.status("DELETE", path) == 204
        assert (await p.client.get(f"{P}/t/subscriptions")).json() == []

    serve(scenario)


@pytest.mark.parametrize("name", ["subscription", "permissions", "messageid", "a%252Fb", "s"])
def test_the_rate_of_a_subscription_that_is_called_as_a_part_of_paths(name: str) -> None:
    """By Pulsar's path a subscription `dispatchRate` was deleted, what was permitted to a role was
    changed, and a time that is none was refused."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        for other in ("dispatchRate", name):
            assert await p.status("PUT", f"{P}/t/subscription/{other}") == 204
        path, pulsars = (f"{P}/t/{each}{name}/dispatchRate" for each in ("subscription/", ""))
        assert await p.status("GET", path) == 204
        assert await p.status("POST", path, json=DISPATCH) == 204
        assert (await p.client.get(path)).json() == DISPATCH
        assert (await p.client.get(pulsars)).json() == DISPATCH
        assert (await p.client.get(f"{path}?applied=true")).json() == DISPATCH
        assert await p.status("DELETE", path) == 204
        assert await p.status("GET", path) == 204
        assert "dispatchRate" in (await p.client.get(f"{P}/t/subscriptions")).json()
        assert await p.status("DELETE", f"{P}/t/subscription/{name}") == 204

    serve(scenario)


def test_deduplication_has_another_name_at_a_topic() -> None:
    """As in Pulsar."""

    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        path = f"{P}/t/deduplicationEnabled"
        assert (await p.client.get(f"{path}?applied=true")).json() is False
        assert await p.status("POST", f"{N}/deduplication", json=True) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() is True
        assert await p.status("GET", path) == 204
        assert await p.status("POST", path, json=False) == 204
        assert (await p.client.get(path)).json() is False
        assert (await p.client.get(f"{path}?applied=true")).json() is False
        assert (await p.client.get(f"{P}/t/stats")).json()["deduplicationStatus"] == "Disabled"
        assert await p.status("DELETE", path) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() is True
        assert (await p.reason("POST", path, json="yes"))[0] == 412

    serve(scenario)


def test_what_is_configured_is_what_is_applied() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        found = {
            part: (await p.client.get(f"{P}/t/{part}?applied=true")).json() for part, _ in BODIES
        }
        assert found == {
            "retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            "messageTTL": 0,
            "persistence": {**PERSISTENCE, **dict.fromkeys(list(PERSISTENCE)[:3], 1)},
            "delayedDelivery": {**DELAYED, "tickTime": 1000},
            "readOnlyBrokers": {"rules": []},
            "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": True},
            "compactionThreshold": 0,
            "publishRate": {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1},
            "dispatchRate": NO_DISPATCH,
            "subscriptionDispatchRate": NO_DISPATCH,
            "subscribeRate": {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30},
            "maxConsumersPerSubscription": 0,
            "maxSubscriptionsPerTopic": 0,
        }

    serve(scenario)


@pytest.mark.parametrize(("part", "topic_part", "configured"), LIMITS)
def test_limits_that_have_another_name_at_a_topic(
    part: str, topic_part: str, configured: int
) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        path = f"{P}/t/{topic_part}"
        assert await p.status("GET", path) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() == configured
        assert await p.status("POST", f"{N}/{part}", json=9) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() == 9
        assert await p.status("POST", path, json=0) == 204
        assert (await p.client.get(path)).json() == 0
        assert (await p.client.get(f"{path}?applied=true")).json() == 0
        assert await p.status("DELETE", path) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() == 9

    serve(scenario)


def test_the_size_of_messages_is_a_topics_alone() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        path = f"{P}/t/maxMessageSize"
        assert await p.status("GET", path) == 204
        assert await p.status("POST", path, json=1000) == 204
        assert (await p.client.get(f"{path}?applied=true")).json() == 1000
        assert await p.status("DELETE", path) == 204
        assert await p.status("GET", path) == 204
        assert (await p.reason("POST", f"{N}/maxMessageSize", json=1))[0] == 404

    serve(scenario)


@pytest.mark.parametrize("how", ["plain", "partitioned", "grown", "used", "subscribed"])
def test_a_namespace_has_no_more_topics_than_it_may(how: str) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/one")
        await p.client.put(f"{P}/two/partitions", json=2)
        assert await p.status("POST", f"{N}/maxTopicsPerNamespace", json=4) == 204
        assert await p.status("PUT", f"{P}/last") == 204
        assert await p.status("PUT", f"{P}/__internal") == 204, "brokers' own do not count"
        if how == "used":
            peer = p.world.peer()
            answer = await peer.produce("persistent://public/default/more")
            assert (answer.type, answer.error.error) == (
                BaseCommand.ERROR,
                ServerError.NOT_ALLOWED,
            )
            assert "4 at most" in answer.error.message
            return
        asked = {
            "plain": ("PUT", f"{P}/more", None),
            "partitioned": ("PUT", f"{P}/more/partitions", 1),
            "grown": ("POST", f"{P}/two/partitions", 3),
            "subscribed": ("PUT", f"{P}/more/subscription/s", None),
        }
        method, path, body = asked[how]
        status, why = await p.reason(method, path, json=body)
        assert (status, "4 at most" in why) == (412, True), why
        assert await p.status("POST", f"{N}/maxTopicsPerNamespace", json=5) == 204
        assert await p.status(method, path, json=body) == 204

    serve(scenario)


def test_a_growth_is_finished_whatever_the_limit_is_by_then() -> None:
    """It makes no partition more: what it makes are subscriptions that are missing."""

    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{P}/two/partitions", json=2) == 204
        assert await p.status("PUT", f"{P}/two-partition-0/subscription/s") == 204
        assert await p.status("POST", f"{N}/maxTopicsPerNamespace", json=1) == 204
        assert (await p.reason("POST", f"{P}/two/partitions", json=3))[0] == 412
        assert await p.status("POST", f"{P}/two/partitions", json=2) == 204
        assert (await p.client.get(f"{P}/two-partition-1/subscriptions")).json() == ["s"]

    serve(scenario)


def test_a_namespace_says_rates_for_each_cluster() -> None:
    """Where Pulsar's clients make one with policies, or look at all of them."""

    async def scenario(p: Platform) -> None:
        path = "/admin/v2/namespaces/public/made"
        body = {
            "publishMaxMessageRate": {"standalone": RATE},
            "topicDispatchRate": {"standalone": DISPATCH},
            "subscriptionDispatchRate": {},
            "clusterSubscribeRate": None,
        }
        assert await p.status("PUT", path, json=body) == 204
        assert (await p.client.get(f"{path}/publishRate")).json() == RATE
        assert (await p.client.get(f"{path}/dispatchRate")).json() == DISPATCH
        assert await p.status("GET", f"{path}/subscriptionDispatchRate") == 204
        shown = (await p.client.get(path)).json()
        assert shown["publishMaxMessageRate"] == {"standalone": RATE}
        assert shown["topicDispatchRate"] == {"standalone": DISPATCH}
        assert "subscriptionDispatchRate" not in shown
        other = {"topicDispatchRate": {"elsewhere": DISPATCH}}
        status, reason = await p.reason("PUT", f"{path}-2", json=other)
        assert (status, "elsewhere" in reason) == (412, True)

    serve(scenario)


@pytest.mark.parametrize(
    ("path", "options", "status", "words"),
    [
        (f"{N}/retention", {"content": b"{"}, 400, "not JSON"),
        (f"{N}/retention", {"json": {**RETENTION, "retentionSizeInMB": 0}}, 412, "both are 0"),
        (f"{N}/messageTTL", {"json": -1}, 412, "messageTTL"),
        (f"{N}/messageTTL", {}, 412, "messageTTL"),
        (f"{N}/persistence", {"json": {**PERSISTENCE, "bookkeeperEnsemble": 2}}, 412, "cannot be"),
        (f"{P}/t/messageTTL", {}, 400, "messageTTL"),
        (f"{P}/t/compactionThreshold", {"json": -1}, 412, "compactionThreshold"),
        (f"{P}/t/messageTTL?messageTTL=-1", {}, 412, "messageTTL"),
        (f"{P}/t/delayedDelivery", {"json": []}, 412, "JSON object"),
        (f"{P}/t/readOnlyBrokers", {"json": {"rules": [{}]}}, 412, "rule 1: to: 'None'"),
        (f"{P}/t/dispatchRate", {"json": {"ratePeriodInSecond": 0}}, 412, "from 1"),
        (f"{N}/maxProducersPerTopic", {"json": -1}, 412, "maxProducersPerTopic must be 0 or more"),
        (f"{P}/t/maxConsumers", {"json": "x"}, 412, "maxConsumersPerTopic"),
        (f"{P}/t/replicatorDispatchRate", {"json": DISPATCH}, 501, "replicatorDispatchRate"),
        (f"{N}/readOnlyBrokers", {"json": []}, 412, "JSON object"),
        (f"{P}/t/all_subscription/expireMessages/-1", {}, 400, "greater than or equal to 0"),
        (f"{P}/t/subscription/s/expireMessages/1", {}, 404, "no subscription s"),
        (f"{P}/t/subscription/s/skip_all", {}, 404, "no subscription s"),
        (f"{P}/t/subscription/s/resetcursor/1", {}, 404, "no subscription s"),
        (f"{P}/t/subscription/s/resetcursor/x", {}, 400, "integer"),
        (f"{P}/t/subscription/s/resetcursor", {}, 400, "message id"),
        (f"{P}/t/subscription/s/resetcursor", {"json": {"ledgerId": 1}}, 400, "no message id"),
        (f"{P}/none/subscription/s/skip_all", {}, 404, "does not exist"),
        (f"{P}/t/subscriptionExpirationTime", {"json": 1}, 404, "nothing at"),
        (f"{N}/deduplicationSnapshotInterval", {"json": 9}, 501, "deduplicationSnapshotInterval"),
    ],
)
def test_what_cannot_be_is_refused(
    path: str, options: dict[str, object], status: int, words: str
) -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        found, reason = await p.reason("POST", path, **options)
        assert (found, words in reason) == (status, True), reason

    serve(scenario)


def test_stats_say_what_the_topics_retention_keeps() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/t")
        await p.client.post(f"{P}/t/retention", json=RETENTION)
        for _ in range(10):
            await p.client.get("/admin/v2/clusters")  # the change comes into force meanwhile
        retention = (await p.client.get(f"{P}/t/stats")).json()["retention"]
        assert retention == {
            "kept": "what is acknowledged for 1 hours",
            "retentionMs": 3_600_000,
            "retentionBytes": -1,
        }

    serve(scenario)


async def six_published(p: Platform, times_ms: list[int]) -> Peer:
    """Into ``NAME``, at those times."""
    await p.client.put(f"{P}/t")
    peer = p.world.peer()
    await peer.produce(NAME)
    peer.publish(6)
    await peer.heard()
    p.world.log(NAME)._order._times_ms[:] = times_ms
    return peer


def test_messages_expire_by_hand() -> None:
    async def scenario(p: Platform) -> None:
        await six_published(p, [10**12 - 9000] * 4 + [10**12] * 2)
        topic = p.world.topic(NAME)
        cursors = [(await open_durable(topic, each, EARLIEST, {})).cursor for each in "ab"]
        assert await p.status("POST", f"{P}/t/subscription/a/expireMessages/9") == 204
        assert [cursor.backlog_entries() for cursor in cursors] == [2, 6]
        assert await p.status("POST", f"{P}/t/all_subscription/expireMessages/0") == 204
        assert [cursor.backlog_entries() for cursor in cursors] == [0, 0]

    serve(scenario)


def test_subscriptions_are_moved() -> None:
    async def scenario(p: Platform) -> None:
        peer = await six_published(p, [1000, 1000, 2000, 2000, 3000, 3000])
        cursor = (await open_durable(p.world.topic(NAME), "a", EARLIEST, {})).cursor
        await peer.subscribe("a", topic=NAME)
        places = p.world.log(NAME).positions
        third = places.next_position(places.next_position(places.first))
        id_of_third = {"ledgerId": third.ledger_id, "entryId": third.entry_id}
        whose = f"{P}/t/subscription/a"
        earliest, latest = ({"ledgerId": n, "entryId": n} for n in (-1, 2**63 - 1))
        for path, body, left in (
            ("skip_all", None, 0),
            ("resetcursor/2000", None, 4),
            ("resetcursor/3001", None, 0),
            ("resetcursor/0", None, 6),
            ("resetcursor", latest, 0),
            ("resetcursor", {**earliest, "excluded": True}, 6),
            ("resetcursor", id_of_third, 4),
            ("resetcursor", {**id_of_third, "excluded": True}, 3),
            ("resetcursor", {**id_of_third, "isExcluded": True, "batchIndex": -1}, 3),
            ("resetcursor", {**id_of_third, "excluded": True, "batchIndex": 0}, 4),
            ("resetcursor", {"ledgerId": 99, "entryId": 0, "excluded": True}, 0),
        ):
            assert await p.status("POST", f"{whose}/{path}", json=body) == 204
            assert cursor.backlog_entries() == left, (path, body)
        assert p.world.topic(NAME).subscription("a").consumers == [], "it was sent away"

    serve(scenario)


def test_messages_are_skipped() -> None:
    async def scenario(p: Platform) -> None:
        await six_published(p, [1000] * 6)
        cursor = (await open_durable(p.world.topic(NAME), "a", EARLIEST, {})).cursor
        whose = f"{P}/t/subscription/a/skip"
        for count, left in ((0, 6), (2, 4), (99, 0)):
            assert await p.status("POST", f"{whose}/{count}") == 204
            assert cursor.backlog_entries() == left
        assert (await p.reason("POST", f"{whose}/-1"))[0] == 400
        assert (await p.reason("POST", f"{P}/t/subscription/none/skip/1"))[0] == 404
        assert (await p.reason("POST", f"{P}/none/subscription/a/skip/1"))[0] == 404
        await p.client.put(f"{P}/parts/partitions", content=b"2")
        status, reason = await p.reason("POST", f"{P}/parts/subscription/a/skip/1")
        assert (status, "name one" in reason) == (412, True)
        divide(p.world.broker.control, lambda name: True)
        assert await p.status("POST", f"{whose}/1") == 307

    serve(scenario)


def test_of_a_partitioned_topic_subscriptions_are_moved_by_time() -> None:
    async def scenario(p: Platform) -> None:
        await p.client.put(f"{P}/parts/partitions", content=b"2")
        await p.client.put(f"{P}/parts/subscription/a", json={"ledgerId": -1, "entryId": -1})
        whose = f"{P}/parts/subscription/a"
        for path, body in (
            ("skip_all", None),
            ("resetcursor/1", None),
            ("resetcursor", {"ledgerId": -1, "entryId": -1}),
        ):
            assert await p.status("POST", f"{whose}/{path}", json=body) == 204
        found = await p.reason("POST", f"{whose}/resetcursor", json={"ledgerId": 1, "entryId": 0})
        assert (found[0], "parts-partition-0" in found[1]) == (409, True), found

    serve(scenario)


def test_a_deleted_topics_policies_go_with_it() -> None:
    async def scenario(p: Platform) -> None:
        for path, create in ((f"{P}/t", f"{P}/t"), (f"{P}/parts", f"{P}/parts/partitions")):
            await p.client.put(create, content=b"2" if "partitions" in create else b"")
            await p.client.post(f"{path}/retention", json=RETENTION)
            assert await p.status("GET", f"{path}/retention") == 200
            await p.client.delete(create)
            await p.client.put(create, content=b"2" if "partitions" in create else b"")
            assert await p.status("GET", f"{path}/retention") == 204

    serve(scenario)
